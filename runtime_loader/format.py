"""The `.flybundle` layout: constants and fixed records that reader and writer share.

docs/format.md is the specification; this module is its transcription.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from runtime_loader.errors import BundleError

MAGIC = b"\x93FLYBNDL"
MAJOR, MINOR = 1, 0
ALIGNMENT = 64

HEADER = struct.Struct("<8sHHIQQ32s")  # magic, major, minor, sections, file size, zero, id
SECTION = struct.Struct("<8sII")  # name, flags, zero; a REF follows
REF = struct.Struct("<QQQ32sII")  # offset, stored size, size, sha256, codec, dictionary
NODE = struct.Struct("<4sHHQ")  # magic, level, entries, zero
NODE_ENTRY = struct.Struct("<II")  # key offset in the node, key size; a REF follows
NODE_MAGIC = b"FBTN"

REQUIRED = 1  # a reader that does not know this section must refuse the bundle
ANNEX = 2  # not covered by the bundle's id and never read by the loader

RAW, ZSTD = 0, 1
NO_DICTIONARY = 0xFFFFFFFF

MAX_SECTIONS = 64
MAX_BLOB = 1 << 30
MAX_RECORD = 1 << 24
MAX_NODE = 1 << 20
MAX_LEVELS = 8


@dataclass(frozen=True)
class Ref:
    """Where a blob is and what it must be: the only way that anything in a bundle is reached.

    `offset` and `stored_size` are the bytes in the file; `size` and `sha256` are of the content
    after decoding with `codec` and the dictionary of that number.
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
            digest = bytes.fromhex(value[3])
        except ValueError:
            raise BundleError(f"{what}: {value[3]!r} is not a SHA-256") from None
        return cls(value[0], value[1], value[2], digest, value[4], value[5])


def bundle_id(major: int, sections: list[tuple[bytes, int, Ref]]) -> bytes:
    """The SHA-256 that names a bundle: over its major version and every section but annexes."""
    digest = hashlib.sha256(b"flybundle" + struct.pack("<H", major))
    for name, flags, ref in sections:
        if not flags & ANNEX:
            digest.update(SECTION.pack(name, flags, 0) + ref.pack())
    return digest.digest()
