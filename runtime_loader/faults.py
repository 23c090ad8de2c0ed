"""Device faults: what to say of an error that sticks, and which launches may have caused it."""

from __future__ import annotations

import gc
import time

from runtime_loader.hip import Hip
from runtime_loader.kernel import Bound, Kernel

_SUSPECTS = 4


def advice_on_fault(hip: Hip, what: str, ordinal: int | None) -> str:
    """How an error goes on that `what` met on a device (default: the current one).

    The first time it names the launches that may be the cause; later it refers to that time.
    """
    if ordinal is None:
        ordinal = hip.ordinal_or_none()
    name = "the device" if ordinal is None else f"device {ordinal}"
    before = hip.lost.get(-1 if ordinal is None else ordinal)
    if before is not None:
        return f". {name} is lost since {before}. End this process: nothing more can run on it"
    hip.lost[-1 if ordinal is None else ordinal] = f"{time.strftime('%H:%M:%S')}, when {what}"
    if hip.synchronous:
        return f". {name} is lost. Launches wait for their end (FLYC_SYNC), so this is the cause"
    return (
        f". {name} is lost: a kernel that ran before failed on it. {_suspects(ordinal)}. Run with "
        "FLYC_SYNC=1 to learn which launch it is, and end this process"
    )


def _suspects(ordinal: int | None) -> str:
    """The last launches on a device, the latest first.

    Launching keeps no list of kernels: they are searched for, since this happens once.
    """
    launched: dict[str, int] = {}
    for found in gc.get_objects():
        if issubclass(type(found), (Kernel, Bound)):
            kernel = found if isinstance(found, Kernel) else found.kernel
            last: int = getattr(found, "last_launch", 0)  # a bound kernel has its own if native
            if last and ordinal in (None, kernel.device.ordinal):
                launched[kernel.label] = max(last, launched.get(kernel.label, 0))
    latest = sorted(launched, key=lambda label: -launched[label])[:_SUSPECTS]
    if not latest:
        return "It was launched by other code than this loader"
    return f"The last launches were, latest first: {'; '.join(latest)}"
