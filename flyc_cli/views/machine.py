"""How the targets, and what a machine can do, look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flyc_cli.output import Column, Table

if TYPE_CHECKING:
    from flyc_cli.doctor import Diagnosis
    from flyc_cli.targets import SupportedTarget

_MARKS = {"ok": "ok", "missing": "MISSING", "note": "-"}


def targets_table(targets: Sequence[SupportedTarget]) -> Table:
    """One row for each target."""
    columns = (Column("target"), Column("architecture"), Column("wavefront", right=True))
    rows = [
        (t.processor, t.architecture, str(t.wavefront), " ".join(t.features) or "none")
        for t in targets
    ]
    return Table((*columns, Column("features")), rows)


def targets_json(targets: Sequence[SupportedTarget]) -> dict[str, Any]:
    """The targets as plain data."""
    return {"targets": [{**vars(t), "features": list(t.features)} for t in targets]}


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """A line for each thing that was looked at, what to do about it, and the verdict."""
    width = max(len(finding.name) for finding in diagnosis.findings)
    lines = []
    for finding in diagnosis.findings:
        detail, *more = finding.detail.splitlines()
        lines.append(f"  {_MARKS[finding.state]:8}{finding.name:{width}}  {detail}")
        lines += [f"{'':{width + 12}}{line}" for line in (*more, *finding.advice.splitlines())]
    lines.append(f"  build: {_verdict(diagnosis.can_build)}; run: {_verdict(diagnosis.can_run)}")
    return "\n".join(lines)


def diagnosis_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """A diagnosis as plain data."""
    return {
        "can_build": diagnosis.can_build,
        "can_run": diagnosis.can_run,
        "findings": [
            {**vars(finding), "needed_for": list(finding.needed_for)}
            for finding in diagnosis.findings
        ],
        "devices": [
            {"ordinal": device.ordinal, "target": str(device.target)}
            for device in diagnosis.devices
        ],
    }


def _verdict(usable: bool) -> str:
    return "ready" if usable else "not possible here"
