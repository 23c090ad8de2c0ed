"""Evaluates a launch plan: host slots in, concrete launches with packed kernargs out."""

from __future__ import annotations

import struct

from runtime_loader.errors import PlanError
from runtime_loader.plan import STEP_LIMIT, TYPE_BITS, Block, Launch, LaunchPlan, Op
from runtime_loader.records import dataclass
from runtime_loader.specialisation import KernargLayout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

# More launches than any launcher makes: what a looping plan may pile up before it is refused.
LAUNCH_LIMIT = 4096

_U32 = 0xFFFFFFFF
_PACK_CODES = {8: "B", 16: "H", 32: "I", 64: "Q"}


@dataclass(frozen=True)
class ConcreteLaunch:
    """One launch, ready for HIP.

    `kernel` is an index into the specialisation's kernels; `grid` counts workgroups, `block`
    workitems, `cluster` workgroups; `lds` is dynamic LDS in bytes. All of these are u32, cut as
    FlyDSL's host launcher cuts them (lib/Runtime/ROCm/FlyRocmRuntimeWrappers.cpp). `kernarg` is
    the explicit part of the argument segment.
    """

    kernel: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] | None
    lds: int
    stream: int
    cooperative: bool
    kernarg: bytes


_Values = list[int]
# Where a branch goes: the block, its arguments, and the number of the block's first parameter.
_Edge = tuple[int, tuple[int, ...], int]
_Step: TypeAlias = "Callable[[_Values, list[ConcreteLaunch]], None]"


class Evaluator:
    """A plan made ready to run; calling it with the slots gives the launches, in order.

    Slots are bit patterns (unsigned). The whole plan is evaluated before anything is returned, so
    an undefined operation after a launch leaves nothing half done. Raises `PlanError`.
    """

    def __init__(self, plan: LaunchPlan, layouts: Sequence[KernargLayout]) -> None:
        types = plan.value_types()
        self._initial = [0] * len(types)
        self._inputs = len(plan.inputs)
        self._blocks: list[tuple[list[_Step], int, int | None, list[_Edge]]] = []
        number = self._inputs
        firsts = []
        for block in plan.blocks:
            firsts.append(number)
            number += len(block.params) + sum(isinstance(item, Op) for item in block.body)
        for index, (block, first) in enumerate(zip(plan.blocks, firsts, strict=True)):
            steps = _steps(block, first + len(block.params), types, layouts)
            if index == 0:
                steps = _fold(block, steps, first, self._initial)
            edges = [
                (branch.target, branch.args, firsts[branch.target]) for branch in block.end.branches
            ]
            self._blocks.append((steps, len(block.body) + 1, block.end.condition, edges))

    def __call__(self, slots: Sequence[int]) -> list[ConcreteLaunch]:
        values = self._initial.copy()
        values[: self._inputs] = slots
        launches: list[ConcreteLaunch] = []
        left = STEP_LIMIT
        index = 0
        while True:
            steps, cost, condition, edges = self._blocks[index]
            left -= cost
            if left < 0 or len(launches) > LAUNCH_LIMIT:
                raise PlanError(
                    f"the launch plan did not end within {STEP_LIMIT} steps and {LAUNCH_LIMIT} "
                    "launches"
                )
            for step in steps:
                step(values, launches)
            if not edges:
                return launches
            taken = 0 if condition is None or values[condition] else 1
            index, args, first = edges[taken]
            if args:
                values[first : first + len(args)] = [values[arg] for arg in args]


def _steps(
    block: Block, number: int, types: list[str], layouts: Sequence[KernargLayout]
) -> list[_Step]:
    """One closure for each op and launch; `number` is that of the first op's result."""
    steps = []
    for item in block.body:
        if isinstance(item, Launch):
            steps.append(_launch_step(item, types, layouts[item.kernel]))
        else:
            steps.append(op_step(item, number, types))
            number += 1
    return steps


