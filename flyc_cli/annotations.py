"""What CI services show beside the source: GitHub's commands, GitLab's code quality report."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flyc_cli.builder.report import write_json
from flyc_cli.output import show

if TYPE_CHECKING:
    from flyc_cli.builder.outcomes import Failed

GITLAB_REPORT = "gl-code-quality-report.json"


def annotate(failures: Sequence[Failed], directory: Path, *, quiet: bool) -> None:
    """Tell the service that this runs on, if it is one of these, of failures, or that there are
    none: GitHub on stdout unless `quiet`, GitLab in a file in `directory`. Raises `OSError`."""
    if os.environ.get("GITHUB_ACTIONS") == "true" and not quiet:
        for line in github_lines(failures):
            show(line)
    if os.environ.get("GITLAB_CI") == "true":
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / GITLAB_REPORT, gitlab_report(failures))


def github_lines(failures: Sequence[Failed]) -> Iterator[str]:
    """A workflow command for each failure (GitHub's "Workflow commands": `::error`)."""
    for failed in failures:
        file, line = _place(failed)
        title = _escaped(failed.request.label()).replace(":", "%3A").replace(",", "%2C")
        path = _escaped(file).replace(":", "%3A").replace(",", "%2C")
        yield f"::error file={path},line={line},title={title}::{_escaped(failed.message)}"


def gitlab_report(failures: Sequence[Failed]) -> list[dict[str, Any]]:
    """GitLab's code quality format: one issue for each failure."""
    issues = []
    for failed in failures:
        file, line = _place(failed)
        text = f"{failed.request.label()}: {failed.message}"
        issues.append(
            {
                "description": text,
                "check_name": f"flyc-{failed.kind}",
                "fingerprint": hashlib.sha256(json.dumps([file, text]).encode()).hexdigest(),
                "severity": "blocker",
                "location": {"path": file, "lines": {"begin": line}},
            }
        )
    return issues


def _place(failed: Failed) -> tuple[str, int]:
    """The author's line, or else that of the manifest; below the working directory if it is."""
    where = failed.request.where
    file, line = failed.source[0] if failed.source else (where.file, where.line)
    try:
        return str(Path(file).resolve().relative_to(Path.cwd())), line
    except ValueError:
        return file, line


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
