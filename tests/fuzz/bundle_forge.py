"""Forged bundles: whatever nodes, Refs and sections one likes, with hashes that hold.

Flipping bytes only ever meets the hash checks; a forged file gets past them, to the checks of
structure behind.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from runtime_loader.bundle_file import BundleFile
from runtime_loader.format import (
    ALIGNMENT,
    HEADER,
    MAGIC,
    MAJOR,
    NO_DICTIONARY,
    NODE,
    NODE_ENTRY,
    NODE_MAGIC,
    RAW,
    SECTION,
    SECTION_ENTRY_SIZE,
    Ref,
    bundle_id,
    header_check,
)

Entries = list[tuple[bytes, bytes]]


def node(level: int, entries: Entries) -> bytes:
    """The content of one node."""
    at = NODE.size + len(entries) * NODE_ENTRY.size
    table, heap = [NODE.pack(NODE_MAGIC, level, len(entries), 0)], []
    for key, value in entries:
        table.append(NODE_ENTRY.pack(at, len(key), at + len(key), len(value)))
        heap += [key, value]
        at += len(key) + len(value)
    return b"".join(table + heap)


class Forge:
    """A bundle in memory: starts as a copy of `path`, or empty with room for 8 sections."""

    def __init__(self, path: Path | None = None) -> None:
        self.sections: dict[bytes, tuple[int, Ref]] = {}
        self.data = bytearray(HEADER.size + 8 * SECTION_ENTRY_SIZE)
        if path is not None:
            bundle = BundleFile.open(path)
            self.sections = dict(bundle.sections)
            self.data = bytearray(path.read_bytes())

    def blob(
        self,
        stored: bytes,
        content: bytes | None = None,
        codec: int = RAW,
        dictionary: int = NO_DICTIONARY,
    ) -> Ref:
        """Append a blob; `content` (by default `stored`) is what it claims to decode to."""
        content = stored if content is None else content
        self.data += bytes(-len(self.data) % ALIGNMENT)
        offset = len(self.data)
        self.data += stored
        digest = hashlib.sha256(content).digest()
        return Ref(offset, len(stored), len(content), digest, codec, dictionary)

    def node(self, level: int, entries: Entries) -> Ref:
        return self.blob(node(level, entries))

    def seal(self, major: int = MAJOR, minor: int = 0, size: int | None = None) -> bytes:
        """The file, with an honest id and check unless the arguments say otherwise."""
        self.data += bytes(-len(self.data) % ALIGNMENT)
        listed = [(name, flags, ref) for name, (flags, ref) in self.sections.items()]
        table = b"".join(SECTION.pack(name, flags, 0) + ref.pack() for name, flags, ref in listed)
        size = len(self.data) if size is None else size
        identity = bundle_id(major, listed)
        blank = HEADER.pack(MAGIC, major, minor, len(listed), size, bytes(8), identity)
        check = header_check(blank, table)
        header = HEADER.pack(MAGIC, major, minor, len(listed), size, check, identity)
        self.data[: len(header) + len(table)] = header + table
        return bytes(self.data)
