"""Compiles a launch plan to a program of the native launcher: constants folded, the rest compact.

A program is straight instructions on 64-bit values (runtime_loader/csrc/program.c). Values are
numbered: the inputs that a call gives, constants, then results. What is undefined, and whatever is
beyond the native code's bounds, is left to `runtime_loader.evaluate`.
"""

from __future__ import annotations

import struct

from runtime_loader.errors import PlanError
from runtime_loader.evaluate import op_step
from runtime_loader.plan import DIVISION, TYPE_BITS, Launch, LaunchPlan, Op
from runtime_loader.specialisation import KernargLayout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# The numbers are those of csrc/program.c.
_OPCODES = {
    name: number
    for number, name in enumerate(
        (
            *("copy", "select", "sext", "mask"),
            *("add", "sub", "mul", "and", "or", "xor", "shl", "lshr", "ashr"),
            *("sdiv", "udiv", "srem", "urem", "smin", "smax", "umin", "umax"),
            *("icmp.eq", "icmp.ne", "icmp.slt", "icmp.sle", "icmp.sgt", "icmp.sge"),
            *("icmp.ult", "icmp.ule", "icmp.ugt", "icmp.uge"),
            *("launch", "jump", "branch", "return"),
        )
    )
}
# What is kept even when nothing uses its result, because it can be undefined.
_MAY_FAIL = {*DIVISION, "shl", "lshr", "ashr"}
_ENCODED = struct.Struct("<BBHHHH")
_NUMBERS = 1 << 16

# (inputs, constants, values, whether results start as zero, steps, launches): what
# `Launcher._prepare` takes.
Site = tuple[
    int, int, int, tuple[int, ...], tuple[int, ...], int, int, bytes, tuple[tuple[int, ...], ...]
]
Program = tuple[int, tuple[int, ...], int, bool, bytes, tuple[Site, ...]]

# An operand: ("constant", its value), ("input", its place) or ("result", any number of its own).
_Operand = tuple[str, int]
_ZERO: _Operand = ("constant", 0)
# Where the arguments start among the operands of a launch: grid, block, LDS and stream go first.
_LEAVES = 8


class Step:
    """One step; a launch has its grid, block, LDS, stream and argument leaves as operands.

    `bits` is the width of its operands, or for `mask` that of its result.
    """

    __slots__ = ("bits", "launch", "name", "operands", "result", "targets")

    def __init__(self, name: str, bits: int, result: _Operand | None, *operands: _Operand) -> None:
        self.name = name
        self.bits = bits
        self.result = result
        self.operands = operands
        self.targets: tuple[int, ...] = ()  # numbers of blocks
        self.launch: Launch | None = None


