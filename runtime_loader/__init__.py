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
from runtime_loader.loader import Bundle, load
from runtime_loader.post_load import register_post_load

__all__ = [
    "ArgumentError",
    "Bound",
    "Bundle",
    "BundleError",
    "CaptureError",
    "FlycError",
    "HipError",
    "HipUnavailableError",
    "Kernel",
    "MissError",
    "PlanError",
    "PostLoadError",
    "TrustError",
    "load",
    "register_post_load",
]
