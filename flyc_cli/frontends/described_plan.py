"""The launch plan of a code object, from the launches that a manifest describes."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from flyc_cli.frontends.errors import InputError
from flyc_cli.manifest.launch_expressions import member, parse_launch_expression
from flyc_cli.manifest.model import LaunchSpec
from runtime_loader.plan import TYPE_BITS, Block, End, Launch, LaunchPlan, Op
from runtime_loader.signature import Form, ScalarForm, StreamForm, TensorForm
from runtime_loader.specialisation import KernelEntry, KernelParam

_BINARY = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul"}
_COMPARISONS = {
    ast.Lt: "slt",
    ast.LtE: "sle",
    ast.Gt: "sgt",
    ast.GtE: "sge",
    ast.Eq: "eq",
    ast.NotEq: "ne",
}
_MASK = 2**64 - 1


def describe_plan(
    launches: Sequence[LaunchSpec],
    forms: Sequence[Form],
    params: Mapping[str, Any],
    kernels: Mapping[str, KernelEntry],
) -> LaunchPlan:
    """The plan that does `launches` in order with the arguments `forms`.

    `kernels` are those of the code object by symbol, numbered in order; what a kernel takes by its
    metadata decides the sizes. Raises `InputError` where description and metadata disagree.
    """
    builder = _Builder(forms, params)
    numbers = {symbol: number for number, symbol in enumerate(kernels)}
    body: list[Op | Launch] = builder.body
    for launch in launches:
        entry = kernels[launch.symbol]
        grid, block = builder.three(launch.grid), builder.three(launch.block)
        cluster = None if launch.cluster is None else builder.three(launch.cluster)
        lds = None if launch.lds is None else builder.resized(builder.value(launch.lds), 4)
        args = tuple(
            builder.argument(argument, param, entry.symbol)
            for argument, param in zip(
                builder.arguments(launch, entry), entry.kernarg.params, strict=True
            )
        )
        body.append(
            Launch(
                kernel=numbers[launch.symbol],
                grid=grid,
                block=block,
                stream=builder.stream,
                args=args,
                lds=lds,
                cluster=cluster,
                cooperative=launch.cooperative,
            )
        )
    return LaunchPlan(tuple(builder.inputs), (Block((), tuple(body), End()),))


class _Builder:
    def __init__(self, forms: Sequence[Form], params: Mapping[str, Any]) -> None:
        self._forms = {form.name: form for form in forms}
        self._params = params
        self.inputs: list[str] = []
        self._first: dict[str, int] = {}
        self.stream = 0
        for form in forms:
            self._first[form.name] = len(self.inputs)
            if isinstance(form, StreamForm):
                self.stream = len(self.inputs)
            self.inputs.extend(form.slots())
        self._types = list(self.inputs)
        self.body: list[Op | Launch] = []

    def three(self, sizes: Sequence[str | int]) -> tuple[int, int, int]:
        values = [self.value(size) for size in sizes]
        while len(values) < 3:
            values.append(self._constant(1))
        return values[0], values[1], values[2]

    def value(self, text: str | int) -> int:
        """The number of an expression's value, an i64."""
        return self._emit_tree(parse_launch_expression(text, self._forms, self._params).tree)

    def arguments(self, launch: LaunchSpec, entry: KernelEntry) -> Sequence[Any]:
        """What is passed for each of the kernel's parameters."""
        given = launch.args
        if given is None:
            given = tuple(n for n, form in self._forms.items() if not isinstance(form, StreamForm))
        params = entry.kernarg.params
        if len(given) != len(params):
            takes = ", ".join(f"{p.kind} of {p.size} bytes" for p in params)
            raise InputError(
                f"{entry.symbol} takes {len(params)} arguments by its metadata ({takes}); the "
                f"launch passes {len(given)}"
            )
        return given

    def argument(self, argument: Any, param: KernelParam, symbol: str) -> tuple[int, ...]:
        """The scalars that fill one kernel parameter."""
        if isinstance(argument, tuple):
            values = [self._sized(item) for item in argument]
            size = sum(max(TYPE_BITS[self._types[v]], 8) // 8 for v in values)
            if size != param.size:
                raise InputError(
                    f"{symbol} takes {param.size} bytes at offset {param.offset} by its metadata; "
                    f"the launch passes {size} bytes there"
                )
            return tuple(values)
        if isinstance(argument, dict) or argument in self._forms:
            value = self._sized(argument)
        else:
            value = self.value(argument)
            if param.size in (1, 2, 4, 8):
                value = self.resized(value, param.size)
        type_ = self._types[value]
        if max(TYPE_BITS[type_], 8) // 8 != param.size:
            form = self._forms.get(argument) if isinstance(argument, str) else None
            convertible = isinstance(form, ScalarForm) and form.type[0] in "iu"
            bits = param.size * 8
            hint = (
                f"; write {{i{bits}: {argument}}} to convert it" if f"i{bits}" in TYPE_BITS else ""
            )
            raise InputError(
                f"{symbol} takes {param.size} bytes at offset {param.offset} by its metadata; "
                f"{_shown(argument)} has {max(TYPE_BITS[type_], 8) // 8} bytes"
                f"{hint if convertible else ''}"
            )
        if param.kind == "global_buffer" and type_ != "ptr":
            raise InputError(
                f"{symbol} takes a pointer at offset {param.offset} by its metadata; "
                f"{_shown(argument)} is none"
            )
        return (value,)

    def resized(self, value: int, size: int) -> int:
        """An i64 cut to `size` bytes."""
        return value if size == 8 else self._emit(Op("trunc", f"i{size * 8}", (value,)))

    def _sized(self, item: Any) -> int:
        if isinstance(item, dict):
            ((name, text),) = item.items()
            return self.resized(self.value(text), TYPE_BITS[name] // 8)
        return self._first[item]

    def _emit(self, op: Op) -> int:
        self.body.append(op)
        self._types.append(op.type)
        return len(self._types) - 1

    def _constant(self, value: int) -> int:
        return self._emit(Op("const", "i64", constant=value & _MASK))

    def _op(self, name: str, *operands: int, type_: str = "i64") -> int:
        return self._emit(Op(name, type_, operands))

    def _widened(self, value: int, signed: bool) -> int:
        if TYPE_BITS[self._types[value]] == 64:
            return value
        return self._op("sext" if signed else "zext", value)

    def _name(self, name: str) -> int:
        form = self._forms.get(name)
        if form is None:
            return self._constant(int(self._params[name]))
        assert isinstance(form, ScalarForm)
        return self._widened(self._first[name], signed=form.type[0] == "i" and form.type != "i1")

    def _member(self, name: str, attribute: str, index: int) -> int:
        form = self._forms[name]
        assert isinstance(form, TensorForm)
        extents = getattr(form, attribute)
        if extents[index] >= 0:
            return self._constant(extents[index])
        slot = self._first[name] + 1 + sum(extent < 0 for extent in extents[:index])
        if attribute == "strides":
            slot += sum(extent < 0 for extent in form.shape)
        return self._widened(slot, signed=True)

    def _emit_tree(self, node: ast.expr) -> int:
        found = member(node)
        if found is not None:
            return self._member(*found)
        if isinstance(node, ast.Constant):
            assert isinstance(node.value, int)
            return self._constant(int(node.value))
        if isinstance(node, ast.Name):
            return self._name(node.id)
        if isinstance(node, ast.BinOp):
            left, right = self._emit_tree(node.left), self._emit_tree(node.right)
            if type(node.op) in _BINARY:
                return self._op(_BINARY[type(node.op)], left, right)
            return self._floored(left, right, remainder=isinstance(node.op, ast.Mod))
        if isinstance(node, ast.UnaryOp):
            value = self._emit_tree(node.operand)
            if isinstance(node.op, ast.USub):
                return self._op("sub", self._constant(0), value)
            return self._from_bit(self._is_zero(value)) if isinstance(node.op, ast.Not) else value
        if isinstance(node, ast.Compare):
            left = self._emit_tree(node.left)
            right = self._emit_tree(node.comparators[0])
            return self._from_bit(
                self._op(f"icmp.{_COMPARISONS[type(node.ops[0])]}", left, right, type_="i1")
            )
        if isinstance(node, ast.IfExp):
            test = self._truth(self._emit_tree(node.test))
            return self._op(
                "select", test, self._emit_tree(node.body), self._emit_tree(node.orelse)
            )
        if isinstance(node, ast.BoolOp):
            values = [self._emit_tree(value) for value in node.values]
            result = values[-1]
            for value in reversed(values[:-1]):
                truth = self._truth(value)
                both = (result, value) if isinstance(node.op, ast.And) else (value, result)
                result = self._op("select", truth, *both)
            return result
        assert isinstance(node, ast.Call)
        assert isinstance(node.func, ast.Name)
        first, *rest = (self._emit_tree(argument) for argument in node.args)
        for value in rest:
            first = self._op(f"s{node.func.id}", first, value)
        return first

    def _floored(self, left: int, right: int, *, remainder: bool) -> int:
        """Python's // and %, which round down where the hardware's division rounds to zero."""
        rest = self._op("srem", left, right)
        zero = self._constant(0)
        differ = self._op("icmp.slt", self._op("xor", rest, right), zero, type_="i1")
        inexact = self._op("icmp.ne", rest, zero, type_="i1")
        fix = self._op("and", differ, inexact, type_="i1")
        if remainder:
            return self._op("select", fix, self._op("add", rest, right), rest)
        quotient = self._op("sdiv", left, right)
        lower = self._op("sub", quotient, self._constant(1))
        return self._op("select", fix, lower, quotient)

    def _is_zero(self, value: int) -> int:
        return self._op("icmp.eq", value, self._constant(0), type_="i1")

    def _truth(self, value: int) -> int:
        return self._op("icmp.ne", value, self._constant(0), type_="i1")

    def _from_bit(self, bit: int) -> int:
        return self._op("zext", bit)


def _shown(argument: Any) -> str:
    if isinstance(argument, dict):
        return ", ".join(f"{{{name}: {text}}}" for name, text in argument.items())
    return str(argument)
