"""Keeps what native code prints on stderr: LLVM reports some failures there and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType


class StderrLog:
    """While entered, file descriptor 2 goes to the file at `path`; `text()` reads it back.

    The file outlives an aborted process, so that a supervisor can show its tail.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._saved = -1

    def __enter__(self) -> StderrLog:
        self._saved = os.dup(2)
        target = os.open(self._path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        os.dup2(target, 2)
        os.close(target)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.dup2(self._saved, 2)
        os.close(self._saved)

    def text(self) -> str:
        """Everything that was printed so far."""
        return self._path.read_text(encoding="utf-8", errors="replace")

    def errors(self) -> list[str]:
        """The lines that report an error, as LLVM and MLIR word them (`error: ...`)."""
        return [line.strip() for line in self.text().splitlines() if "error:" in line]
