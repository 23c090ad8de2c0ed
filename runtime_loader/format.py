"""The `.flybundle` layout: constants and fixed records that reader and writer share.

docs/format.md is the specification; this module is its transcription.
"""

from __future__ import annotations

import struct

from runtime_loader.digest import sha256
from runtime_loader.errors import BundleError
from runtime_loader.records import dataclass

MAGIC = b"\x93FLYBNDL"
MAJOR, MINOR = 1, 0
ALIGNMENT = 64

HEADER = struct.Struct("<8sHHIQ8s32s")  # magic, major, minor, sections, file size, check, id
SECTION = struct.Struct("<8sII")  # name, flags, zero; a REF follows
REF = struct.Struct("<QQQ32sII")  # offset, stored size, size, sha256, codec, dictionary
NODE = struct.Struct("<4sHHQ")  # magic, level, entries, zero
NODE_ENTRY = struct.Struct("<IIII")  # key offset in the node, key size, value offset, value size
NODE_MAGIC = b"FBTN"

SECTION_ENTRY_SIZE = SECTION.size + REF.size

META, INDEX, DICTIONARIES, TABLES, STAGES = b"meta", b"index", b"dicts", b"tables", b"stages"
SIGNATURES = b"sigs"
KNOWN_SECTIONS = frozenset((META, INDEX, DICTIONARIES, TABLES, STAGES, SIGNATURES))

REQUIRED = 1  # a reader that does not know this section must refuse the bundle
ANNEX = 2  # not covered by the bundle's id; of these the loader reads only signatures

# Codecs: the content itself; one zstd frame; a part of a dictionary's content.
RAW, ZSTD, SLICE = 0, 1, 2
NO_DICTIONARY = 0xFFFFFFFF

MAX_SECTIONS = 64
MAX_BLOB = 1 << 28  # bytes of a code object or a stage
MAX_META = 1 << 24
MAX_NODE = 1 << 22
MAX_DICTIONARY = 1 << 22
MAX_SIGNATURES = 1 << 16
MAX_LEVELS = 8


@dataclass(frozen=True)
class Ref:
    """Where a blob is and what it must be: the only way that anything in a bundle is reached.

    `offset` and `stored_size` are the bytes in the file, or for a SLICE in the content of its
    dictionary; `size` and `sha256` are of the content after decoding with `codec` and the
    dictionary of that number.
    """

    offset: int
    stored_size: int
    size: int
    sha256: bytes
    codec: int = RAW
    dictionary: int = NO_DICTIONARY

    def pack(self) -> bytes:
        return REF.pack(
            self.offset, self.stored_size, self.size, self.sha256, self.codec, self.dictionary
        )

    @classmethod
    def unpack(cls, data: bytes | memoryview, offset: int = 0) -> Ref:
        return cls(*REF.unpack_from(data, offset))

    def to_json(self) -> list[int | str]:
        return [
            *(self.offset, self.stored_size, self.size),
            *(self.sha256.hex(), self.codec, self.dictionary),
        ]

    @classmethod
    def from_json(cls, value: object, what: str) -> Ref:
        if (
            not isinstance(value, list)
            or [type(item) for item in value] != [int, int, int, str, int, int]
            or min(item for item in value if isinstance(item, int)) < 0
            or len(value[3]) != 64
        ):
            raise BundleError(f"{what}: {value!r:.60} is not a blob reference")
        try:
            ref = cls(value[0], value[1], value[2], bytes.fromhex(value[3]), value[4], value[5])
            return cls.unpack(ref.pack())
        except (ValueError, struct.error):
            raise BundleError(f"{what}: {value!r:.120} is not a blob reference") from None


def header_check(header: bytes, table: bytes) -> bytes:
    """The first 8 bytes of SHA-256 over the header (`check` as zeros) and the section table.

    It finds damage in what the id leaves out (minor version, file size, annexes); it is no proof
    of origin.
    """
    blank = header[:24] + bytes(8) + header[32:]
    return sha256(blank, table)[:8]


def bundle_id(major: int, sections: list[tuple[bytes, int, Ref]]) -> bytes:
    """The SHA-256 that names a bundle: over its major version and every section but annexes."""
    covered = [
        SECTION.pack(name, flags, 0) + ref.pack()
        for name, flags, ref in sections
        if not flags & ANNEX
    ]
    return sha256(b"flybundle" + struct.pack("<H", major), *covered)
