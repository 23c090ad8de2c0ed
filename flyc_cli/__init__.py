"""The `flyc` command and the build: manifest, specialisation, artifact, bundle.

`Manifest`, `Kernel`, `Specialisation`, `plan` and `build` are for programs (docs/api.md).
"""

from flyc_cli.api import Kernel, Manifest, Specialisation, build, plan

__all__ = ["Kernel", "Manifest", "Specialisation", "build", "plan"]
