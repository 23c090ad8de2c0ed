"""Makes kernels and operators whose calls run in C, where the extension was built and `FLYC_NATIVE`
is not 0."""

from __future__ import annotations

import os

from runtime_loader.hip import Device, Hip
from runtime_loader.kernel import Kernel
from runtime_loader.specialisation import Specialisation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from runtime_loader.op import Op

VARIABLE = "FLYC_NATIVE"

try:
    from runtime_loader import native_kernel
except ImportError:  # installed where no compiler was
    BUILT = False
else:
    BUILT = True


def enabled() -> bool:
    """Whether kernels that are made now launch natively."""
    return BUILT and os.environ.get(VARIABLE) != "0"


def make_kernel(
    hip: Hip,
    device: Device,
    spec: Specialisation,
    functions: Sequence[int],
    on_capture: Callable[[], None] | None = None,
) -> Kernel:
    """The kernel of a specialisation that was loaded: native where it can be.

    Launches that wait for their end (`FLYC_SYNC`) are made by the Python code.
    """
    if enabled() and not hip.synchronous:
        kernel = native_kernel.NativeKernel(hip, device, spec, functions, on_capture)
        if kernel.is_native:
            return kernel
    return Kernel(hip, device, spec, functions, on_capture)


def op_type() -> type[Op]:
    """What operators that are made now are: native where they can be."""
    if enabled():
        from runtime_loader.native_op import NativeOp

        return NativeOp
    from runtime_loader.op import Op

    return Op