class ProgramCompiler:
    """Makes the programs of one plan.

    `kernels` has, for each kernel, its handle, layout, and largest workgroup.
    """

    INSTRUCTION_SIZE = _ENCODED.size

    def __init__(self, plan: LaunchPlan, kernels: Sequence[tuple[int, KernargLayout, int]]) -> None:
        self._plan = plan
        self._types = plan.value_types()
        self._kernels = kernels

    def compile(self, known: Mapping[int, int] | None = None) -> Program | None:
        """The program, or None when the native launcher has no such launches or too few numbers.

        `known` holds the slots that no call changes, by number: what follows from them alone is
        computed now. The program's inputs are the others.
        """
        plan = self._plan
        if any(launch.cluster is not None or launch.cooperative for launch in plan.launches()):
            return None
        values: dict[int, _Operand] = {n: ("constant", v) for n, v in (known or {}).items()}
        moving = [number for number in range(len(plan.inputs)) if number not in values]
        values |= {number: ("input", place) for place, number in enumerate(moving)}
        if len(plan.blocks) == 1:
            return self._encode(self._straight(values), {}, len(moving), clear=False)
        code, starts = self._branching(values)
        return self._encode(code, starts, len(moving), clear=True)

    def straight_steps(self) -> list[Step] | None:
        """The steps of a plan of one block, or None for a plan of more, or of special launches."""
        plan = self._plan
        if len(plan.blocks) != 1 or any(
            launch.cluster is not None or launch.cooperative for launch in plan.launches()
        ):
            return None
        return self._straight({number: ("input", number) for number in range(len(plan.inputs))})

    def described(
        self, step: Step
    ) -> tuple[int, KernargLayout, int, list[tuple[int, int, _Operand]]]:
        """A launch's kernel, layout, largest workgroup, and leaves with their offset and size."""
        assert step.launch is not None
        _, layout, max_workgroup = self._kernels[step.launch.kernel]
        leaves = []
        operands = iter(step.operands[_LEAVES:])
        for values, param in zip(step.launch.args, layout.params, strict=True):
            offset = param.offset
            for value in values:
                size = max(TYPE_BITS[self._types[value]], 8) // 8
                leaves.append((offset, size, next(operands)))
                offset += size
        return step.launch.kernel, layout, max_workgroup, leaves

    def _straight(self, values: dict[int, _Operand]) -> list[Step]:
        """One block: constants are folded, and results that nothing uses are dropped."""
        code = []
        number = len(self._plan.inputs)
        for item in self._plan.blocks[0].body:
            if isinstance(item, Launch):
                code.append(_launch(item, values))
                continue
            # A value that is defined later reads as zero.
            operands = [values.get(operand, _ZERO) for operand in item.operands]
            folded = self._fold(item, number, operands)
            if folded is None:
                code.append(self._op(item, number, operands))
            values[number] = folded or ("result", number)
            number += 1
        used: set[_Operand | None] = set()
        kept = []
        for step in reversed(code):
            if step.result in used or step.name in _MAY_FAIL or step.launch:
                used.update(step.operands)
                kept.append(step)
        return [*reversed(kept), Step("return", 1, None)]

    def _fold(self, op: Op, number: int, operands: list[_Operand]) -> _Operand | None:
        if any(kind != "constant" for kind, _ in operands):
            return None
        scratch = [0] * len(self._types)
        for value, (_, pattern) in zip(op.operands, operands, strict=True):
            scratch[value] = pattern
        try:
            op_step(op, number, self._types)(scratch, [])
        except PlanError:
            return None
        return ("constant", scratch[number])

    def _branching(self, values: dict[int, _Operand]) -> tuple[list[Step], dict[int, int]]:
        """Several blocks, as they are; with the place where each starts."""
        blocks = self._plan.blocks
        total = len(self._types)
        values |= {n: ("result", n) for n in range(total) if n not in values}
        params: list[list[_Operand]] = []
        number = len(self._plan.inputs)
        for block in blocks:
            params.append([values[number + i] for i in range(len(block.params))])
            number += len(block.params) + sum(isinstance(item, Op) for item in block.body)
        code: list[Step] = []
        starts = {}
        number = len(self._plan.inputs)
        edges = len(blocks)  # a branch that gives arguments goes through a block of its own
        pending: list[tuple[int, list[_Operand], int]] = []
        for index, block in enumerate(blocks):
            starts[index] = len(code)
            number += len(block.params)
            for item in block.body:
                if isinstance(item, Launch):
                    code.append(_launch(item, values))
                    continue
                code.append(self._op(item, number, [values[v] for v in item.operands]))
                number += 1
            targets = []
            for branch in block.end.branches:
                if branch.args:
                    pending.append((edges, [values[v] for v in branch.args], branch.target))
                    targets.append(edges)
                    edges += 1
                else:
                    targets.append(branch.target)
            if block.end.condition is not None:
                end = Step("branch", 1, None, values[block.end.condition])
            else:
                end = Step("jump" if targets else "return", 1, None)
            end.targets = tuple(targets)
            code.append(end)
        for edge, args, target in pending:
            starts[edge] = len(code)
            # All are read before any is written.
            spare: list[_Operand] = [("result", total + i) for i in range(len(args))]
            copies = [*zip(spare, args, strict=True), *zip(params[target], spare, strict=True)]
            code += [Step("copy", 64, to, source) for to, source in copies]
            end = Step("jump", 1, None)
            end.targets = (target,)
            code.append(end)
        return code, starts

    def _op(self, op: Op, number: int, operands: list[_Operand]) -> Step:
        result: _Operand = ("result", number)
        if op.name == "const":
            return Step("copy", 64, result, ("constant", op.constant))
        if op.name in ("zext", "trunc"):
            return Step("mask", TYPE_BITS[op.type], result, *operands)
        bits = TYPE_BITS[self._types[op.operands[0]]]
        if op.name == "sext":
            mask: _Operand = ("constant", (1 << TYPE_BITS[op.type]) - 1)
            return Step("sext", bits, result, *operands, _ZERO, mask)
        return Step(op.name, bits, result, *operands)

    def _encode(
        self, code: list[Step], starts: Mapping[int, int], inputs: int, *, clear: bool
    ) -> Program | None:
        constants: dict[_Operand, int] = {}
        results: dict[_Operand, int] = {}
        for step in code:
            # The constant arguments of a launch are packed, not looked up.
            looked_up = step.operands[: _LEAVES if step.launch else None]
            for operand in looked_up:
                if operand[0] == "constant":
                    constants.setdefault(operand, inputs + len(constants))
        first = inputs + len(constants)
        for step in code:
            for value in (step.result, *step.operands):
                if value is not None and value[0] == "result":
                    results.setdefault(value, first + len(results))
        if max(first + len(results), len(code)) >= _NUMBERS:
            return None

        def place(operand: _Operand) -> int:
            if operand[0] == "input":
                return operand[1]
            return constants.get(operand, 0) if operand[0] == "constant" else results[operand]

        encoded = []
        sites: list[Site] = []
        for step in code:
            fields = [place(operand) for operand in step.operands]
            if step.launch is not None:
                sites.append(self._site(step, step.launch, fields))
                fields = [len(sites) - 1]
            fields += [starts[target] for target in step.targets]
            result = 0 if step.result is None else place(step.result)
            numbers = [result, *fields, 0, 0, 0][:4]
            encoded.append(_ENCODED.pack(_OPCODES[step.name], step.bits, *numbers))
        return (
            inputs,
            tuple(value for _, value in constants),
            first + len(results),
            clear,
            b"".join(encoded),
            tuple(sites),
        )

    def _site(self, step: Step, launch: Launch, places: list[int]) -> Site:
        """What the native code knows of one launch: constant arguments are packed already."""
        function = self._kernels[launch.kernel][0]
        _, layout, max_workgroup, leaves = self.described(step)
        kernarg = bytearray(layout.size)
        stores: list[tuple[int, ...]] = []
        for number, (offset, size, (kind, pattern)) in enumerate(leaves):
            if kind == "constant":
                kernarg[offset : offset + size] = pattern.to_bytes(size, "little")
            else:
                stores.append((offset, size, places[_LEAVES + number]))
        grid, block, (lds, stream) = places[:3], places[3:6], places[6:8]
        return (
            *(function, launch.kernel, max_workgroup, tuple(grid), tuple(block), lds, stream),
            *(bytes(kernarg), tuple(stores)),
        )


def _launch(launch: Launch, values: Mapping[int, _Operand]) -> Step:
    """A launch with its operands: grid, block, LDS, stream, and the leaves of its arguments."""
    lds = _ZERO if launch.lds is None else values.get(launch.lds, _ZERO)
    dimensions = [values.get(v, _ZERO) for v in (*launch.grid, *launch.block)]
    leaves = [values.get(v, _ZERO) for leaves in launch.args for v in leaves]
    stream = values.get(launch.stream, _ZERO)
    step = Step("launch", 1, None, *dimensions, lds, stream, *leaves)
    step.launch = launch
    return step
