"""Stream capture, as far as loading and unloading modules must mind it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from ctypes import byref, c_int

from runtime_loader.errors import CaptureError, HipError
from runtime_loader.hip import Device, Hip

_EXCHANGE_MODE = "hipThreadExchangeStreamCaptureMode"
_RELAXED = 2  # hipStreamCaptureModeRelaxed
_CAPTURE_ERRORS = range(900, 909)  # hipErrorStreamCapture*


def refuse_capture(hip: Hip, device: Device, stream: int, doing: str) -> None:
    """Raise `CaptureError` if a stream is being captured, as far as HIP tells before it is asked
    to load: `stream`, torch's current one on the device, or any that waits for the default one."""
    for asked in dict.fromkeys((stream, _torch_stream(device), 0)):
        if hip.is_captured(asked):
            name = f"stream {asked:#x}" if asked else "the default stream"
            raise CaptureError(f"{_refusal(doing)} ({name} tells). Nothing was loaded")


def refused_by_hip(error: HipError, doing: str) -> HipError | CaptureError:
    """What to raise for a failed load: HIP also knows of captures that nothing else tells of."""
    if error.code not in _CAPTURE_ERRORS:
        return error
    return CaptureError(
        f"{_refusal(doing)}: {error.call} failed with {error.name} ({error.code}). The capture is "
        "invalid now"
    )


def undisturbed(hip: Hip, action: Callable[[], None]) -> None:
    """Run what touches no captured work, such as unloading, without invalidating any capture."""
    if not hip.has(_EXCHANGE_MODE):
        action()
        return
    mode = c_int(_RELAXED)
    hip.call(_EXCHANGE_MODE, "allowing for captures", byref(mode))
    try:
        action()
    finally:
        hip.call(_EXCHANGE_MODE, "allowing for captures", byref(mode))


def _refusal(doing: str) -> str:
    return (
        f"{doing} would load a module during a stream capture, which HIP does not allow; call "
        "preload on the bundle before capturing"
    )


def _torch_stream(device: Device) -> int:
    """The handle of torch's current stream on a device, if the process uses torch."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return 0
    return int(cuda.current_stream(device.ordinal).cuda_stream)
