"""How the answers of `flyc inspect` look."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from flyc_cli.builder.build import Planned
from flyc_cli.inspect.bundle import Entry, Summary
from flyc_cli.inspect.plan_text import argument_values, plan_text
from flyc_cli.inspect.question import (
    Answer,
    Detail,
    DiffAnswer,
    FilesAnswer,
    Listing,
    PlanAnswer,
    StageAnswer,
    StagesAnswer,
    TableAnswer,
)
from flyc_cli.output import Column, Table
from flyc_cli.text import assignments, byte_size, counted, shown_value
from flyc_cli.views.build import plan_json, plan_summary, plan_table
from flyc_cli.views.forms import form_text
from runtime_loader.specialisation import KernelEntry, Resources, Specialisation
from runtime_loader.table import Table as TunedTable

Part = str | Table

_RESOURCE_COLUMNS = (
    *(Column(name, right=True) for name in ("VGPR", "SGPR", "AGPR", "LDS", "scratch")),
    Column("spills", right=True),
    Column("waves/SIMD", right=True),
    Column("workgroup"),
)


def answer_parts(answer: Answer) -> Iterator[Part]:
    """The texts and tables that show an answer, in order."""
    return _parts(answer)


def answer_json(answer: Answer) -> dict[str, Any]:
    """An answer as plain data."""
    return _json(answer)


@functools.singledispatch
def _parts(answer: object) -> Iterator[Part]:
    raise TypeError(answer)


@functools.singledispatch
def _json(answer: object) -> dict[str, Any]:
    raise TypeError(answer)


@_parts.register
def _(answer: Summary) -> Iterator[Part]:
    counts = answer.counts
    yield (
        f"{answer.name} {answer.id[:16]}   {counted(counts['specialisations'], 'specialisation')}, "
        f"{counted(counts['kernels'], 'kernel')}, "
        f"{counted(counts['code_objects'], 'code object')}, {byte_size(answer.size)}"
    )
    facts = [
        ("file", str(answer.path)),
        ("id", answer.id),
        ("targets", " ".join(answer.targets)),
        ("stages", "kept" if answer.has_stages else "not kept"),
        *_flat(answer.provenance),
        *((f"table of {kernel}", _table_text(table)) for kernel, table in answer.tables.items()),
    ]
    width = max(len(name) for name, _ in facts)
    yield "\n".join(f"  {name:{width}}  {text}" for name, text in facts)
    columns = (Column("kernel"), Column("parameters"), Column("targets"))
    rows = [
        (
            record.kernel,
            " ".join(
                f"{name}={shown_value(record.fixed[name])}" if name in record.fixed else name
                for name in record.params
            ),
            " ".join(record.targets),
            str(record.specialisations),
        )
        for record in answer.kernels
    ]
    yield ""
    yield Table((*columns, Column("specialisations", right=True)), rows)


@_json.register
def _(answer: Summary) -> dict[str, Any]:
    return {
        **vars(answer),
        "path": str(answer.path),
        "kernels": [vars(record) for record in answer.kernels],
        "tables": {kernel: _table_json(table) for kernel, table in answer.tables.items()},
    }


@_parts.register
def _(answer: Listing) -> Iterator[Part]:
    record = answer.record
    several = any(len(entry.spec.kernels) > 1 for entry in answer.entries)
    columns = [Column(name) for name in record.params]
    columns += [Column("target"), Column("size", right=True)]
    columns += [Column("symbol")] if several else []
    rows = []
    for entry in answer.entries:
        first = [shown_value(entry.spec.params.get(name, "")) for name in record.params]
        first += [str(entry.spec.target), f"{entry.size:,}"]
        for kernel in entry.spec.kernels:
            symbol = [kernel.symbol] if several else []
            rows.append([*first, *symbol, *_resource_cells(kernel.resources)])
            first = [""] * len(first)
    yield f"{record.kernel}   {counted(len(answer.entries), 'specialisation')}"
    yield Table((*columns, *_RESOURCE_COLUMNS), rows)


@_json.register
def _(answer: Listing) -> dict[str, Any]:
    return {
        "kernel": answer.record.kernel,
        "specialisations": [_entry_json(entry) for entry in answer.entries],
    }


@_parts.register
def _(answer: Planned) -> Iterator[Part]:
    yield plan_table(answer.requests)
    yield f"{plan_summary(answer.requests)}; choose one to compile it and see its stages"


@_json.register
def _(answer: Planned) -> dict[str, Any]:
    return plan_json(answer)


@_parts.register
def _(answer: Detail) -> Iterator[Part]:
    spec = answer.entry.spec
    hints = assignments(spec.hints) or "none"
    yield " ".join(
        filter(None, [spec.kernel, assignments(answer.entry.params), f"for {spec.target}"])
    )
    yield "\n".join(
        [
            f"  launcher     {spec.launcher}",
            f"  hints        {hints}",
            f"  code object  {spec.code_object}",
            f"               {answer.entry.size:,} bytes",
            f"  stages       {', '.join(answer.stages) or 'not kept (build with --stages)'}",
        ]
    )
    yield ""
    yield Table(
        (Column("symbol"), *_RESOURCE_COLUMNS),
        [(kernel.symbol, *_resource_cells(kernel.resources)) for kernel in spec.kernels],
    )
    yield ""
    yield Table(
        (Column("argument"), Column("form"), Column("slots")),
        [(form.name, form_text(form), " ".join(form.slots())) for form in spec.signature],
    )
    for index, kernel in enumerate(spec.kernels):
        yield ""
        yield from _kernarg_parts(spec, index, kernel)
    yield ""
    yield "launch plan"
    yield plan_text(spec)


@_json.register
def _(answer: Detail) -> dict[str, Any]:
    return {
        **_entry_json(answer.entry),
        "signature": [form.to_json() for form in answer.entry.spec.signature],
        "plan": answer.entry.spec.plan.to_json(),
        "plan_text": plan_text(answer.entry.spec),
        "stages": list(answer.stages),
    }


@_parts.register
def _(answer: TableAnswer) -> Iterator[Part]:
    names = list(dict.fromkeys(name for row in answer.rows for name in row.params))
    columns = (Column("target"), *map(Column, (*answer.table.keys, *names)))
    rows = []
    for row in answer.rows:
        keys = [shown_value(row.keys[name]) for name in answer.table.keys]
        params = [shown_value(row.params[name]) if name in row.params else "" for name in names]
        rows.append((row.target, *keys, *params))
    yield f"table of {answer.table.kernel}   {_table_text(answer.table)}"
    yield Table(columns, rows)


@_json.register
def _(answer: TableAnswer) -> dict[str, Any]:
    return {
        "kernel": answer.table.kernel,
        **_table_json(answer.table),
        "found": [vars(row) for row in answer.rows],
    }


@_parts.register
def _(answer: PlanAnswer) -> Iterator[Part]:
    yield plan_text(answer.spec)


@_json.register
def _(answer: PlanAnswer) -> dict[str, Any]:
    return {
        **_name_json(answer.spec),
        "plan": answer.spec.plan.to_json(),
        "plan_text": plan_text(answer.spec),
    }


@_parts.register
def _(answer: StageAnswer) -> Iterator[Part]:
    yield answer.stage.text.rstrip("\n")


@_json.register
def _(answer: StageAnswer) -> dict[str, Any]:
    return {**_name_json(answer.spec), "stage": answer.stage.name, "text": answer.stage.text}


@_parts.register
def _(answer: StagesAnswer) -> Iterator[Part]:
    yield Table(
        (Column("stage"), Column("lines", right=True)),
        [(stage.name, f"{len(stage.text.splitlines()):,}") for stage in answer.stages],
    )


@_json.register
def _(answer: StagesAnswer) -> dict[str, Any]:
    stages = [
        {"name": stage.name, "lines": len(stage.text.splitlines())} for stage in answer.stages
    ]
    return {**_name_json(answer.spec), "stages": stages}


@_parts.register
def _(answer: FilesAnswer) -> Iterator[Part]:
    yield "\n".join(map(str, answer.paths))


@_json.register
def _(answer: FilesAnswer) -> dict[str, Any]:
    return {**_name_json(answer.spec), "files": [str(path) for path in answer.paths]}


@_parts.register
def _(answer: DiffAnswer) -> Iterator[Part]:
    for diff in answer.diffs:
        yield f"== {diff.name}" + ("" if diff.diff else " changed nothing")
        if diff.diff:
            yield diff.diff


@_json.register
def _(answer: DiffAnswer) -> dict[str, Any]:
    return {**_name_json(answer.spec), "diffs": [vars(diff) for diff in answer.diffs]}


def _table_text(table: TunedTable) -> str:
    keys = [f"{name} (nearest)" if name in table.nearest else name for name in table.keys]
    return f"{counted(table.rows, 'row')}, by {', '.join(keys)}"


def _table_json(table: TunedTable) -> dict[str, Any]:
    return {"keys": list(table.keys), "nearest": list(table.nearest), "rows": table.rows}


def _kernarg_parts(spec: Specialisation, index: int, kernel: KernelEntry) -> Iterator[Part]:
    layout = kernel.kernarg
    yield (
        f"kernarg of {kernel.symbol}: {layout.size} bytes of arguments, "
        f"{layout.segment_size} in all"
    )
    values = argument_values(spec, index)
    rows = [
        (str(param.offset), str(param.size), param.kind, value)
        for param, value in zip(layout.params, values, strict=True)
    ]
    right = (Column("offset", right=True), Column("size", right=True))
    yield Table((*right, Column("kind"), Column("value")), rows)


def _resource_cells(resources: Resources) -> list[str]:
    x, y, z = resources.workgroup
    spills = [f"{resources.vgpr_spills} VGPR"] if resources.vgpr_spills else []
    spills += [f"{resources.sgpr_spills} SGPR"] if resources.sgpr_spills else []
    return [
        *(str(count) for count in (resources.vgprs, resources.sgprs, resources.agprs)),
        str(resources.lds),
        str(resources.scratch),
        " ".join(spills) or "0",
        str(resources.waves_per_simd),
        f"{x}x{y}x{z}" if x else f"at most {resources.max_workgroup}",
    ]


def _name_json(spec: Specialisation) -> dict[str, Any]:
    return {"kernel": spec.kernel, "params": spec.params, "target": str(spec.target)}


def _entry_json(entry: Entry) -> dict[str, Any]:
    spec = entry.spec
    return {
        **_name_json(spec),
        "launcher": spec.launcher,
        "hints": spec.hints,
        "code_object": {
            "sha256": spec.code_object,
            "size": entry.size,
            "stored_size": entry.stored_size,
        },
        "kernels": [kernel.to_json() for kernel in spec.kernels],
    }


def _flat(values: Any) -> Iterator[tuple[str, str]]:
    """A provenance mapping, nested names joined: `llvm version`."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from ((f"{name} {inner}", text) for inner, text in _flat(value))
        else:
            yield str(name).replace("_", " "), str(value)
