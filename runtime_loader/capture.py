"""Stream capture, as far as loading and unloading modules must mind it."""

from __future__ import annotations

import sys
from ctypes import byref, c_int

from runtime_loader.errors import CaptureError, HipError
from runtime_loader.hip import Device, Hip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_EXCHANGE_MODE = "hipThreadExchangeStreamCaptureMode"
_RELAXED = 2  # hipStreamCaptureModeRelaxed
_CAPTURE_ERRORS = range(900, 909)  # hipErrorStreamCapture*


def known_capture(hip: Hip, device: Device, stream: int = 0) -> str | None:
    """What tells that a stream is being captured, as far as HIP can be asked without harm:
    `stream`, torch's current one on the device, or the default one of any that waits for it."""
    for asked in dict.fromkeys((stream, _torch_stream(device), 0)):
        if hip.is_captured(asked):
            return f"stream {asked:#x}" if asked else "the default stream"
    return None


def refuse_capture(hip: Hip, device: Device, stream: int, doing: str) -> None:
    """Raise `CaptureError` if a stream is known to be captured."""
    told = known_capture(hip, device, stream)
    if told is not None:
        raise CaptureError(f"{_refusal(doing)} ({told} tells). Nothing was loaded")


def refused_by_hip(error: HipError, doing: str) -> HipError | CaptureError:
    """What to raise for a failed load: HIP also knows of captures that nothing else tells of."""
    if error.code not in _CAPTURE_ERRORS:
        return error
    return CaptureError(
        f"{_refusal(doing)}: {error.call} failed with {error.name} ({error.code}). The capture is "
        "invalid now"
    )


def undisturbed(hip: Hip, action: Callable[[], None]) -> None:
    """Run what touches no captured work without invalidating captures, as far as HIP lets one:
    it does for unloading and for waiting on a stream, and never for waiting on a device."""
    if not hip.has(_EXCHANGE_MODE):
        action()
        return
    mode = c_int(_RELAXED)

    def exchange() -> None:
        hip.call(_EXCHANGE_MODE, "allowing for captures", byref(mode))

    exchange()
    and_back(action, exchange)


def and_back(action: Callable[[], object], back: Callable[[], object]) -> None:
    """Run `action`, then `back` whatever happened; the first error is the one to raise."""
    try:
        action()
    except BaseException as error:
        try:
            back()
        except HipError:
            raise error from None
        raise
    back()


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