def _fold(block: Block, steps: list[_Step], number: int, initial: _Values) -> list[_Step]:
    """Run the entry block's ops on constants once, into `initial`; return the steps that remain.

    An op that reads a later value, or whose result an earlier one reads, stays where it is: until
    it is defined a value is zero.
    """
    known: set[int] = set()
    read: set[int] = set()
    remaining = []
    for item, step in zip(block.body, steps, strict=True):
        if isinstance(item, Launch):
            leaves = [value for arg in item.args for value in arg]
            read.update(*(item.grid, item.block, leaves, item.cluster or ()))
            read.update(v for v in (item.stream, item.lds) if v is not None)
            remaining.append(step)
            continue
        read.update(item.operands)
        if known.issuperset(item.operands) and number not in read:
            try:
                step(initial, [])
                known.add(number)
            except PlanError:
                remaining.append(step)
        else:
            remaining.append(step)
        number += 1
    return remaining


def _launch_step(launch: Launch, types: list[str], layout: KernargLayout) -> _Step:
    leaves = tuple(value for arg in launch.args for value in arg)
    pack = _kernarg_struct(launch, types, layout).pack
    kernel, stream, lds, cooperative = launch.kernel, launch.stream, launch.lds, launch.cooperative
    (gx, gy, gz), (bx, by, bz), cluster = launch.grid, launch.block, launch.cluster

    def step(v: _Values, launches: list[ConcreteLaunch]) -> None:
        launches.append(
            ConcreteLaunch(
                kernel,
                (v[gx] & _U32, v[gy] & _U32, v[gz] & _U32),
                (v[bx] & _U32, v[by] & _U32, v[bz] & _U32),
                None
                if cluster is None
                else (v[cluster[0]] & _U32, v[cluster[1]] & _U32, v[cluster[2]] & _U32),
                0 if lds is None else v[lds],
                v[stream],
                cooperative,
                pack(*[v[leaf] for leaf in leaves]),
            )
        )

    return step


def _kernarg_struct(launch: Launch, types: list[str], layout: KernargLayout) -> struct.Struct:
    """The packing of all parameters: leaves back to back in each, zeros in the gaps between."""
    code = "<"
    end = 0
    for leaves, param in zip(launch.args, layout.params, strict=True):
        code += f"{param.offset - end}x"
        code += "".join(_PACK_CODES[max(TYPE_BITS[types[leaf]], 8)] for leaf in leaves)
        end = param.offset + param.size
    return struct.Struct(f"{code}{layout.size - end}x")


def op_step(op: Op, result: int, types: list[str]) -> _Step:
    if op.name == "const":
        return _constant(result, op.constant)
    if op.name == "select":
        return _select(result, *op.operands)
    bits = TYPE_BITS[types[op.operands[0]]]
    if op.name == "sext":
        return _sign_extend(result, op.operands[0], bits, TYPE_BITS[op.type])
    if op.name in ("zext", "trunc"):
        return _mask(result, op.operands[0], (1 << TYPE_BITS[op.type]) - 1)
    a, b = op.operands
    return _BINARY[op.name](result, a, b, bits, f"{op.name} to {op.type} (value {result})")


def _constant(r: int, constant: int) -> _Step:
    def step(v: _Values, _: object) -> None:
        v[r] = constant

    return step


def _select(r: int, condition: int, a: int, b: int) -> _Step:
    def step(v: _Values, _: object) -> None:
        v[r] = v[a] if v[condition] else v[b]

    return step


def _mask(r: int, a: int, mask: int) -> _Step:
    def step(v: _Values, _: object) -> None:
        v[r] = v[a] & mask

    return step


def _sign_extend(r: int, a: int, bits: int, to: int) -> _Step:
    sign, mask = 1 << (bits - 1), (1 << to) - 1

    def step(v: _Values, _: object) -> None:
        v[r] = ((v[a] ^ sign) - sign) & mask

    return step


_Maker: TypeAlias = "Callable[[int, int, int, int, str], _Step]"


