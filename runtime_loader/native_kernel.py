"""Kernels that launch through the native extension, with the Python code behind them.

The native code launches when every argument is of a kind that it knows and passes every check.
Whatever else it meets goes to the Python code: one argument to its Python binder, or the whole
call. So what is accepted, what is launched and what errors say do not depend on it.
"""

from __future__ import annotations

from runtime_loader import _native
from runtime_loader.binding import Binder
from runtime_loader.hip import Device, Hip
from runtime_loader.kernel import Bound, Kernel
from runtime_loader.native_arguments import describe
from runtime_loader.program import Program, ProgramCompiler
from runtime_loader.signature import Form
from runtime_loader.specialisation import Specialisation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class NativeKernel(_native.Launcher, Kernel):
    """A `Kernel` whose calls run in C.

    `is_native` is False when the plan is one that the native code does not do: clusters,
    cooperative launches, or more of something than fits its stack.
    """

    def __init__(
        self,
        hip: Hip,
        device: Device,
        spec: Specialisation,
        functions: Sequence[int],
        on_capture: Callable[[], None] | None = None,
    ) -> None:
        Kernel.__init__(self, hip, device, spec, functions, on_capture)
        self.compiler = self._compiler()
        program = self.compiler.compile()
        self.is_native = _prepare(self, self, spec.signature, self._binder, program)

    def bind(self, *args: object, **named: object) -> Bound:
        fixed = self._binder.place(args, named)
        bound = NativeBound(self, fixed)
        return bound if bound.is_native else Bound(self, fixed)

    @property
    def launch_count(self) -> int:
        return self._launched + self.native_launches

    def _call_in_python(self, *args: object, **named: object) -> None:
        self.launch_slots(self._binder.bind(args, named))


class NativeBound(_native.Launcher, Bound):
    """A `Bound` whose calls run in C, with all that follows from what is bound computed already."""

    def __init__(self, kernel: NativeKernel, fixed: Mapping[int, object]) -> None:
        Bound.__init__(self, kernel, fixed)
        known = {number: slot for number, slot in enumerate(self._slots) if slot is not None}
        program = kernel.compiler.compile(known)
        self.is_native = _prepare(self, kernel, self._forms, self._binder, program)
        self._become_part(kernel)

    def _call_in_python(self, *args: object, **named: object) -> None:
        Bound.__call__(self, *args, **named)

    def _launch_failed(self, kernel: int, code: int) -> None:
        self.kernel._launch_failed(kernel, code)


def _prepare(
    launcher: _native.Launcher,
    kernel: Kernel,
    forms: Sequence[Form],
    binder: Binder,
    program: Program | None,
) -> bool:
    """Give a launcher what its calls need; False when that is beyond its bounds."""
    if program is None or len(forms) > _native.LIMITS["arguments"] or not _fits(program):
        return False
    addresses = kernel._hip.launch_addresses(kernel._on_capture is not None)
    ordinal = kernel.device.ordinal
    launcher._prepare(describe(forms, binder, ordinal), program, ordinal, *addresses)
    ranges = kernel.ranges
    if ranges is not None:
        launcher._mark_ranges(kernel.label, *ranges.addresses)
    return True


def _fits(program: Program) -> bool:
    _, _, values, _, instructions, sites = program
    limits = _native.LIMITS
    return (
        values <= limits["values"]
        and len(instructions) <= limits["instructions"] * ProgramCompiler.INSTRUCTION_SIZE
        and len(sites) <= limits["launches"]
        and all(len(site[7]) <= limits["kernarg"] for site in sites)
    )


for _class in (NativeKernel, NativeBound):
    _native.inherit_vectorcall(_class)
