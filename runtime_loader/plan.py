"""The launch plan: what a launcher does at run time, as data that can be checked and evaluated.

A plan is a control-flow graph of basic blocks over typed scalar values. Every value is a bit
pattern: integers wrap at their width, pointers are 64-bit integers, floats are carried and never
computed with. Values are numbered in order of definition: the inputs (the host slots of the
signature), then, block by block, its parameters and the result of each of its ops. A value that
was not yet defined on the path taken reads as zero.

Semantics follow the LLVM Language Reference; what it leaves undefined (division by zero,
`INT_MIN / -1`, a shift by the width or more) is an error here.
"""

from __future__ import annotations

from runtime_loader.checked import Fields, check_integer
from runtime_loader.errors import BundleError
from runtime_loader.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Bits of each value type.
TYPE_BITS: dict[str, int] = {
    "i1": 1,
    "i8": 8,
    "i16": 16,
    "i32": 32,
    "i64": 64,
    "ptr": 64,
    "f16": 16,
    "bf16": 16,
    "f32": 32,
    "f64": 64,
}

ARITHMETIC = ("add", "sub", "mul", "and", "or", "xor", "shl", "lshr", "ashr")
DIVISION = ("sdiv", "udiv", "srem", "urem")
EXTREMA = ("smin", "smax", "umin", "umax")
COMPARISON = tuple(
    f"icmp.{p}" for p in ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
)
CONVERSION = ("sext", "zext", "trunc")

# Number of operands of each op. `const` carries its bit pattern instead of operands; a `cast`
# between pointers and integers is a zext or trunc; pointer arithmetic is an `add` of type ptr.
ARITY: dict[str, int] = {
    "const": 0,
    "select": 3,
    **dict.fromkeys(CONVERSION, 1),
    **dict.fromkeys((*ARITHMETIC, *DIVISION, *EXTREMA, *COMPARISON), 2),
}

# Ops and launches that one evaluation may execute before a loop counts as endless.
STEP_LIMIT = 1_000_000
_MAX_VALUES = 1 << 16


@dataclass(frozen=True)
class Op:
    """One integer operation. `type` is its result type, `operands` are value numbers."""

    name: str
    type: str
    operands: tuple[int, ...] = ()
    constant: int = 0

    def to_json(self) -> list[Any]:
        return [self.name, self.type, *([self.constant] if self.name == "const" else self.operands)]


@dataclass(frozen=True)
class Launch:
    """One kernel launch; every field but `kernel` holds value numbers.

    `kernel` is an index into the specialisation's kernels. `grid` counts workgroups, `block`
    workitems; both are truncated to 32 bits. `lds` is dynamic LDS in bytes (i32). `args` has, for
    each kernel parameter, the scalars that fill it back to back without padding.
    """

    kernel: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    stream: int
    args: tuple[tuple[int, ...], ...]
    lds: int | None = None
    cluster: tuple[int, int, int] | None = None
    cooperative: bool = False

    def to_json(self) -> dict[str, Any]:
        record: dict[str, Any] = {
            "kernel": self.kernel,
            "grid": list(self.grid),
            "block": list(self.block),
            "stream": self.stream,
            "args": [list(leaves) for leaves in self.args],
        }
        if self.lds is not None:
            record["lds"] = self.lds
        if self.cluster is not None:
            record["cluster"] = list(self.cluster)
        if self.cooperative:
            record["cooperative"] = True
        return record


@dataclass(frozen=True)
class Branch:
    """Go to block `target`, giving its parameters `args`."""

    target: int
    args: tuple[int, ...] = ()


@dataclass(frozen=True)
class End:
    """How a block ends: return (no branches), a jump (one), or a choice on `condition` (two)."""

    condition: int | None = None
    branches: tuple[Branch, ...] = ()

    def to_json(self) -> list[Any]:
        targets = [[branch.target, *branch.args] for branch in self.branches]
        return targets if self.condition is None else [self.condition, *targets]


@dataclass(frozen=True)
class Block:
    """A basic block: parameter types, ops and launches in order, and where to go next."""

    params: tuple[str, ...]
    body: tuple[Op | Launch, ...]
    end: End

    def to_json(self) -> dict[str, Any]:
        return {
            "params": list(self.params),
            "body": [item.to_json() for item in self.body],
            "end": self.end.to_json(),
        }


@dataclass(frozen=True)
class LaunchPlan:
    """A whole plan; `inputs` are the slot types, block 0 is the entry."""

    inputs: tuple[str, ...]
    blocks: tuple[Block, ...]

    def value_types(self) -> list[str]:
        """The type of every value, by number."""
        types = list(self.inputs)
        for block in self.blocks:
            types.extend(block.params)
            types.extend(item.type for item in block.body if isinstance(item, Op))
        return types

    def launches(self) -> list[Launch]:
        return [i for block in self.blocks for i in block.body if isinstance(i, Launch)]

    def to_json(self) -> dict[str, Any]:
        return {
            "inputs": list(self.inputs),
            "blocks": [block.to_json() for block in self.blocks],
        }

    @classmethod
    def read(cls, fields: Fields) -> LaunchPlan:
        """Decode and check a plan: types, arities, and that every number names something."""
        inputs = _types(fields.items("inputs"), fields.what)
        plan = cls(inputs, fields.objects("blocks", _read_block))
        check_plan(plan, fields.what)
        return plan


