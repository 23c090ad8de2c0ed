"""How plans and written bundles look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flyc_cli.output import Column, Table
from flyc_cli.text import assignments, byte_size, counted
from flyc_cli.views.forms import form_text

if TYPE_CHECKING:
    from flyc_cli.builder.build import Planned
    from flyc_cli.bundle_writer import WrittenBundle
    from flyc_cli.manifest import Request


def bundle_line(written: WrittenBundle) -> str:
    """The last line of a build."""
    objects = counted(written.code_objects, "code object")
    return (
        f"  {written.path}   {counted(written.specialisations, 'specialisation')}, "
        f"{counted(written.kernels, 'kernel')}, {objects} (dedup {written.deduplicated}), "
        f"{byte_size(written.size)}"
    )


def written_json(written: WrittenBundle) -> dict[str, Any]:
    """A written bundle as `flyc build --json` reports it."""
    return {
        "bundle": {
            **vars(written),
            "path": str(written.path),
            "link": str(written.link),
        }
    }


def plan_table(requests: Sequence[Request]) -> Table:
    """One row for each specialisation that would be built."""
    names = ("kernel", "parameters", "target", "arguments")
    rows = [
        (
            request.kernel,
            assignments(request.params),
            str(request.target),
            ", ".join(f"{form.name}: {form_text(form)}" for form in request.args),
        )
        for request in requests
    ]
    return Table(tuple(Column(name) for name in names), rows)


def plan_summary(requests: Sequence[Request]) -> str:
    """The line below the table."""
    kernels = len({request.kernel for request in requests})
    targets = len({request.target for request in requests})
    return (
        f"{counted(len(requests), 'specialisation')} of {counted(kernels, 'kernel')} "
        f"for {counted(targets, 'target')}"
    )


def plan_json(planned: Planned) -> dict[str, Any]:
    """A plan as `--json` reports it."""
    return {
        "name": planned.manifest.name,
        "manifest_sha256": planned.manifest.sha256,
        "specialisations": [_request_json(request) for request in planned.requests],
    }


def _request_json(request: Request) -> dict[str, Any]:
    return {
        "kernel": request.kernel,
        "params": request.params,
        "target": str(request.target),
        request.source.kind: str(request.source),
        "arguments": [form.to_json() for form in request.args],
        "hints": request.hints,
        "environment": request.env,
        "where": str(request.where),
    }
