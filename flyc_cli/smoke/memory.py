"""Device memory and events, on the HIP library that the loader has bound.

The loader itself needs neither, so these few calls are bound here (HIP API reference, "Memory
Management" and "Event Management").
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_float, c_int, c_size_t, c_void_p
from types import TracebackType
from typing import Any

from runtime_loader.hip import Hip

_HOST_TO_DEVICE = 1
_CHUNK = 16 << 20
_SMALLEST = 256

_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "hipMalloc": (POINTER(c_void_p), c_size_t),
    "hipFree": (c_void_p,),
    "hipMemcpy": (c_void_p, ctypes.c_char_p, c_size_t, c_int),
    "hipDeviceSynchronize": (),
    "hipEventCreate": (POINTER(c_void_p),),
    "hipEventDestroy": (c_void_p,),
    "hipEventRecord": (c_void_p, c_void_p),
    "hipEventSynchronize": (c_void_p,),
    "hipEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
}


class Workspace:
    """Memory and events on the current device; leaving it frees all of them.

    Every method raises `HipError`.
    """

    def __init__(self, hip: Hip) -> None:
        self._hip = hip
        library = ctypes.CDLL(hip.path)
        self._calls: dict[str, Any] = {}
        for name, prototype in _PROTOTYPES.items():
            function = library[name]
            function.argtypes = prototype
            function.restype = c_int
            self._calls[name] = function
        self._allocations: list[int] = []
        self._events: list[int] = []

    def filled(self, size: int, pattern: bytes, what: str) -> int:
        """The address of `size` bytes that repeat `pattern`; `what` names them in errors."""
        pointer = c_void_p()
        doing = f"allocating {size:,} bytes for {what}"
        self._call("hipMalloc", doing, ctypes.byref(pointer), max(size, _SMALLEST))
        address = pointer.value or 0
        self._allocations.append(address)
        block = pattern * max(1, min(size, _CHUNK) // len(pattern) + 1)
        block = block[: max(1, _CHUNK // len(pattern)) * len(pattern)]
        for start in range(0, size, len(block)):
            count = min(len(block), size - start)
            self._call(
                *("hipMemcpy", f"filling {what}"),
                *(address + start, block, count, _HOST_TO_DEVICE),
            )
        return address

    def synchronise(self, doing: str) -> None:
        """Wait for the device; what a kernel did wrong shows here."""
        self._call("hipDeviceSynchronize", doing)

    def event(self) -> int:
        """The handle of a new event."""
        event = c_void_p()
        self._call("hipEventCreate", "creating an event", ctypes.byref(event))
        self._events.append(event.value or 0)
        return self._events[-1]

    def record(self, event: int) -> None:
        """Record an event on the default stream."""
        self._call("hipEventRecord", "recording an event", event, None)

    def seconds(self, start: int, stop: int, doing: str) -> float:
        """The time between two recorded events, after waiting for the second."""
        elapsed = c_float()
        self._call("hipEventSynchronize", doing, stop)
        self._call("hipEventElapsedTime", doing, ctypes.byref(elapsed), start, stop)
        return elapsed.value / 1000

    def __enter__(self) -> Workspace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # What fails here failed before, and that error is the one to show.
        for event in self._events:
            self._calls["hipEventDestroy"](event)
        for address in self._allocations:
            self._calls["hipFree"](address)

    def _call(self, name: str, doing: str, *args: Any) -> None:
        code = self._calls[name](*args)
        if code:
            raise self._hip.error(name, code, doing)