def _unsigned(function: Callable[[int, int], int]) -> _Maker:
    """An op on bit patterns whose result is cut to the operands' width."""

    def make(r: int, a: int, b: int, bits: int, what: str) -> _Step:
        mask = (1 << bits) - 1

        def step(v: _Values, _: object) -> None:
            v[r] = function(v[a], v[b]) & mask

        return step

    return make


def _signed(function: Callable[[int, int], int]) -> _Maker:
    """An op on two's complement values."""

    def make(r: int, a: int, b: int, bits: int, what: str) -> _Step:
        sign, mask = 1 << (bits - 1), (1 << bits) - 1

        def step(v: _Values, _: object) -> None:
            v[r] = function((v[a] ^ sign) - sign, (v[b] ^ sign) - sign) & mask

        return step

    return make


def _shift(function: Callable[[int, int, int], int]) -> _Maker:
    """A shift; `function` also takes the sign bit. By the width or more it is undefined."""

    def make(r: int, a: int, b: int, bits: int, what: str) -> _Step:
        sign, mask = 1 << (bits - 1), (1 << bits) - 1

        def step(v: _Values, _: object) -> None:
            if v[b] >= bits:
                raise PlanError(f"{what}: a shift of {bits} bits by {v[b]} is undefined")
            v[r] = function(v[a], v[b], sign) & mask

        return step

    return make


def _division(signed: bool, function: Callable[[int, int], int]) -> _Maker:
    """A division or remainder: undefined by zero and, signed, when the quotient overflows."""

    def make(r: int, a: int, b: int, bits: int, what: str) -> _Step:
        sign, mask = (1 << (bits - 1) if signed else 0), (1 << bits) - 1

        def step(v: _Values, _: object) -> None:
            x, y = (v[a] ^ sign) - sign, (v[b] ^ sign) - sign
            if y == 0:
                raise PlanError(f"{what}: {x} divided by zero is undefined")
            if signed and y == -1 and x == -sign:
                raise PlanError(f"{what}: {x} divided by -1 overflows {bits} bits")
            v[r] = function(x, y) & mask

        return step

    return make


def _quotient(x: int, y: int) -> int:
    """Rounded towards zero, unlike Python's."""
    return x // y if (x < 0) == (y < 0) else -(-x // y)


def _remainder(x: int, y: int) -> int:
    """With the sign of `x`, unlike Python's."""
    return x - y * _quotient(x, y)


_BINARY: dict[str, _Maker] = {
    "add": _unsigned(lambda x, y: x + y),
    "sub": _unsigned(lambda x, y: x - y),
    "mul": _unsigned(lambda x, y: x * y),
    "and": _unsigned(lambda x, y: x & y),
    "or": _unsigned(lambda x, y: x | y),
    "xor": _unsigned(lambda x, y: x ^ y),
    "shl": _shift(lambda x, by, sign: x << by),
    "lshr": _shift(lambda x, by, sign: x >> by),
    "ashr": _shift(lambda x, by, sign: ((x ^ sign) - sign) >> by),
    "udiv": _division(False, _quotient),
    "urem": _division(False, _remainder),
    "sdiv": _division(True, _quotient),
    "srem": _division(True, _remainder),
    "umin": _unsigned(min),
    "umax": _unsigned(max),
    "smin": _signed(min),
    "smax": _signed(max),
    "icmp.eq": _unsigned(lambda x, y: x == y),
    "icmp.ne": _unsigned(lambda x, y: x != y),
    "icmp.ult": _unsigned(lambda x, y: x < y),
    "icmp.ule": _unsigned(lambda x, y: x <= y),
    "icmp.ugt": _unsigned(lambda x, y: x > y),
    "icmp.uge": _unsigned(lambda x, y: x >= y),
    "icmp.slt": _signed(lambda x, y: x < y),
    "icmp.sle": _signed(lambda x, y: x <= y),
    "icmp.sgt": _signed(lambda x, y: x > y),
    "icmp.sge": _signed(lambda x, y: x >= y),
}