def check_plan(plan: LaunchPlan, what: str) -> None:
    """Raise `BundleError` unless every op is well typed and every reference is in range."""
    types = plan.value_types()
    if not plan.blocks or plan.blocks[0].params:
        raise BundleError(f"{what}: the plan has no entry block without parameters")
    if len(types) > _MAX_VALUES:
        raise BundleError(f"{what}: the plan has more than {_MAX_VALUES} values")

    def type_of(value: int) -> str:
        if not 0 <= value < len(types):
            raise BundleError(f"{what}: value {value} does not exist")
        return types[value]

    for block in plan.blocks:
        for item in block.body:
            if isinstance(item, Op):
                _check_op(item, [type_of(v) for v in item.operands], what)
            else:
                _check_launch(item, type_of, what)
        _check_end(block.end, plan, type_of, what)


def _check_op(op: Op, operands: list[str], what: str) -> None:
    bad = BundleError(f"{what}: {op.name} to {op.type} cannot take ({', '.join(operands)})")
    if len(operands) != ARITY[op.name]:
        raise bad
    integers = [t for t in operands if t[0] in "ip"]
    if op.name == "const":
        if not 0 <= op.constant < 1 << TYPE_BITS[op.type]:
            raise BundleError(f"{what}: constant {op.constant} does not fit {op.type}")
    elif op.name == "select":
        if operands != ["i1", op.type, op.type]:
            raise bad
    elif len(integers) != len(operands) or op.type[0] not in "ip":
        raise bad
    elif op.name in COMPARISON:
        if op.type != "i1" or TYPE_BITS[operands[0]] != TYPE_BITS[operands[1]]:
            raise bad
    elif op.name in CONVERSION:
        widens = TYPE_BITS[op.type] - TYPE_BITS[operands[0]]
        if (op.name == "trunc" and widens > 0) or (op.name != "trunc" and widens < 0):
            raise bad
    elif any(TYPE_BITS[t] != TYPE_BITS[op.type] for t in operands):
        raise bad


def _check_launch(launch: Launch, type_of: Any, what: str) -> None:
    for value in (*launch.grid, *launch.block, *(launch.cluster or ())):
        if type_of(value)[0] != "i":
            raise BundleError(f"{what}: a launch dimension is {type_of(value)}, not an integer")
    if type_of(launch.stream) != "ptr":
        raise BundleError(f"{what}: the stream of a launch is not a pointer")
    if launch.lds is not None and type_of(launch.lds) != "i32":
        raise BundleError(f"{what}: the LDS size of a launch is not i32")
    for leaves in launch.args:
        for value in leaves:
            type_of(value)


def _check_end(end: End, plan: LaunchPlan, type_of: Any, what: str) -> None:
    if end.condition is not None and type_of(end.condition) != "i1":
        raise BundleError(f"{what}: a branch condition is not i1")
    if len(end.branches) != (2 if end.condition is not None else min(len(end.branches), 1)):
        raise BundleError(f"{what}: a block ends in {len(end.branches)} branches")
    for branch in end.branches:
        if not 0 < branch.target < len(plan.blocks):
            raise BundleError(f"{what}: a branch goes to block {branch.target}")
        wanted = plan.blocks[branch.target].params
        if tuple(type_of(v) for v in branch.args) != wanted:
            raise BundleError(f"{what}: a branch to block {branch.target} has the wrong arguments")


def _read_block(fields: Fields) -> Block:
    return Block(
        params=_types(fields.items("params"), fields.what),
        body=tuple(_read_item(item, fields.what) for item in fields.items("body")),
        end=_read_end(fields.items("end"), fields.what),
    )


def _read_item(item: object, what: str) -> Op | Launch:
    if isinstance(item, dict):
        return _read_launch(Fields(item, f"{what}: launch"))
    if not isinstance(item, list) or len(item) < 2 or not isinstance(item[0], str):
        raise BundleError(f"{what}: {item!r:.60} is neither an op nor a launch")
    name, type_, *rest = item
    if name not in ARITY:
        raise BundleError(f"{what}: unknown op {name!r:.40}")
    (checked,) = _types([type_], what)
    if name == "const":
        constant = check_integer(rest[0] if len(rest) == 1 else None, 0, 2**64 - 1, what)
        return Op(name, checked, constant=constant)
    return Op(name, checked, _values(rest, what))


def _read_launch(fields: Fields) -> Launch:
    lds = fields.optional("lds")
    cluster = fields.optional("cluster")
    return Launch(
        kernel=fields.integer("kernel", 0, 255),
        grid=_three(fields.items("grid"), fields.what),
        block=_three(fields.items("block"), fields.what),
        stream=fields.integer("stream", 0, _MAX_VALUES),
        args=tuple(
            _values(leaves if isinstance(leaves, list) else [None], fields.what)
            for leaves in fields.items("args")
        ),
        lds=None if lds is None else fields.integer("lds", 0, _MAX_VALUES),
        cluster=None if cluster is None else _three(fields.items("cluster"), fields.what),
        cooperative=fields.flag("cooperative"),
    )


def _read_end(items: list[Any], what: str) -> End:
    condition = None
    if items and not isinstance(items[0], list):
        condition = check_integer(items[0], 0, _MAX_VALUES, what)
        items = items[1:]
    branches = []
    for item in items:
        if not isinstance(item, list) or not item:
            raise BundleError(f"{what}: {item!r:.40} is not a branch")
        target, *args = _values(item, what)
        branches.append(Branch(target, tuple(args)))
    return End(condition, tuple(branches))


def _values(items: list[Any], what: str) -> tuple[int, ...]:
    return tuple(check_integer(v, 0, _MAX_VALUES, what) for v in items)


def _three(items: list[Any], what: str) -> tuple[int, int, int]:
    if len(items) != 3:
        raise BundleError(f"{what}: {len(items)} dimensions where 3 belong")
    x, y, z = _values(items, what)
    return x, y, z


def _types(items: list[Any], what: str) -> tuple[str, ...]:
    for item in items:
        if not isinstance(item, str) or item not in TYPE_BITS:
            raise BundleError(f"{what}: {item!r:.40} is not a value type")
    return tuple(items)
