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

    def _name(kind):
        return getattr(kind, "__name__", "")

    def _load():
        """The extension: the one that is loaded already, or loaded now where it is found alone."""
        found = sys.modules.get(_NAME) or sys.modules.get("zstandard")
        if found is not None:
            return found
        # importlib.machinery has the finder too, after it imported warnings and more.
        finder = next((f for f in sys.meta_path if _name(f) == "PathFinder"), None)
        package = finder and finder.find_spec("zstandard")
        if package:
            spec = finder.find_spec(_NAME, package.submodule_search_locations)
            if spec is not None and _name(type(spec.loader)) == "ExtensionFileLoader":
                module = spec.loader.create_module(spec)
                spec.loader.exec_module(module)
                sys.modules[_NAME] = module  # for `import zstandard`, if it comes later
                return module
        import zstandard

        return zstandard

    zstandard = _load()

__all__ = ["zstandard"]
