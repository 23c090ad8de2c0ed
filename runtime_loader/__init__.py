"""Maps a `.flybundle` and launches its kernels on hipModule, with no compiler present."""

from runtime_loader.errors import (
    ArgumentError,
    BundleError,
    CaptureError,
    FlycError,
    HipError,
    HipUnavailableError,
    MissError,
    PlanError,
    PostLoadError,
    TrustError,
)
from runtime_loader.kernel import Bound, Kernel
from runtime_loader.loader import Bundle, Stats, load
from runtime_loader.post_load import register_post_load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runtime_loader.live import Live, LiveKernel
    from runtime_loader.op import Explanation, Op
    from runtime_loader.search import Bundles, load_all

__all__ = [
    "ArgumentError",
    "Bound",
    "Bundle",
    "BundleError",
    "Bundles",
    "CaptureError",
    "Explanation",
    "FlycError",
    "HipError",
    "HipUnavailableError",
    "Kernel",
    "Live",
    "LiveKernel",
    "MissError",
    "Op",
    "PlanError",
    "PostLoadError",
    "Stats",
    "TrustError",
    "load",
    "load_all",
    "register_post_load",
]

# A first launch waits for every module that is imported; these few programs need.
_LATER = {
    "Bundles": "search",
    "Explanation": "op",
    "Live": "live",
    "LiveKernel": "live",
    "Op": "op",
    "load_all": "search",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    return value
