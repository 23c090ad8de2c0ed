"""Functions that the application runs on modules after they are loaded, by the name of the hook.

Kernels linked with external device code may need a host library to fill in globals of the module
(FlyDSL: `module_init_fn` of `link_extern`). A bundle holds the hook's name only.
"""

from __future__ import annotations

from runtime_loader.errors import PostLoadError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_functions: dict[str, Callable[[int], object]] = {}


def register_post_load(name: str, function: Callable[[int], object]) -> None:
    """Run `function` on every module whose kernels need the hook `name`, once, after loading it.

    It is called with the `hipModule_t` (an integer), on the module's device, before the first
    launch. What it raises reaches whoever asked for the kernel, and the next one tries again.
    Registering a name again counts for modules loaded from then on.
    """
    _functions[name] = function


def post_load_functions(
    names: tuple[str, ...], label: str
) -> list[tuple[str, Callable[[int], object]]]:
    """The registered functions of these hooks. Raises `PostLoadError` when one is missing."""
    missing = [name for name in names if name not in _functions]
    if missing:
        raise PostLoadError(
            f"{label} needs {', '.join(missing)} to run on its module after loading, and nothing "
            f"is registered for that: call runtime_loader.register_post_load({missing[0]!r}, "
            "function) first; the function gets the hipModule_t"
        )
    return [(name, _functions[name]) for name in names]
