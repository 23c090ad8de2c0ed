"""Turns the lowered host function into a launch plan; whatever has no place in one is refused.

The host function is what FlyDSL's pipeline leaves of a launcher: LLVM dialect plus
`gpu.launch_func`. Aggregates are taken apart here, so that a plan holds scalars only.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flydsl._mlir import ir
from flydsl._mlir.dialects import llvm

from mlir_passes.errors import LoweringError, source_lines
from runtime_loader.errors import BundleError
from runtime_loader.plan import (
    ARITHMETIC,
    DIVISION,
    EXTREMA,
    TYPE_BITS,
    Block,
    Branch,
    End,
    Launch,
    LaunchPlan,
    Op,
    check_plan,
)
from runtime_loader.records import replace

STAGE = "launch-plan"

_BINARY = {
    **{f"llvm.{name}": name for name in (*ARITHMETIC, *DIVISION)},
    **{f"llvm.intr.{name}": name for name in EXTREMA},
}
_CONVERSIONS = {
    "llvm.sext": "sext",
    "llvm.zext": "zext",
    "llvm.trunc": "trunc",
    "llvm.ptrtoint": "trunc",
    "llvm.inttoptr": "zext",
}
_IDENTITIES = ("llvm.bitcast", "llvm.freeze", "llvm.addrspacecast")
_ZEROS = ("llvm.mlir.undef", "llvm.mlir.poison", "llvm.mlir.zero")
_MEMORY = ("llvm.load", "llvm.store", "llvm.alloca", "llvm.atomicrmw", "llvm.intr.memcpy")
# `llvm.icmp`'s predicate attribute, in the order of LLVM's ICmpPredicate enumeration in MLIR.
_PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")

# A value of the host function: the numbers of the scalars that make it up, in order.
Leaves = tuple[int, ...]


def host_function(module: Any) -> Any:
    """The one host function of a lowered module."""
    functions = [
        op
        for op in module.body.operations
        if op.operation.name == "llvm.func" and len(op.regions[0].blocks)
    ]
    if len(functions) != 1:
        raise LoweringError(STAGE, f"the module has {len(functions)} host functions, not one")
    return functions[0]


def extract_launch_plan(module: Any, symbols: Sequence[str]) -> LaunchPlan:
    """Build the plan of a lowered module's host function.

    `symbols` gives the kernels in the order that `Launch.kernel` counts them. Raises
    `LoweringError` with the source line of the first operation that a plan cannot hold.
    """
    plan = _Builder({symbol: index for index, symbol in enumerate(symbols)}).build(
        host_function(module)
    )
    try:
        check_plan(plan, "the extracted plan")
    except BundleError as error:
        raise LoweringError(STAGE, str(error)) from None
    return plan


def host_launches(module: Any) -> list[Any]:
    """The `gpu.launch_func` operations of the host function, in order."""
    return [
        op
        for block in _reachable_blocks(host_function(module))
        for op in block.operations
        if op.operation.name == "gpu.launch_func"
    ]


def launched_symbols(module: Any) -> list[str]:
    """The kernels that the host function launches, each once, in order of first launch."""
    return list(dict.fromkeys(kernel_symbol(launch) for launch in host_launches(module)))


def kernel_symbol(launch: Any) -> str:
    """The symbol of the kernel that a `gpu.launch_func` launches."""
    return str(ir.SymbolRefAttr(launch.attributes["kernel"]).value[-1])


@dataclass
class _Builder:
    kernels: dict[str, int]
    types: list[str] = field(default_factory=list)
    values: dict[Any, Leaves] = field(default_factory=dict)

    def build(self, function: Any) -> LaunchPlan:
        blocks = _reachable_blocks(function)
        index = {block: number for number, block in enumerate(blocks)}
        inputs: list[str] = []
        for argument in blocks[0].arguments:
            inputs.extend(self._define(argument, None))
        drafts = []
        for number, block in enumerate(blocks):
            params: list[str] = []
            if number:
                for argument in block.arguments:
                    params.extend(self._define(argument, None))
            body: list[Op | Launch] = []
            *ops, terminator = block.operations
            for op in ops:
                self._visit(op, body)
            drafts.append(Block(tuple(params), tuple(body), self._end(terminator, index)))
        return _without_dead_values(LaunchPlan(tuple(inputs), tuple(drafts)))

    def _define(self, value: Any, place: Any) -> list[str]:
        """Number the scalars of a value that the plan receives from outside."""
        types = scalars_of(value.type, place)
        first = len(self.types)
        self.types.extend(types)
        self.values[value] = tuple(range(first, first + len(types)))
        return types

    def _emit(self, body: list[Op | Launch], op: Op) -> int:
        body.append(op)
        self.types.append(op.type)
        return len(self.types) - 1

    def _scalar(self, value: Any) -> int:
        (leaf,) = self.values[value]
        return leaf

    def _visit(self, op: Any, body: list[Op | Launch]) -> None:
        name = op.operation.name
        operands = list(op.operands)
        if name == "gpu.launch_func":
            body.append(self._launch(op, body))
            return
        if name == "llvm.mlir.constant" or name in _ZEROS:
            bits = 0 if name in _ZEROS else _constant_bits(op)
            leaves = [
                self._emit(body, Op("const", type_, constant=bits))
                for type_ in scalars_of(op.result.type, op)
            ]
            self.values[op.result] = tuple(leaves)
        elif name == "llvm.extractvalue":
            start, count = _leaf_range(operands[0].type, _position(op), op)
            self.values[op.result] = self.values[operands[0]][start : start + count]
        elif name == "llvm.insertvalue":
            start, count = _leaf_range(operands[0].type, _position(op), op)
            whole = self.values[operands[0]]
            part = self.values[operands[1]]
            self.values[op.result] = whole[:start] + part + whole[start + count :]
        elif name in _IDENTITIES and scalars_of(op.result.type, op) == scalars_of(
            operands[0].type, op
        ):
            self.values[op.result] = self.values[operands[0]]
        elif name == "llvm.getelementptr":
            self.values[op.result] = (self._element_pointer(op, body),)
        else:
            numbers = tuple(self._scalar(operand) for operand in operands)
            made = Op(_op_name(op), _scalar_type(op.result.type, op), numbers)
            self.values[op.result] = (self._emit(body, made),)

    def _element_pointer(self, op: Any, body: list[Op | Launch]) -> int:
        """Byte arithmetic for a getelementptr over an array of scalars."""
        base, *dynamic = op.operands
        indices = list(ir.DenseI32ArrayAttr(op.attributes["rawConstantIndices"]))
        element = ir.TypeAttr(op.attributes["elem_type"]).value
        size = _size_of(element, op)
        if len(indices) != 1:
            raise _refusal(op, "pointer arithmetic into a struct or a nested array")
        if dynamic:
            index = self._scalar(dynamic[0])
            if self.types[index] != "i64":
                index = self._emit(body, Op("sext", "i64", (index,)))
        else:
            index = self._constant(body, indices[0])
        offset = self._emit(body, Op("mul", "i64", (index, self._constant(body, size))))
        return self._emit(body, Op("add", "ptr", (self._scalar(base), offset)))

    def _constant(self, body: list[Op | Launch], value: int) -> int:
        return self._emit(body, Op("const", "i64", constant=value & (1 << 64) - 1))

    def _launch(self, op: Any, body: list[Op | Launch]) -> Launch:
        launch = op.opview
        if launch.asyncObject is None:
            raise _refusal(
                op, "a launch without a stream, which waits for the kernel (pass stream= to launch)"
            )
        cluster = (launch.clusterSizeX, launch.clusterSizeY, launch.clusterSizeZ)
        lds = launch.dynamicSharedMemorySize
        return Launch(
            kernel=self.kernels[kernel_symbol(op)],
            grid=self._dimensions(launch.gridSizeX, launch.gridSizeY, launch.gridSizeZ),
            block=self._dimensions(launch.blockSizeX, launch.blockSizeY, launch.blockSizeZ),
            stream=self._scalar(launch.asyncObject),
            args=tuple(self.values[operand] for operand in launch.kernelOperands),
            lds=None if lds is None else self._scalar(lds),
            cluster=None if cluster[0] is None else self._dimensions(*cluster),
            cooperative="cooperative" in op.attributes,
        )

    def _dimensions(self, x: Any, y: Any, z: Any) -> tuple[int, int, int]:
        return self._scalar(x), self._scalar(y), self._scalar(z)

    def _end(self, op: Any, index: dict[Any, int]) -> End:
        name = op.operation.name
        if name == "llvm.return":
            return End()
        targets = [index[block] for block in op.operation.successors]
        operands = list(op.operands)
        if name == "llvm.br":
            return End(None, (Branch(targets[0], self._arguments(operands)),))
        if name == "llvm.cond_br":
            sizes = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
            first = operands[1 : 1 + sizes[1]]
            second = operands[1 + sizes[1] :]
            return End(
                self._scalar(operands[0]),
                (
                    Branch(targets[0], self._arguments(first)),
                    Branch(targets[1], self._arguments(second)),
                ),
            )
        raise _refusal(op, _deed(op))

    def _arguments(self, operands: list[Any]) -> Leaves:
        return tuple(leaf for operand in operands for leaf in self.values[operand])


def _reachable_blocks(function: Any) -> list[Any]:
    """The blocks that control can reach, each after all that dominate it (reverse postorder)."""
    entry = function.regions[0].blocks[0]
    finished: list[Any] = []
    seen = {entry}
    pending = [(entry, iter(_successors(entry)))]
    while pending:
        block, successors = pending[-1]
        unseen = next((s for s in successors if s not in seen), None)
        if unseen is None:
            finished.append(block)
            pending.pop()
        else:
            seen.add(unseen)
            pending.append((unseen, iter(_successors(unseen))))
    return finished[::-1]


def _successors(block: Any) -> list[Any]:
    """Last first, so that reverse postorder keeps the order in which they are written."""
    return list(block.operations[len(block.operations) - 1].operation.successors)[::-1]


def _without_dead_values(plan: LaunchPlan) -> LaunchPlan:
    """Drop ops that nothing uses (a dead division must not raise) and renumber the rest."""
    live: set[int] = set()
    for block in plan.blocks:
        for item in block.body:
            if isinstance(item, Launch):
                live.update(_launch_values(item))
        if block.end.condition is not None:
            live.add(block.end.condition)
        for branch in block.end.branches:
            live.update(branch.args)
    numbered = numbered_ops(plan)
    pending = list(live)
    while pending:
        op = numbered.get(pending.pop())
        if op is not None:
            pending.extend(set(op.operands) - live)
            live.update(op.operands)

    renumber: dict[int, int] = {}
    for old in range(len(plan.value_types())):
        if old in live or old not in numbered:
            renumber[old] = len(renumber)
    return _renumbered(plan, renumber)


def numbered_ops(plan: LaunchPlan) -> dict[int, Op]:
    """The op that defines each value, by value number."""
    ops: dict[int, Op] = {}
    number = len(plan.inputs)
    for block in plan.blocks:
        number += len(block.params)
        for item in block.body:
            if isinstance(item, Op):
                ops[number] = item
                number += 1
    return ops


def _renumbered(plan: LaunchPlan, to: dict[int, int]) -> LaunchPlan:
    number = len(plan.inputs)
    blocks = []
    for block in plan.blocks:
        number += len(block.params)
        body: list[Op | Launch] = []
        for item in block.body:
            if isinstance(item, Launch):
                body.append(_renumbered_launch(item, to))
                continue
            if number in to:
                body.append(replace(item, operands=tuple(to[v] for v in item.operands)))
            number += 1
        end = block.end
        branches = tuple(Branch(b.target, tuple(to[v] for v in b.args)) for b in end.branches)
        condition = None if end.condition is None else to[end.condition]
        blocks.append(Block(block.params, tuple(body), End(condition, branches)))
    return LaunchPlan(plan.inputs, tuple(blocks))


def _renumbered_launch(launch: Launch, to: dict[int, int]) -> Launch:
    def three(values: tuple[int, int, int]) -> tuple[int, int, int]:
        x, y, z = values
        return to[x], to[y], to[z]

    return replace(
        launch,
        grid=three(launch.grid),
        block=three(launch.block),
        stream=to[launch.stream],
        args=tuple(tuple(to[v] for v in leaves) for leaves in launch.args),
        lds=None if launch.lds is None else to[launch.lds],
        cluster=None if launch.cluster is None else three(launch.cluster),
    )


def _launch_values(launch: Launch) -> list[int]:
    optional = [*(launch.cluster or ()), *(() if launch.lds is None else (launch.lds,))]
    arguments = [value for leaves in launch.args for value in leaves]
    return [*launch.grid, *launch.block, launch.stream, *optional, *arguments]


def _op_name(op: Any) -> str:
    name = op.operation.name
    if name in _BINARY:
        return _BINARY[name]
    if name in _CONVERSIONS:
        return _CONVERSIONS[name]
    if name == "llvm.select":
        return "select"
    if name == "llvm.icmp":
        return f"icmp.{_PREDICATES[ir.IntegerAttr(op.attributes['predicate']).value]}"
    raise _refusal(op, _deed(op))


def _refusal(op: Any, what: str) -> LoweringError:
    return LoweringError(
        STAGE,
        f"the launcher does what a launch plan cannot hold: {what}. Launchers may compute with "
        "integers and launch kernels; move everything else into the kernel or the caller",
        source_lines(op.operation.location),
    )


def _deed(op: Any) -> str:
    """What an operation that has no place in a plan does, for people."""
    name = op.operation.name
    types = [str(value.type) for value in (*op.operands, *op.results)]
    if name == "llvm.call" and "callee" in op.attributes:
        return f"a call of {op.attributes['callee']}"
    if name == "llvm.mlir.addressof":
        return "the address of host data, as a host printf takes it"
    if name in _MEMORY:
        return f"memory access on the host ({name})"
    if any(type_ in TYPE_BITS and type_[0] not in "ip" for type_ in types):
        return f"floating-point arithmetic on the host ({name})"
    return str(name)


def scalars_of(type_: Any, place: Any) -> list[str]:
    """The scalar types that make up an LLVM type, in order."""
    text = str(type_)
    if text.startswith("!llvm.ptr"):
        return ["ptr"]
    if text in TYPE_BITS:
        return [text]
    fields = struct_fields(type_)
    if fields is None:
        if place is None:
            raise LoweringError(STAGE, f"the launcher has an argument of type {text}")
        raise _refusal(place, f"a value of type {text}")
    return [leaf for field_type in fields for leaf in scalars_of(field_type, place)]


def struct_fields(type_: Any) -> list[Any] | None:
    """The member types of an LLVM struct; None for any other type."""
    return list(type_.body) if isinstance(type_, llvm.StructType) else None


def _scalar_type(type_: Any, op: Any) -> str:
    leaves = scalars_of(type_, op)
    if len(leaves) != 1:
        raise _refusal(op, f"a result of type {type_}")
    return leaves[0]


def _position(op: Any) -> list[int]:
    return list(ir.DenseI64ArrayAttr(op.attributes["position"]))


def _leaf_range(type_: Any, position: list[int], op: Any) -> tuple[int, int]:
    """First leaf and number of leaves of the member at `position` of an aggregate."""
    start = 0
    for index in position:
        fields = struct_fields(type_)
        if fields is None:
            raise _refusal(op, f"a member of type {type_}")
        start += sum(len(scalars_of(field_type, op)) for field_type in fields[:index])
        type_ = fields[index]
    return start, len(scalars_of(type_, op))


def _constant_bits(op: Any) -> int:
    attribute = op.attributes["value"]
    type_ = _scalar_type(op.result.type, op)
    if isinstance(attribute, ir.IntegerAttr | ir.BoolAttr):
        return int(attribute.value) & (1 << TYPE_BITS[type_]) - 1
    if isinstance(attribute, ir.FloatAttr):
        return _float_bits(float(attribute.value), type_, op)
    raise _refusal(op, f"a constant {attribute}")


def _float_bits(value: float, type_: str, op: Any) -> int:
    formats = {"f16": ("<e", "<H"), "f32": ("<f", "<I"), "f64": ("<d", "<Q")}
    if type_ == "bf16":
        return int(struct.unpack("<I", struct.pack("<f", value))[0]) >> 16
    if type_ not in formats:
        raise _refusal(op, f"a constant of type {type_}")
    packed, bits = formats[type_]
    return int(struct.unpack(bits, struct.pack(packed, value))[0])


def _size_of(type_: Any, op: Any) -> int:
    return TYPE_BITS[_scalar_type(type_, op)] // 8 or 1
