"""Directories for the files of a build while it goes on, which do not outlive it for long.

A build that is killed cannot remove its own; the next one does. The owner of a directory holds a
lock on a file in it for as long as its process lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "flyc-"
_OWNER = ".owner"


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """A new directory below the one for temporary files, removed in the end. Raises `OSError`."""
    _remove_abandoned(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        directory = Path(name)
        aside = directory / f"{_OWNER}.new"
        with aside.open("wb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            aside.rename(directory / _OWNER)  # never there without its lock
            yield directory


def _remove_abandoned(parent: Path) -> None:
    """Remove what builds of this user left that are gone."""
    for directory in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if directory.is_symlink() or directory.stat().st_uid != os.getuid():
                continue
            with (directory / _OWNER).open("rb") as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
