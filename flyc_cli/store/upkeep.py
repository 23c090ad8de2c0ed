"""Looking after a store: what it holds, whether it is sound, and making it smaller.

Any of this may run while others build: a file that goes is a miss for them, and is built again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flyc_cli.store.files import Store

# A file that a writer left aside for longer was left by one that died.
_ABANDONED_SECONDS = 3600


@dataclass(frozen=True)
class Stats:
    """Numbers of files, and their sizes in bytes. `oldest` is seconds since the least recent use,
    to within a few hours; None for an empty store."""

    root: Path
    records: int
    record_bytes: int
    blobs: int
    blob_bytes: int
    oldest: float | None


@dataclass(frozen=True)
class Verified:
    """How many files were read, and those that were damaged, which are gone now."""

    checked: int
    damaged: tuple[Path, ...]


@dataclass(frozen=True)
class Pruned:
    """How many files were removed, and how many bytes; and the bytes that are left."""

    removed: int
    freed: int
    left: int


@dataclass(frozen=True)
class _File:
    path: Path
    size: int
    used: float


def stats(store: Store) -> Stats:
    """Count what `store` holds."""
    records, blobs = list(_files(store, "records")), list(_files(store, "blobs"))
    used = [file.used for file in (*records, *blobs)]
    return Stats(
        store.root,
        len(records),
        sum(file.size for file in records),
        len(blobs),
        sum(file.size for file in blobs),
        max(0.0, time.time() - min(used)) if used else None,
    )


def verify(store: Store) -> Verified:
    """Read everything; what is damaged is removed, and will be built again."""
    damaged = []
    checked = 0
    for kind, read in (("records", store.record), ("blobs", store.blob)):
        for file in _files(store, kind):
            checked += 1
            misplaced = file.path.parent.name != file.path.name[:2]
            if misplaced or read(file.path.name) is None:
                damaged.append(file.path)
                _remove(file.path)
    return Verified(checked, tuple(damaged))


def prune(store: Store, *, max_size: int | None = None, max_age: float | None = None) -> Pruned:
    """Remove what was not used for `max_age` seconds, then the least recently used until no more
    than `max_size` bytes are left. A time of use in the future counts as now."""
    now = time.time()
    for file in _files(store, "aside"):
        if now - file.used > _ABANDONED_SECONDS:
            _remove(file.path)
    files = sorted((*_files(store, "records"), *_files(store, "blobs")), key=lambda f: f.used)
    left = sum(file.size for file in files)
    removed = freed = 0
    for file in files:
        too_old = max_age is not None and now - file.used > max_age
        if not too_old and (max_size is None or left <= max_size):
            continue
        _remove(file.path)
        removed, freed, left = removed + 1, freed + file.size, left - file.size
    return Pruned(removed, freed, left)


def _files(store: Store, kind: str) -> Iterator[_File]:
    for path in sorted((store.root / kind).rglob("*")):
        try:
            if path.is_file():
                status = path.stat()
                yield _File(path, status.st_size, status.st_mtime)
        except OSError:
            continue  # another process removed it


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
