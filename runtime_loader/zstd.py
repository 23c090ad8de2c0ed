"""zstandard's C extension, loaded without the Python around it.

`import zstandard` also imports `typing` and `platform`, which takes longer than everything that the
loader does before a first launch.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import zstandard
else:
    _NAME = "zstandard.backend_c"

    def _load():
        """The extension: the one that is loaded already, or loaded now where it is found alone."""
        found = sys.modules.get(_NAME) or sys.modules.get("zstandard")
        if found is not None:
            return found
        from importlib.machinery import ExtensionFileLoader, PathFinder

        package = PathFinder.find_spec("zstandard")
        if package is not None:
            spec = PathFinder.find_spec(_NAME, package.submodule_search_locations)
            if spec is not None and isinstance(spec.loader, ExtensionFileLoader):
                module = spec.loader.create_module(spec)
                spec.loader.exec_module(module)
                sys.modules[_NAME] = module  # for `import zstandard`, if it comes later
                return module
        import zstandard

        return zstandard

    zstandard = _load()

__all__ = ["zstandard"]
