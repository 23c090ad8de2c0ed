"""Straight-line Python for one kernel's calls: what the native launcher does, where it is not.

The generated function takes a call's arguments and gives its launches, or None for whatever it
does not recognise or that fails a check: then the general code decides. Its text is made of
numbers that the bundle's reader has checked, and of nothing else from the bundle.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from runtime_loader.element_types import ELEMENT_TYPES
from runtime_loader.program import ProgramCompiler, Step
from runtime_loader.signature import Form, PointerForm, ScalarForm, StreamForm, TensorForm
from runtime_loader.tensor_view import accepted_dtypes, known_dtype_names

# (kernel, (grid, block and LDS), stream, packed arguments) of each launch.
Launches = list[tuple[int, tuple[int, ...], int, bytes]]
_LEAF = {1: "B", 2: "H", 4: "I", 8: "Q"}
_U64 = (1 << 64) - 1
_U32 = (1 << 32) - 1
_INFIX = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
_COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def straight_code(
    signature: Sequence[Form], ordinal: int, compiler: ProgramCompiler
) -> Callable[..., Launches | None] | None:
    """The function for calls with these arguments by position, or None when there can be none."""
    steps = compiler.straight_steps()
    if steps is None:
        return None
    writer = _Writer(ordinal)
    for place, form in enumerate(signature):
        if not writer.argument(form, f"a{place}"):
            return None
    for step in steps:
        if step.launch is not None:
            writer.launch(compiler, step)
        elif step.name != "return":
            writer.op(step)
    optional = isinstance(signature[-1], StreamForm) if signature else False
    parameters = ", ".join(f"a{place}" for place in range(len(signature)))
    parameters += "=None" if optional else ""
    lines = [f"def call({parameters}):", " try:", *(f"  {line}" for line in writer.lines)]
    lines += [f"  return [{', '.join(writer.launches)}]", " except Exception:", "  return None"]
    exec(compile("\n".join(lines), "<launch plan>", "exec"), writer.names)
    made: Callable[..., Launches | None] = writer.names["call"]  # type: ignore[assignment]
    return made


class _Writer:
    """Collects lines; any `return None` in them leaves the call to the general code."""

    def __init__(self, ordinal: int) -> None:
        self.lines: list[str] = []
        self.launches: list[str] = []
        self.names: dict[str, object] = {"dtypes": known_dtype_names, "bits": int.from_bytes}
        self._ordinal = ordinal
        self._inputs = 0

    def argument(self, form: Form, name: str) -> bool:
        if isinstance(form, TensorForm):
            self._tensor(form, name)
        elif isinstance(form, PointerForm):
            self._pointer(form, name)
        elif isinstance(form, StreamForm):
            self._unless(f"{name} is None or type({name}) is int and 0 <= {name} <= {_U64}")
            self._input(f"{name} or 0")
        elif isinstance(form, ScalarForm):
            return self._scalar(form, name)
        else:
            return False
        return True

    def _unless(self, condition: str) -> None:
        self.lines.append(f"if not ({condition}): return None")

    def _input(self, expression: str) -> str:
        name = f"i{self._inputs}"
        self._inputs += 1
        self.lines.append(f"{name} = {expression}")
        return name

    def _memory(self, form: TensorForm | PointerForm, name: str) -> None:
        """That it is torch's manner of tensor, of this type and on this device."""
        accepted = accepted_dtypes(ELEMENT_TYPES[form.dtype])
        # The dtype and the device that passed last: tensors differ in them rarely.
        self.names |= {f"{name}_types": accepted, f"{name}_seen": [None, None]}
        self.lines += [
            f"t, d = {name}.dtype, {name}.device",
            f"if t is not {name}_seen[0] or d != {name}_seen[1]:",
            f" if dtypes[t] not in {name}_types or d.index != {self._ordinal}: return None",
            " if d.type != 'cuda' and d.type != 'hip': return None",
            f" {name}_seen[:] = t, d",
        ]

    def _tensor(self, form: TensorForm, name: str) -> None:
        pointer = f"i{self._inputs}"
        outer, self.lines = self.lines, []
        self._layout(form, name)
        if len(form.slots()) == 1:  # static: a bare address will do
            inner = [f"{pointer} = {name}.data_ptr()", *self.lines]
            bare = [f"if type({name}) is int: {pointer} = {name}", "else:"]
            self.lines = [*bare, *(f" {line}" for line in inner)]
            self._inputs += 1
        else:
            dynamic, self.lines = self.lines, []
            self._input(f"{name}.data_ptr()")
            self.lines += dynamic
        self.lines = [*outer, *self.lines]
        # An empty tensor may be null: the general code knows.
        aligned = f" and not {pointer} % {form.align}" if form.align > 1 else ""
        self._unless(f"0 < {pointer} <= {_U64}{aligned}")
        for axis, wanted in enumerate(form.shape):
            if wanted < 0:
                self._input(f"{name}s{axis}")
        for axis, wanted in enumerate(form.strides):
            if wanted < 0:
                self._input(f"{name}t{axis} & {(1 << form.stride_bits) - 1}")

    def _layout(self, form: TensorForm, name: str) -> None:
        """That extents and strides are as compiled for; leaves them in variables."""
        rank = range(len(form.shape))
        self._memory(form, name)
        extents = [f"{name}s{axis}" for axis in rank]
        strides = [f"{name}t{axis}" for axis in rank]
        if rank:
            self.lines.append(f"{', '.join(extents)}, = {name}.shape")
            self.lines.append(f"{', '.join(strides)}, = {name}.stride()")
        limit = 1 << (form.stride_bits - 1)
        checks = ["True"]
        for extent, wanted in zip(extents, form.shape, strict=True):
            checks.append(f"{extent} == {wanted}" if wanted >= 0 else f"0 < {extent} < {1 << 31}")
            if wanted < -1:
                checks.append(f"not {extent} % {-wanted}")
        for extent, stride, wanted in zip(extents, strides, form.strides, strict=True):
            fits = f"-{limit} <= {stride} < {limit}"
            multiple = f"not {stride} % {-wanted} and " if wanted < -1 else ""
            check = f"{stride} == {wanted}" if wanted >= 0 else f"{multiple}{fits}"
            checks.append(f"({check} or {extent} == 1)")
        self._unless(" and ".join(checks))

    def _pointer(self, form: PointerForm, name: str) -> None:
        self.lines.append(f"if type({name}) is int: p = {name}")
        self.lines.append(f"elif {name} is None: p = 0")
        self.lines.append("else:")
        outer, self.lines = self.lines, []
        self._memory(form, name)
        self.lines.append(f"p = {name}.data_ptr()")
        self.lines = [*outer, *(f" {line}" for line in self.lines)]
        self._unless(f"0 <= p <= {_U64} and not p % {form.align}")
        self._input("p")

    def _scalar(self, form: ScalarForm, name: str) -> bool:
        element = ELEMENT_TYPES[form.type]
        if form.type in ("f32", "f64"):
            self.names[f"{name}_pack"] = struct.Struct("<f" if form.type == "f32" else "<d").pack
            self._unless(f"type({name}) is float")
            self._input(f"bits({name}_pack({name}), 'little')")
        elif element.kind == "bool":
            self._unless(f"{name} is True or {name} is False")
            self._input(f"int({name})")
        elif element.kind == "float":
            return False
        else:
            low = 0 if element.kind == "uint" else -(1 << (element.bits - 1))
            self._unless(f"type({name}) is int and {low} <= {name} < {low + (1 << element.bits)}")
            self._input(f"{name} & {(1 << element.bits) - 1}")
        return True

    def op(self, step: Step) -> None:
        a, b, c = (*map(_operand, step.operands), "", "", "")[:3]
        mask, sign = (1 << step.bits) - 1, 1 << (step.bits - 1)
        kind, _, predicate = step.name.partition(".")
        signed = [f"(({x} ^ {sign}) - {sign})" for x in (a, b)]
        if step.name == "copy":
            value = a
        elif step.name == "select":
            value = f"{b} if {a} else {c}"
        elif step.name == "sext":
            value = f"{signed[0]} & {c}"
        elif step.name == "mask":
            value = f"{a} & {mask}"
        elif kind == "icmp":
            order = _COMPARED[predicate if predicate in _COMPARED else predicate[1:]]
            x, y = signed if predicate[0] == "s" else (a, b)
            value = f"int({x} {order} {y})"
        elif step.name[1:] in ("min", "max"):
            x, y = signed if step.name[0] == "s" else (a, b)
            value = f"{step.name[1:]}({x}, {y}) & {mask}"
        elif step.name in ("shl", "lshr", "ashr"):
            self._unless(f"{b} < {step.bits}")
            shifted = signed[0] if step.name == "ashr" else a
            value = f"({shifted} {'<<' if step.name == 'shl' else '>>'} {b}) & {mask}"
        elif step.name in _INFIX:
            value = f"({a} {_INFIX[step.name]} {b}) & {mask}"
        else:
            value = self._division(step.name, (a, b), signed, sign, mask)
        self.lines.append(f"{_operand(step.result or step.operands[0])} = {value}")

    def _division(
        self, name: str, plain: tuple[str, str], signed: list[str], sign: int, mask: int
    ) -> str:
        """Towards zero; Python's rounds down, so magnitudes are divided."""
        self._unless(plain[1])
        if name[0] == "u":
            return f"{plain[0]} {'//' if name == 'udiv' else '%'} {plain[1]}"
        x, y = signed
        self._unless(f"{plain[0]} != {sign} or {plain[1]} != {mask}")
        if name == "srem":
            return f"(abs({x}) % abs({y}) if {x} >= 0 else -(abs({x}) % abs({y}))) & {mask}"
        return f"({x} // {y} if ({x} < 0) == ({y} < 0) else -(-{x} // {y})) & {mask}"

    def launch(self, compiler: ProgramCompiler, step: Step) -> None:
        kernel, layout, max_workgroup, leaves = compiler.described(step)
        dimensions = [_operand(operand, _U32) for operand in step.operands[:7]]
        stream = _operand(step.operands[7])
        number = len(self.launches)
        names = [f"n{number}_{n}" for n in range(6)]
        self.lines.append(f"{', '.join(names)} = {', '.join(dimensions[:6])}")
        self._unless(f"{' and '.join(names)} and {' * '.join(names[3:])} <= {max_workgroup}")
        code, end = "<", 0
        for offset, width, _ in leaves:
            code += f"{offset - end}x{_LEAF[width]}"
            end = offset + width
        self.names[f"pack{number}"] = struct.Struct(f"{code}{layout.size - end}x").pack
        values = ", ".join(_operand(operand) for _, _, operand in leaves)
        size = f"({', '.join(names)}, {dimensions[6]})"
        self.launches.append(f"({kernel}, {size}, {stream}, pack{number}({values}))")


def _operand(operand: tuple[str, int], mask: int | None = None) -> str:
    kind, number = operand
    if kind == "constant":
        return str(number if mask is None else number & mask)
    name = f"{'i' if kind == 'input' else 'v'}{number}"
    return name if mask is None else f"{name} & {mask}"
