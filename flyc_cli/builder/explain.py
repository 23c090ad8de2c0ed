"""Which specialisations the store has, and what keeps it from having the others."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from flyc_cli.builder.build import open_artifacts
from flyc_cli.builder.toolchain import open_toolkit
from flyc_cli.inspect.manifest import select
from flyc_cli.store.files import Store
from flyc_cli.store.why import Answer, why
from runtime_loader.target import Target


def explain(
    manifest: Path,
    kernel: str,
    given: Mapping[str, str],
    target: Target | None,
    *,
    rocm: Path | None,
    llvm: Path | None = None,
    storage: Store,
) -> list[Answer]:
    """An answer for each specialisation that fits. Raises `MissError`, or as `plan` does."""
    planned = select(manifest, kernel, given, target)
    with tempfile.TemporaryDirectory(prefix="flyc-toolkit-") as scratch:
        chosen = planned.manifest.toolchain
        toolkit = open_toolkit(rocm or chosen.rocm, Path(scratch), llvm or chosen.llvm)
        artifacts = open_artifacts(storage, toolkit)
        assert artifacts is not None
        return [why(artifacts, request) for request in planned.requests]
