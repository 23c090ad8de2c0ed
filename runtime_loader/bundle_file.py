"""A `.flybundle` file, mapped: sections, lookups and blobs, each checked before it is believed.

docs/format.md specifies the file. Opening costs the same whatever the number of entries. Nothing
is locked or written, and the file may be replaced by renaming while it is open.
"""

from __future__ import annotations

import mmap
import os
import stat

from runtime_loader.blobs import Blobs, Content
from runtime_loader.checked import Fields, parse_json
from runtime_loader.errors import BundleError
from runtime_loader.format import (
    ANNEX,
    DICTIONARIES,
    HEADER,
    INDEX,
    KNOWN_SECTIONS,
    MAGIC,
    MAJOR,
    MAX_BLOB,
    MAX_META,
    MAX_SECTIONS,
    META,
    MINOR,
    REQUIRED,
    SECTION,
    SECTION_ENTRY_SIZE,
    STAGES,
    TABLES,
    Ref,
    bundle_id,
    header_check,
)
from runtime_loader.tree import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Literal


class BundleFile:
    """An open bundle. `id` is its SHA-256 in hex, `size` the size of the file in bytes."""

    def __init__(self, path: str, mapped: mmap.mmap) -> None:
        self.path = path
        self.size = len(mapped)
        self._map = mapped
        self._data = memoryview(mapped)
        self.sections: dict[bytes, tuple[int, Ref]] = {}
        identity = self._read_header()
        self.id = identity.hex()
        start = HEADER.size + len(self.sections) * SECTION_ENTRY_SIZE
        self.blobs = Blobs(self._data, start, path, self._dictionary_ref, mapped.size)
        self.index = self._tree(INDEX)
        self.dictionaries = self._tree(DICTIONARIES)
        self.tables = self._tree(TABLES) if TABLES in self.sections else None
        self.stages = self._tree(STAGES) if STAGES in self.sections else None

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, verify: Literal["use", "open"] = "use"
    ) -> BundleFile:
        """Map the bundle at `path`.

        With `verify="use"` each blob is checked when it is first used, with `"open"` everything
        is checked now. Raises `BundleError` when there is no such file, or it is no bundle that
        this version can read.
        """
        path = os.fspath(path)
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise BundleError(f"{path} is not a file; a bundle is one .flybundle file")
            with open(path, "rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise BundleError(f"{path}: there is no such bundle") from None
        except OSError as error:
            raise BundleError(f"{path} cannot be read: {error.strerror or error}") from None
        except ValueError:
            raise BundleError(f"{path} is not a flybundle: it is empty") from None
        bundle = cls(path, mapped)
        if verify == "open":
            bundle.verify()
        return bundle

    @property
    def meta(self) -> dict[str, Any]:
        """Name, provenance and counts of the bundle, as the build recorded them."""
        content = self.blobs.read(self.sections[META][1], MAX_META, "its description")
        what = f"{self.path}: its description"
        value = parse_json(bytes(content), what)
        Fields(value, what)
        return dict(value)

    def find(self, key: bytes) -> bytes | None:
        """The record of `key`, or None."""
        return self.index.find(key)

    def scan(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Keys that start with `prefix`, and their records, in the order of the keys."""
        return _starting(prefix, self.index)

    def keys(self, prefix: bytes = b"") -> Iterator[bytes]:
        """Keys that start with `prefix`, in order."""
        return (key for key, _ in self.scan(prefix))

    def next_key(self, at_least: bytes) -> bytes | None:
        """The first key that is not below `at_least`, or None."""
        return self.index.first(at_least)

    def blob(
        self,
        ref: Ref,
        limit: int = MAX_BLOB,
        what: str = "a code object",
        *,
        copied: bool = False,
    ) -> Content:
        """The content of a blob of at most `limit` bytes, decoded and checked.

        Stored raw, it is a view of the mapped file unless `copied`; such a view keeps the mapping
        alive.
        """
        return self.blobs.read(ref, min(limit, MAX_BLOB), what, copied)

    @property
    def has_stages(self) -> bool:
        return self.stages is not None

    def stage_names(self, key: bytes) -> list[str]:
        """The stages that the bundle has of the specialisation `key`, in pipeline order."""
        return [name for name, _ in self._stage_refs(key)]

    def stage(self, key: bytes, name: str) -> str | None:
        """The text of one stage, or None when the bundle does not have it."""
        for found, ref in self._stage_refs(key):
            if found == name:
                what = f"stage {name}"
                try:
                    return bytes(self.blob(ref, MAX_BLOB, what)).decode()
                except UnicodeDecodeError:
                    raise self.blobs.damaged(what, "it is not UTF-8 text") from None
        return None

    def verify(self) -> None:
        """Read and check everything in the file. Raises `BundleError`."""
        from runtime_loader.verify import verify_bundle

        verify_bundle(self)

    def close(self) -> None:
        """Unmap the file, or leave that to the last view of it that is still in use."""
        for tree in (self.index, self.dictionaries, self.tables, self.stages):
            if tree is not None:
                tree.forget()
        self.blobs.close()
        try:
            self._map.close()
        except BufferError:
            return

    def is_zero(self, start: int, end: int) -> bool:
        """Whether the bytes of the file from `start` to `end` are all zero."""
        step = 1 << 20
        return not any(
            bytes(self._data[at : min(at + step, end)]).strip(b"\0")
            for at in range(start, end, step)
        )

    def _read_header(self) -> bytes:
        """Fill `sections` and return the id; the order of the checks is that of docs/format.md."""
        if bytes(self._data[: len(MAGIC)]) != MAGIC:
            raise BundleError(f"{self.path} is not a flybundle: it starts with other bytes")
        if self.size < HEADER.size:
            raise self._damaged(f"it ends after {self.size} bytes, within its header")
        header = bytes(self._data[: HEADER.size])
        _, major, minor, count, size, check, identity = HEADER.unpack(header)
        if major != MAJOR:
            raise BundleError(
                f"{self.path} has format version {major}.{minor}, and this version of flyc reads "
                f"{MAJOR}.{MINOR}. Use the flyc that built it, or build it again with this one."
            )
        if size != self.size:
            raise self._damaged(f"it is {self.size} bytes long and says that it has {size}")
        end = HEADER.size + count * SECTION_ENTRY_SIZE
        if count > MAX_SECTIONS or end > self.size:
            raise self._damaged(f"it names {count} sections")
        table = bytes(self._data[HEADER.size : end])
        if header_check(header, table) != check:
            raise self._damaged("its header does not match its own checksum")
        listed: list[tuple[bytes, int, Ref]] = []
        for at in range(0, len(table), SECTION_ENTRY_SIZE):
            padded, flags, _ = SECTION.unpack_from(table, at)
            listed.append((padded.rstrip(b"\0"), flags, Ref.unpack(table, at + SECTION.size)))
        if bundle_id(major, listed) != identity:
            raise self._damaged("its sections do not match its id")
        for name, flags, ref in listed:
            if name in self.sections:
                raise self._damaged(f"it has two sections {name!r}")
            if flags & REQUIRED and name not in KNOWN_SECTIONS:
                raise BundleError(
                    f"{self.path} needs section {name!r}, which this version of flyc (format "
                    f"{MAJOR}.{MINOR}) does not know. Use a newer flyc."
                )
            self.sections[name] = flags, ref
        for name in (META, INDEX, DICTIONARIES):
            if name not in self.sections:
                raise self._damaged(f"it has no section {name!r}")
            if self.sections[name][0] & ANNEX:
                raise self._damaged(f"section {name!r} is outside of its id")
        return bytes(identity)

    def _tree(self, section: bytes) -> Tree:
        return Tree(self.blobs, self.sections[section][1], section.decode(), self.size)

    def _dictionary_ref(self, number: int) -> Ref:
        what = f"dictionary {number}"
        value = self.dictionaries.find(number.to_bytes(4, "big"))
        if value is None:
            raise self.blobs.damaged(what, "the bundle does not have it")
        return self.blobs.parse_ref(value, what)

    def _stage_refs(self, key: bytes) -> Iterator[tuple[str, Ref]]:
        if self.stages is None:
            return
        prefix = key + b"\0"
        for found, value in _starting(prefix, self.stages):
            name = found[len(prefix) :].decode("ascii", "replace").partition(" ")[2]
            yield name, self.blobs.parse_ref(value, f"stage {name}")

    def _damaged(self, why: str) -> BundleError:
        return BundleError(f"{self.path} is damaged: {why}. Copy it again or rebuild it.")


def _starting(prefix: bytes, tree: Tree) -> Iterator[tuple[bytes, bytes]]:
    for key, value in tree.items(prefix):
        if not key.startswith(prefix):
            return
        yield key, value
