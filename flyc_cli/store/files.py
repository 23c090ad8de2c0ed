"""A directory of immutable, content-addressed blobs and small records, safe for many builders.

`blobs/ab/abcd…` holds the bytes with that SHA-256; `records/ab/abcd…` holds a small value under a
key (64 hex digits) after one line of text that names the key and the value's SHA-256. Nothing is
ever locked: a writer writes a file of its own in `aside/` and renames it, a reader checks what it
reads. What is damaged is removed and counts as absent.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_MAGIC = b"flyc-record-1"
# A file that is used says so in its modification time, this often, for `prune`.
_TOUCH_AFTER = 6 * 3600


class Storage(Protocol):
    """Where blobs and records are kept. Reads never raise; writes raise `OSError`."""

    def blob(self, sha256: str) -> bytes | None:
        """The bytes with this SHA-256 (hex), checked; None if they are not there."""

    def put_blob(self, data: bytes) -> str:
        """Keep `data`; returns its SHA-256 (hex)."""

    def record(self, key: str) -> bytes | None:
        """The value last kept under `key` (64 hex digits), checked; None if there is none."""

    def put_record(self, key: str, value: bytes) -> None:
        """Keep a small value under `key`, in place of what was there."""


@dataclass(frozen=True)
class Store:
    """A `Storage` in the directory `root`, which is made when something is first kept."""

    root: Path

    def blob(self, sha256: str) -> bytes | None:
        path = self._place("blobs", sha256)
        data = _read(path)
        if data is not None and hashlib.sha256(data).hexdigest() != sha256:
            _remove(path)
            return None
        return data

    def put_blob(self, data: bytes) -> str:
        sha256 = hashlib.sha256(data).hexdigest()
        path = self.blob_path(sha256)
        # Whoever is here already may be damaged; then it is worth writing again.
        if self.blob(sha256) is None:
            self._publish(path, data)
        return sha256

    def record(self, key: str) -> bytes | None:
        path = self._place("records", key)
        data = _read(path)
        value = None if data is None else checked_record(key, data)
        if data is not None and value is None:
            _remove(path)
        return value

    def put_record(self, key: str, value: bytes) -> None:
        self._publish(self.record_path(key), encoded_record(key, value))

    def blob_path(self, sha256: str) -> Path:
        return self.root / "blobs" / sha256[:2] / sha256

    def record_path(self, key: str) -> Path:
        return self.root / "records" / key[:2] / key

    def _place(self, kind: str, name: str) -> str:
        """A path as text: a thousand of pathlib's take longer than reading the files."""
        return f"{self.root}/{kind}/{name[:2]}/{name}"

    def _publish(self, path: Path, data: bytes) -> None:
        aside = self.root / "aside"
        aside.mkdir(parents=True, exist_ok=True)
        mine = aside / secrets.token_hex(16)
        try:
            mine.write_bytes(data)
            path.parent.mkdir(parents=True, exist_ok=True)
            mine.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                mine.unlink()
            raise


def default_directory() -> Path | None:
    """`$FLYC_CACHE_DIR`, or `flyc` in the user's cache directory (XDG Base Directory
    Specification); None where there is no home."""
    chosen = os.environ.get("FLYC_CACHE_DIR")
    if chosen:
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME", "")
    if Path(home).is_absolute():
        return Path(home) / "flyc"
    try:
        return Path.home() / ".cache" / "flyc"
    except RuntimeError:
        return None


def store_at(directory: str | os.PathLike[str] | None) -> Store | None:
    """The store in `directory`, or else in the default place; None where there is no home."""
    root = default_directory() if directory is None else Path(directory)
    return None if root is None else Store(root)


def encoded_record(key: str, value: bytes) -> bytes:
    """A record as it is kept, with what tells that it is whole and the one of `key`."""
    head = b" ".join([_MAGIC, key.encode(), hashlib.sha256(value).hexdigest().encode()])
    return head + b"\n" + value


def checked_record(key: str, data: bytes) -> bytes | None:
    """The value of an encoded record; None if it is not that of `key`, or damaged."""
    _, _, value = data.partition(b"\n")
    return value if encoded_record(key, value) == data else None


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            data = file.read()
            age = time.time() - os.fstat(file.fileno()).st_mtime
    except OSError:
        return None
    if age > _TOUCH_AFTER:
        with contextlib.suppress(OSError):
            os.utime(path)
    return data


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)  # noqa: PTH108
