"""Device faults: what to say of an error that sticks, and which launches may have caused it."""

from __future__ import annotations

import gc
import time

from runtime_loader.errors import HipError
from runtime_loader.hip import Device, Hip
from runtime_loader.kernel import Bound, Kernel

# hipError_t of an ECC error, an illegal address, a timeout, a failed assertion, a failed launch.
_FAULTS = (214, 700, 702, 710, 719)
_SUSPECTS = 4

# When and how a device was first seen to be lost.
_lost: dict[tuple[Hip, int], str] = {}


def with_fault(error: HipError, hip: Hip, device: Device) -> HipError:
    """`error`, with what else there is to say if it is a fault of the device.

    The first time that is which launches may be the cause; later it refers to that time.
    """
    if error.code not in _FAULTS:
        return error
    name = f"device {device.ordinal}"
    now = f"{time.strftime('%H:%M:%S')}, when {error.doing}: {error.name}"
    before = _lost.setdefault((hip, device.ordinal), now)
    if before is not now:
        said = f"{name} is lost since {before}. End this process: nothing more can run on it"
    elif hip.synchronous:
        said = f"{name} is lost. Launches wait for their end (FLYC_SYNC), so it was lost here"
    else:
        said = (
            f"{name} is lost: a kernel that ran before failed on it. {_suspects(hip, device)}. "
            "Run with FLYC_SYNC=1 to learn which launch it is, and end this process"
        )
    error.args = (f"{error}. {said}",)
    return error


def _suspects(hip: Hip, device: Device) -> str:
    """The last launches on a device.

    Launching keeps no list of kernels: they are searched for, since this happens once.
    """
    launched: dict[str, int] = {}
    for found in gc.get_objects():
        if issubclass(type(found), (Kernel, Bound)):
            kernel = found if isinstance(found, Kernel) else found.kernel
            last: int = getattr(found, "last_launch", 0)  # a bound kernel has its own if native
            if last and kernel._hip is hip and kernel.device.ordinal == device.ordinal:
                launched[kernel.label] = max(last, launched.get(kernel.label, 0))
    latest = sorted(launched, key=lambda label: -launched[label])[:_SUSPECTS]
    if not latest:
        return "No kernel of this loader was launched on it"
    return f"The last launches were, latest first: {'; '.join(latest)}"
