"""Compiles a launch plan to a program of the native launcher: constants folded, the rest compact.

A program is straight instructions on 64-bit values (runtime_loader/csrc/program.c). Values are
numbered: the inputs that a call gives, constants, then results. What is undefined, and whatever is
beyond the native code's bounds, is left to `runtime_loader.evaluate`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from runtime_loader.errors import PlanError
from runtime_loader.evaluate import op_step
from runtime_loader.plan import DIVISION, TYPE_BITS, Launch, LaunchPlan, Op
from runtime_loader.specialisation import KernargLayout

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

# (inputs, constants, values, whether results start as zero, instructions, launches): what
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


class _Instruction:
    """One instruction; a launch also has the operands that its fields name."""

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

    def _straight(self, values: dict[int, _Operand]) -> list[_Instruction]:
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
        for instruction in reversed(code):
            if instruction.result in used or instruction.name in _MAY_FAIL or instruction.launch:
                used.update(instruction.operands)
                kept.append(instruction)
        return [*reversed(kept), _Instruction("return", 1, None)]

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

    def _branching(self, values: dict[int, _Operand]) -> tuple[list[_Instruction], dict[int, int]]:
        """Several blocks, as they are; with the place where each starts."""
        blocks = self._plan.blocks
        total = len(self._types)
        values |= {n: ("result", n) for n in range(total) if n not in values}
        params: list[list[_Operand]] = []
        number = len(self._plan.inputs)
        for block in blocks:
            params.append([values[number + i] for i in range(len(block.params))])
            number += len(block.params) + sum(isinstance(item, Op) for item in block.body)
        code: list[_Instruction] = []
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
                end = _Instruction("branch", 1, None, values[block.end.condition])
            else:
                end = _Instruction("jump" if targets else "return", 1, None)
            end.targets = tuple(targets)
            code.append(end)
        for edge, args, target in pending:
            starts[edge] = len(code)
            # All are read before any is written.
            spare: list[_Operand] = [("result", total + i) for i in range(len(args))]
            copies = [*zip(spare, args, strict=True), *zip(params[target], spare, strict=True)]
            code += [_Instruction("copy", 64, to, source) for to, source in copies]
            end = _Instruction("jump", 1, None)
            end.targets = (target,)
            code.append(end)
        return code, starts

    def _op(self, op: Op, number: int, operands: list[_Operand]) -> _Instruction:
        result: _Operand = ("result", number)
        if op.name == "const":
            return _Instruction("copy", 64, result, ("constant", op.constant))
        if op.name in ("zext", "trunc"):
            return _Instruction("mask", TYPE_BITS[op.type], result, *operands)
        bits = TYPE_BITS[self._types[op.operands[0]]]
        if op.name == "sext":
            mask: _Operand = ("constant", (1 << TYPE_BITS[op.type]) - 1)
            return _Instruction("sext", bits, result, *operands, _ZERO, mask)
        return _Instruction(op.name, bits, result, *operands)

    def _encode(
        self, code: list[_Instruction], starts: Mapping[int, int], inputs: int, *, clear: bool
    ) -> Program | None:
        constants: dict[_Operand, int] = {}
        results: dict[_Operand, int] = {}
        for instruction in code:
            # The constant arguments of a launch are packed, not looked up.
            looked_up = instruction.operands[: _LEAVES if instruction.launch else None]
            for operand in looked_up:
                if operand[0] == "constant":
                    constants.setdefault(operand, inputs + len(constants))
        first = inputs + len(constants)
        for instruction in code:
            for value in (instruction.result, *instruction.operands):
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
        for instruction in code:
            fields = [place(operand) for operand in instruction.operands]
            if instruction.launch is not None:
                sites.append(self._site(instruction.launch, instruction.operands, fields))
                fields = [len(sites) - 1]
            fields += [starts[target] for target in instruction.targets]
            result = 0 if instruction.result is None else place(instruction.result)
            numbers = [result, *fields, 0, 0, 0][:4]
            encoded.append(_ENCODED.pack(_OPCODES[instruction.name], instruction.bits, *numbers))
        return (
            inputs,
            tuple(value for _, value in constants),
            first + len(results),
            clear,
            b"".join(encoded),
            tuple(sites),
        )

    def _site(self, launch: Launch, operands: Sequence[_Operand], places: list[int]) -> Site:
        """What the native code knows of one launch: constant arguments are packed already."""
        function, layout, max_workgroup = self._kernels[launch.kernel]
        kernarg = bytearray(layout.size)
        stores: list[tuple[int, ...]] = []
        leaf = _LEAVES
        for leaves, param in zip(launch.args, layout.params, strict=True):
            offset = param.offset
            for value in leaves:
                size = max(TYPE_BITS[self._types[value]], 8) // 8
                kind, pattern = operands[leaf]
                if kind == "constant":
                    kernarg[offset : offset + size] = pattern.to_bytes(size, "little")
                else:
                    stores.append((offset, size, places[leaf]))
                offset += size
                leaf += 1
        grid, block, (lds, stream) = places[:3], places[3:6], places[6:8]
        return (
            *(function, launch.kernel, max_workgroup, tuple(grid), tuple(block), lds, stream),
            *(bytes(kernarg), tuple(stores)),
        )


def _launch(launch: Launch, values: Mapping[int, _Operand]) -> _Instruction:
    """A launch with its operands: grid, block, LDS, stream, and the leaves of its arguments."""
    lds = _ZERO if launch.lds is None else values.get(launch.lds, _ZERO)
    dimensions = [values.get(v, _ZERO) for v in (*launch.grid, *launch.block)]
    leaves = [values.get(v, _ZERO) for leaves in launch.args for v in leaves]
    stream = values.get(launch.stream, _ZERO)
    instruction = _Instruction("launch", 1, None, *dimensions, lds, stream, *leaves)
    instruction.launch = launch
    return instruction
