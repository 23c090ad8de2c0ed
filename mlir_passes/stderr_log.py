"""Keeps what is printed during a compile: LLVM reports some failures on stderr and nowhere else."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType


class StderrLog:
    """While entered, stdout and stderr go to the file at `path`; `text()` reads it back.

    Stdout too: it belongs to the command that compiles, not to a kernel module that prints.
    The file outlives an aborted process, so that a supervisor can show its tail.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._saved: list[int] = []
        self._start = 0

    def __enter__(self) -> StderrLog:
        self._saved = [os.dup(1), os.dup(2)]
        target = os.open(self._path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        os.dup2(target, 1)
        os.dup2(target, 2)
        os.close(target)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _flush()
        for descriptor, saved in enumerate(self._saved, start=1):
            os.dup2(saved, descriptor)
            os.close(saved)

    def forget(self) -> None:
        """Leave what was printed so far (by the kernel's author) out of `text` and `errors`."""
        _flush()
        self._start = self._path.stat().st_size

    def text(self) -> str:
        """Everything that was printed since the start, or since `forget`."""
        return self._path.read_bytes()[self._start :].decode(errors="replace")

    def errors(self) -> list[str]:
        """The lines that report an error, as LLVM and MLIR word them (`error: ...`)."""
        return [line.strip() for line in self.text().splitlines() if "error:" in line]


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
