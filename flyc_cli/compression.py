"""How code objects are compressed: in groups of relatives that share a reference dictionary.

A group's dictionary is the concatenation of those members that the members before them did not
already predict well. Those are slices of it; each other member is compressed against it alone. So
the whole comes close to one solid stream, while any code object needs only its dictionary. A
bounded dictionary keeps that cheap; one pass over the code objects, with relatives next to each
other, keeps the choice linear.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import zstandard

from runtime_loader.format import ALIGNMENT, MAX_DICTIONARY, RAW, SLICE, ZSTD

# How code objects are stored: compressed, or as they are, to be used where they are mapped.
Compression: TypeAlias = Literal["zstd", "raw"]

LEVEL = 19

# On 80 code objects of 11 FlyDSL kernels whole bundles came to 1.17, 1.14 and 1.13 of one solid
# stream with dictionaries of 256 KiB, 512 KiB and 1 MiB; the largest takes 2 ms to decode, once.
_DICTIONARY_BYTES = 1 << 20
# What a group holds in memory while it is compressed.
_GROUP_BYTES = 16 << 20
# A code object joins the dictionary unless that shrinks it to this share of its size alone.
_PREDICTED_SHARE = 0.3
_ESTIMATE_LEVEL = 3
# What a dictionary must shrink its group to, to be worth a second blob to read.
_WORTHWHILE_SHARE = 15 / 16


@dataclass(frozen=True)
class Packed:
    """A blob's content as it is stored; `size` and `sha256` are of the content.

    `with_dictionary`: decoding needs the dictionary of its group, in which a SLICE is at `offset`.
    """

    size: int
    sha256: bytes
    codec: int
    stored: bytes
    with_dictionary: bool = False
    offset: int = 0


@dataclass(frozen=True)
class Group:
    """Code objects that share a dictionary; `representatives` (indices) make it up, in order."""

    members: tuple[bytes, ...]
    representatives: tuple[int, ...]


@dataclass(frozen=True)
class PackedGroup:
    """The blobs of a group. `dictionary` is None when none pays, and the index of a member when
    that member alone, as it is stored, is the dictionary."""

    members: tuple[Packed, ...]
    dictionary: Packed | int | None


def store(content: bytes) -> Packed:
    """`content` as it is."""
    return Packed(len(content), hashlib.sha256(content).digest(), RAW, content)


def pack(content: bytes, level: int = LEVEL) -> Packed:
    """Compress `content` on its own, unless that does not make it smaller."""
    packed = store(content)
    stored = zstandard.ZstdCompressor(level=level).compress(content)
    return replace(packed, codec=ZSTD, stored=stored) if len(stored) < packed.size else packed


def group(contents: Iterable[bytes]) -> Iterator[Group]:
    """Divide code objects, given with relatives next to each other, into groups."""
    members: list[bytes] = []
    chosen: list[int] = []
    size = total = 0
    estimate: zstandard.ZstdCompressor | None = None
    for content in contents:
        novel = estimate is None or len(estimate.compress(content)) > _PREDICTED_SHARE * len(
            zstandard.ZstdCompressor(level=_ESTIMATE_LEVEL).compress(content)
        )
        total += len(content)
        full = (novel and size + len(content) > _DICTIONARY_BYTES) or total > _GROUP_BYTES
        if members and full:
            yield Group(tuple(members), tuple(chosen))
            members, chosen, size, total, novel = [], [], 0, len(content), True
        members.append(content)
        if novel and len(content) <= MAX_DICTIONARY:
            chosen.append(len(members) - 1)
            size += len(content)
            estimate = zstandard.ZstdCompressor(
                level=_ESTIMATE_LEVEL,
                dict_data=_dictionary(b"".join(members[i] for i in chosen), _ESTIMATE_LEVEL),
            )
    if members:
        yield Group(tuple(members), tuple(chosen))


def pack_group(relatives: Group) -> PackedGroup:
    """Compress the members of a group: never to more than they would take alone."""
    alone = tuple(pack(content) for content in relatives.members)
    if len(alone) == 1 or not relatives.representatives:
        return PackedGroup(alone, None)
    content = b"".join(relatives.members[i] for i in relatives.representatives)
    dictionary: Packed | int
    if len(relatives.representatives) == 1:
        dictionary = relatives.representatives[0]
        own = {dictionary: alone[dictionary]}
    else:
        dictionary = pack(content)
        own = _slices(alone, relatives.representatives)
    compressor = zstandard.ZstdCompressor(level=LEVEL, dict_data=_dictionary(content, LEVEL))
    members = tuple(
        own[index] if index in own else _pack_against(member, alone[index], compressor)
        for index, member in enumerate(relatives.members)
    )
    extra = (dictionary,) if isinstance(dictionary, Packed) else ()
    if _room(members + extra) > _WORTHWHILE_SHARE * _room(alone):
        return PackedGroup(alone, None)
    return PackedGroup(members, dictionary)


def _slices(alone: tuple[Packed, ...], representatives: tuple[int, ...]) -> dict[int, Packed]:
    slices = {}
    at = 0
    for index in representatives:
        slices[index] = replace(
            alone[index], codec=SLICE, stored=b"", with_dictionary=True, offset=at
        )
        at += alone[index].size
    return slices


def _pack_against(content: bytes, alone: Packed, compressor: zstandard.ZstdCompressor) -> Packed:
    stored = compressor.compress(content)
    if len(stored) < len(alone.stored):
        return replace(alone, codec=ZSTD, stored=stored, with_dictionary=True)
    return alone


def _room(blobs: tuple[Packed, ...]) -> int:
    """Bytes that the blobs take in a bundle."""
    return sum(-(-len(blob.stored) // ALIGNMENT) * ALIGNMENT for blob in blobs)


def _dictionary(content: bytes, level: int) -> zstandard.ZstdCompressionDict:
    dictionary = zstandard.ZstdCompressionDict(content, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    dictionary.precompute_compress(level=level)
    return dictionary
