"""What a failed build reports: which specialisations, at which stage, why, and the source line."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flyc_cli.builder.supervisor import Failed
from flyc_cli.bundle_writer import WrittenBundle
from flyc_cli.text import counted, first_few
from runtime_loader.errors import FlycError

_PLACES_SHOWN = 4


class BuildError(FlycError):
    """At least one specialisation did not compile, so there is no bundle.

    `failures` has them in the order of the manifest; `asked` is how many were wanted.
    `is_bad_input`: all of them because the manifest and the kernel modules disagree.
    """

    def __init__(self, failures: Sequence[Failed], asked: int) -> None:
        self.failures = tuple(failures)
        self.asked = asked
        self.is_bad_input = all(failed.kind == "input" for failed in failures)
        super().__init__("\n".join([*_report(failures), self.summary()]))

    def summary(self) -> str:
        """The last line: how many failed."""
        return (
            f"{len(self.failures):,} of {counted(self.asked, 'specialisation')} failed to compile; "
            "nothing was written"
        )


class IncompleteError(BuildError):
    """Configurations of tuned kernels did not compile; the bundle `written` has all the others."""

    def __init__(self, failures: Sequence[Failed], asked: int, written: WrittenBundle) -> None:
        self.written = written
        super().__init__(failures, asked)
        self.is_bad_input = False

    def summary(self) -> str:
        return (
            f"{len(self.failures):,} of {counted(self.asked, 'specialisation')} failed to compile, "
            f"all of them configurations of tuned kernels; {self.written.path} has the others"
        )


class OverBudgetError(BuildError):
    """Everything compiled, and some of it takes more than the manifest's budgets let it."""

    def summary(self) -> str:
        return (
            f"{len(self.failures):,} of {counted(self.asked, 'specialisation')} take more than "
            "their budget; nothing was written"
        )


class MissingWarning(UserWarning):
    """Specialisations did not compile, and the bundle was written without them as allowed."""


def missing_text(failures: Sequence[Failed], path: Path) -> str:
    """What failed and is missing from the bundle at `path`."""
    missing = counted(len(failures), "specialisation")
    return "\n".join([*_report(failures), f"{missing} missing from {path}, as allowed"])


def failure_json(failed: Failed) -> dict[str, Any]:
    """One failure as `--json` reports it."""
    return {
        "kernel": failed.request.kernel,
        "params": failed.request.params,
        "target": str(failed.request.target),
        "manifest": str(failed.request.where),
        "kind": failed.kind,
        "stage": failed.stage,
        "message": failed.message,
        "source": [
            {"file": file, "line": line, "text": _source_text(file, line)}
            for file, line in failed.source
        ],
    }


def _report(failures: Sequence[Failed]) -> list[str]:
    """A paragraph for each distinct failure; those that only repeat it are listed with it."""
    groups: dict[tuple[Any, ...], list[Failed]] = {}
    for failed in failures:
        key = (failed.kind, failed.stage, failed.message, failed.source)
        groups.setdefault(key, []).append(failed)
    return [line for group in groups.values() for line in _paragraph(group)]


def _paragraph(group: Sequence[Failed]) -> list[str]:
    failed = group[0]
    what = "exceeds its budget" if failed.kind == "budget" else f"failed at stage {failed.stage}"
    lines = [f"{failed.request.label()} {what}"]
    if len(group) > 1:
        also = first_few((other.request.label() for other in group[1:]), 4)
        lines.append(f"  and so did {also}")
    lines += [f"  {line}" for line in failed.message.splitlines()]
    for file, line in failed.source[:_PLACES_SHOWN]:
        lines.append(f"  {_short(file)}:{line}")
        text = _source_text(file, line)
        if text:
            lines.append(f"      {text}")
    lines.append(f"  listed at {failed.request.where}")
    return lines


def _source_text(file: str, line: int) -> str:
    return linecache.getline(file, line).strip()


def _short(file: str) -> str:
    """A path below the working directory without the part that everyone knows."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except ValueError:
        return file
