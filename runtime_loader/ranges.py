"""Ranges that profilers show, one for each call of a kernel: ROCTX, of ROCm."""

from __future__ import annotations

import ctypes

# ROCm's rocprofiler-sdk has replaced roctracer, whose library had the second name.
LIBRARY_NAMES = ("librocprofiler-sdk-roctx.so", "libroctx64.so", "libroctx64.so.4")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Ranges:
    """`roctxRangePushA` and `roctxRangePop` of one library, and where they are."""

    def __init__(self, push: Any, pop: Any) -> None:
        push.argtypes = (ctypes.c_char_p,)
        self.push = push
        self.pop = pop
        self.addresses = _address(push), _address(pop)


def find_ranges() -> Ranges | None:
    """What makes ranges, if a library does."""
    for name in LIBRARY_NAMES:
        try:
            library = ctypes.CDLL(name)
            return Ranges(library.roctxRangePushA, library.roctxRangePop)
        except (OSError, AttributeError):
            continue
    return None


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
