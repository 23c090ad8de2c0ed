"""The native code in the places of the Python binder and evaluator, for the tests of those."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from ctypes import POINTER, c_int, c_size_t, c_uint, c_void_p

from runtime_loader import _native, binding, evaluate
from runtime_loader.errors import ArgumentError, PlanError
from runtime_loader.evaluate import ConcreteLaunch
from runtime_loader.hip import Device
from runtime_loader.native_arguments import describe
from runtime_loader.plan import Block, End, Launch, LaunchPlan, Op
from runtime_loader.program import ProgramCompiler
from runtime_loader.signature import Form, ScalarForm
from runtime_loader.specialisation import KernargLayout, KernelParam
from runtime_loader.straight import straight_code

_LaunchKernel = ctypes.CFUNCTYPE(
    c_int, c_void_p, *[c_uint] * 7, c_void_p, c_void_p, POINTER(c_void_p)
)


def _slots_as_they_are(signature: Sequence[Form]) -> ProgramCompiler:
    """A plan that launches every slot as 64 bits: between binding and packing they are no less."""
    count = sum(len(form.slots()) for form in signature)
    params = tuple(KernelParam(8 * n, 8, "by_value") for n in range(count))
    layout = KernargLayout(params, 8 * count, 8 * count)
    dimensions = (count, count, count)
    leaves = tuple((n,) for n in range(count))
    body = (
        Op("const", "i64", constant=1),
        Op("const", "ptr"),
        Launch(0, dimensions, dimensions, count + 1, leaves),
    )
    plan = LaunchPlan(("i64",) * count, (Block((), body, End()),))
    return ProgramCompiler(plan, [(1, layout, 1)])


class StraightBinder:
    """`binding.Binder` by straight code, and by itself where that recognises nothing."""

    def __init__(self, signature: Sequence[Form], label: str, device: Device) -> None:
        self._python = binding.Binder(signature, label, device)
        self._arity = len(signature)
        self._code = straight_code(signature, device.ordinal, _slots_as_they_are(signature))

    def bind(self, args: tuple[object, ...], named: Mapping[str, object]) -> list[int]:
        recognises = self._code is not None and len(args) == self._arity and not named
        try:
            slots = self._python.bind(args, named)
        except ArgumentError:
            assert not recognises or self._code(*args) is None  # type: ignore[misc]
            raise
        launches = self._code(*args) if recognises else None  # type: ignore[misc]
        if launches is not None:
            ((_, _, _, kernarg),) = launches
            assert list(struct.unpack(f"<{len(slots)}Q", kernarg)) == slots
        return slots


class NativeBinder(_native.Launcher):
    """`binding.Binder`, natively: its program launches the slots as they are."""

    native_binds = 0

    def __init__(self, signature: Sequence[Form], label: str, device: Device) -> None:
        self._python = binding.Binder(signature, label, device)
        program = _slots_as_they_are(signature).compile()
        assert program is not None
        self._launch = _LaunchKernel(self._keep)
        address = ctypes.cast(self._launch, c_void_p).value
        assert address
        arguments = describe(signature, self._python, device.ordinal)
        self._prepare(arguments, program, device.ordinal, address, 0, 0, 0)

    def bind(self, args: tuple[object, ...], named: Mapping[str, object]) -> list[int]:
        self._slots: list[int] | None = None
        self(*args, **named)  # type: ignore[operator]
        assert self._slots is not None
        return self._slots

    def _keep(self, *args: object) -> int:
        """hipModuleLaunchKernel: read the argument buffer that `extra` names."""
        extra = args[-1]
        size = c_size_t.from_address(extra[3]).value  # type: ignore[index]
        packed = (ctypes.c_uint64 * (size // 8)).from_address(extra[1])  # type: ignore[index]
        self._slots = list(packed) if size else []
        type(self).native_binds += 1
        return 0

    def _call_in_python(self, *args: object, **named: object) -> None:
        self._slots = self._python.bind(args, named)


class NativeEvaluator(_native.Launcher):
    """`evaluate.Evaluator`, natively; asking Python only where the native code may."""

    def __init__(self, plan: LaunchPlan, layouts: Sequence[KernargLayout]) -> None:
        self._plan = plan
        self._python = evaluate.Evaluator(plan, layouts)
        self._ready = False
        kernels = [(1, layout, 2**32 - 1) for layout in layouts]
        program = ProgramCompiler(plan, kernels).compile()
        if program is not None and all(layout.size <= 4096 for layout in layouts):
            arguments = tuple((0, n, 1, None, f"a{n}", False, ()) for n in range(len(plan.inputs)))
            self._prepare(arguments, program, 0, 1, 0, 0, 0)
            self._ready = True

    def __call__(self, slots: Sequence[int]) -> list[ConcreteLaunch]:
        natively = self._run_program(tuple(slots)) if self._ready else None
        try:
            expected = self._python(slots)
        except PlanError:
            assert natively is None
            raise
        if natively is None:
            assert not self._ready or len(expected) > 8 or any(map(_odd, expected))
            return expected
        return [
            ConcreteLaunch(kernel, grid, block, None, lds, stream, False, kernarg)
            for kernel, grid, block, lds, stream, kernarg in natively
        ]


class StraightEvaluator:
    """`evaluate.Evaluator` by straight code, compared with it."""

    def __init__(self, plan: LaunchPlan, layouts: Sequence[KernargLayout]) -> None:
        self._python = evaluate.Evaluator(plan, layouts)
        kernels = [(1, layout, 2**32 - 1) for layout in layouts]
        forms = [ScalarForm(f"a{n}", "u64") for n in range(len(plan.inputs))]
        self._code = straight_code(forms, 0, ProgramCompiler(plan, kernels))
        assert self._code or len(plan.blocks) > 1 or any(n.cooperative for n in plan.launches())

    def __call__(self, slots: Sequence[int]) -> list[ConcreteLaunch]:
        launches = self._code(*slots) if self._code else None
        try:
            expected = self._python(slots)
        except PlanError:
            assert launches is None
            raise
        if launches is None:
            assert self._code is None or any(map(_odd, expected))
        else:
            assert [
                (n.kernel, (*n.grid, *n.block, n.lds), n.stream, n.kernarg) for n in expected
            ] == launches
        return expected


def _odd(launch: ConcreteLaunch) -> bool:
    """Empty, or with more workitems than the limit above."""
    x, y, z = launch.block
    return 0 in launch.grid or x * y * z == 0 or x * y * z >= 2**32
