"""The `flyc` command and the build: manifest, specialisation, artifact, bundle.

`Manifest`, `Kernel`, `Specialisation`, `plan` and `build` are for programs (docs/api.md).
"""

# The package first: imported later, it would replace the function of the same name below.
import flyc_cli.build  # noqa: F401
from flyc_cli.api import Kernel, Manifest, Specialisation, build, plan

__all__ = ["Kernel", "Manifest", "Specialisation", "build", "plan"]
