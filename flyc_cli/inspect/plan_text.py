"""The launch plan in readable form, in the manner of LLVM IR.

Inputs are called after the argument that they come from (`%x.shape[0]`), constants stand where
they are used, and everything else has its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from runtime_loader.binding import slot_names
from runtime_loader.plan import TYPE_BITS, Block, Branch, Launch, LaunchPlan, Op
from runtime_loader.specialisation import Specialisation


def plan_text(spec: Specialisation) -> str:
    """The whole plan of a specialisation, one op, launch or branch a line."""
    return "\n".join(_Printer(spec).lines())


def argument_values(spec: Specialisation, kernel: int) -> list[str]:
    """What the plan puts into each parameter of a kernel, at its first launch."""
    printer = _Printer(spec)
    for launch in spec.plan.launches():
        if launch.kernel == kernel:
            return printer.arguments(launch)
    return []


class _Printer:
    def __init__(self, spec: Specialisation) -> None:
        self._spec = spec
        self._plan: LaunchPlan = spec.plan
        self._types = spec.plan.value_types()
        self._names = [f"%{name}" for form in spec.signature for name in slot_names(form)]
        self._names += [f"%{number}" for number in range(len(self._names), len(self._types))]
        for number, op in _numbered(spec.plan):
            if op.name == "const":
                self._names[number] = _constant(op)

    def lines(self) -> Iterator[str]:
        number = len(self._plan.inputs)
        for index, block in enumerate(self._plan.blocks):
            if index:
                params = self._typed(range(number, number + len(block.params)))
                yield f"block {index}({', '.join(params)}):"
            number += len(block.params)
            for item in block.body:
                if isinstance(item, Launch):
                    yield f"  {self._launch(item)}"
                    continue
                if item.name != "const":
                    yield f"  %{number} = {self._op(item)}"
                number += 1
            yield f"  {self._end(block)}"

    def arguments(self, launch: Launch) -> list[str]:
        return [
            self._names[leaves[0]] if len(leaves) == 1 else f"{{{self._list(leaves)}}}"
            for leaves in launch.args
        ]

    def _op(self, op: Op) -> str:
        if op.name in ("sext", "zext", "trunc"):
            (operand,) = self._typed(op.operands)
            return f"{op.name} {operand} to {op.type}"
        if op.name == "select":
            return f"select {', '.join(self._typed(op.operands))}"
        kind = op.type
        if op.name.startswith("icmp"):
            kind = self._types[op.operands[0]]
        return f"{op.name.replace('.', ' ')} {kind} {self._list(op.operands)}"

    def _launch(self, launch: Launch) -> str:
        parts = [
            f"launch {self._spec.kernels[launch.kernel].symbol}",
            f"grid({self._list(launch.grid)})",
            f"block({self._list(launch.block)})",
        ]
        if launch.cluster is not None:
            parts.append(f"cluster({self._list(launch.cluster)})")
        if launch.lds is not None:
            parts.append(f"lds({self._names[launch.lds]})")
        if launch.cooperative:
            parts.append("cooperative")
        parts.append(f"stream({self._names[launch.stream]})")
        parts.append(f"args({', '.join(self.arguments(launch))})")
        return " ".join(parts)

    def _end(self, block: Block) -> str:
        targets = [self._branch(branch) for branch in block.end.branches]
        if not targets:
            return "return"
        if block.end.condition is None:
            return f"go to {targets[0]}"
        return f"if {self._names[block.end.condition]} go to {targets[0]} else {targets[1]}"

    def _branch(self, branch: Branch) -> str:
        return f"block {branch.target}({self._list(branch.args)})"

    def _list(self, values: Sequence[int]) -> str:
        return ", ".join(self._names[value] for value in values)

    def _typed(self, values: Sequence[int]) -> list[str]:
        return [f"{self._types[value]} {self._names[value]}" for value in values]


def _numbered(plan: LaunchPlan) -> Iterator[tuple[int, Op]]:
    number = len(plan.inputs)
    for block in plan.blocks:
        number += len(block.params)
        for item in block.body:
            if isinstance(item, Op):
                yield number, item
                number += 1


def _constant(op: Op) -> str:
    """The constant as people write it: signed, `true`, `null`, or bits for a float."""
    if op.type == "i1":
        return "true" if op.constant else "false"
    if op.type == "ptr":
        return f"{op.constant:#x}" if op.constant else "null"
    bits = TYPE_BITS[op.type]
    if op.type[0] != "i":
        return f"{op.type}:{op.constant:#0{bits // 4 + 2}x}"
    return str(op.constant - (1 << bits) if op.constant >> (bits - 1) else op.constant)
