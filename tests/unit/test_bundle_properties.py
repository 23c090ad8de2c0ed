"""Properties of the format, for generated contents."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import flyc_cli.bundle_writer
from flyc_cli.bundle_writer import write_bundle
from flyc_cli.compression import Group, Packed, group, pack, pack_group
from runtime_loader.bundle_file import BundleFile
from runtime_loader.format import ALIGNMENT, HEADER, RAW, SLICE, Ref
from runtime_loader.specialisation import Specialisation
from tests.fuzz.bundle_seeds import contents, relatives, specialisation

values = st.one_of(st.integers(-(2**63), 2**63 - 1), st.text(max_size=8), st.booleans(), st.none())
codes = st.one_of(
    st.binary(max_size=300),
    st.builds(
        lambda size, seed: relatives(1, size, seed)[0], st.integers(64, 4000), st.integers(0, 3)
    ),
    st.builds(lambda size: bytes(size), st.integers(0, 5000)),
)


@st.composite
def specialisations(draw: st.DrawFn) -> list[tuple[Specialisation, bytes]]:
    kernels = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=6)
    made = {}
    for _ in range(draw(st.integers(1, 12))):
        params: dict[str, Any] = draw(st.dictionaries(st.text(max_size=5), values, max_size=3))
        target = draw(st.sampled_from(["gfx942", "gfx942:xnack-", "gfx950", "gfx1201"]))
        code = draw(codes)
        kernel = draw(kernels)
        spec = specialisation("placeholder", code, target)
        spec = Specialisation(**{**vars(spec), "kernel": kernel, "params": params})
        made[spec.key()] = spec, code
    return list(made.values())


@settings(max_examples=60, deadline=None)
@given(specialisations(), st.sampled_from(["zstd", "raw"]), st.data())
def test_round_trip(specs, compression, data) -> None:
    with tempfile.TemporaryDirectory() as directory:
        written = write_bundle(directory, contents("b", specs), compression=compression)
        bundle = BundleFile.open(written.path, verify="open")
        by_key = {spec.key(): (spec, code) for spec, code in specs}
        for key in data.draw(st.permutations(sorted(by_key))):
            spec, code = by_key[key]
            record = bundle.find(key)
            assert record is not None
            fields = json.loads(record)
            ref = Ref.from_json(fields.pop("blob"), "record")
            assert fields == json.loads(json.dumps(spec.to_json()))
            assert bytes(bundle.blob(ref)) == code
        kernels = sorted({spec.kernel.encode() + b"\0" for spec, _ in specs})
        assert list(bundle.keys()) == sorted([*by_key, *kernels])
        for kernel in kernels:
            assert [k for k in bundle.keys(kernel) if k != kernel] == sorted(
                k for k in by_key if k.startswith(kernel)
            )
        bundle.close()


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(st.binary(max_size=12), st.binary(max_size=40), min_size=1, max_size=60),
    st.binary(max_size=12),
)
def test_finds_and_walks_in_trees_of_any_shape(entries, probe) -> None:
    """Against a sorted dict, with nodes of few entries and so several levels."""
    specs = [
        (specialisation("k", b"c", key=key.hex(), value=value.hex()), b"c")
        for key, value in entries.items()
    ]
    before = flyc_cli.bundle_writer._LEAF_BYTES, flyc_cli.bundle_writer._INNER_BYTES
    flyc_cli.bundle_writer._LEAF_BYTES, flyc_cli.bundle_writer._INNER_BYTES = 3000, 600
    try:
        with tempfile.TemporaryDirectory() as directory:
            bundle = BundleFile.open(write_bundle(directory, contents("b", specs)).path)
            model = sorted([b"k\0", *(spec.key() for spec, _ in specs)])
            assert list(bundle.keys()) == model
            for key in (b"", b"k", b"k\0{" + probe, probe, b"l", *model):
                following = [k for k in model if k >= key]
                assert bundle.next_key(key) == (following[0] if following else None)
                assert (bundle.find(key) is not None) == (key in model)
                assert list(bundle.keys(key)) == [k for k in model if k.startswith(key)]
            bundle.close()
    finally:
        flyc_cli.bundle_writer._LEAF_BYTES, flyc_cli.bundle_writer._INNER_BYTES = before


def decode(packed: Packed, dictionary: bytes) -> bytes:
    if packed.codec == SLICE:
        return dictionary[packed.offset : packed.offset + packed.size]
    if packed.codec == RAW:
        return packed.stored
    raw = zstandard.ZstdCompressionDict(dictionary, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    used = raw if packed.with_dictionary else None
    return zstandard.ZstdDecompressor(dict_data=used).decompress(packed.stored)


@settings(max_examples=60, deadline=None)
@given(st.lists(codes, min_size=1, max_size=12))
def test_groups_keep_order_and_never_cost_more_than_alone(items) -> None:
    groups = list(group(items))
    assert [content for g in groups for content in g.members] == items
    for g in groups:
        packed = pack_group(g)
        assert len(packed.members) == len(g.members)
        dictionary, stored = b"", list(packed.members)
        if isinstance(packed.dictionary, Packed):
            dictionary = decode(packed.dictionary, b"")
            stored.append(packed.dictionary)
        elif packed.dictionary is not None:
            dictionary = g.members[packed.dictionary]
        for content, member in zip(g.members, packed.members, strict=True):
            assert decode(member, dictionary) == content
            assert member.sha256 == hashlib.sha256(content).digest()
        assert room(stored) <= room([pack(content) for content in g.members])


def room(blobs: list[Packed]) -> int:
    return sum(-(-len(blob.stored) // ALIGNMENT) * ALIGNMENT for blob in blobs)


def test_relatives_come_close_to_a_solid_stream_and_strangers_stay_alone() -> None:
    families = [item for seed in range(6) for item in relatives(12, 8000, seed)]
    solid = len(zstandard.ZstdCompressor(level=19).compress(b"".join(families)))
    stored: list[Packed] = []
    for packed in map(pack_group, group(families)):
        stored.extend(packed.members)
        if isinstance(packed.dictionary, Packed):
            stored.append(packed.dictionary)
    assert room(stored) < 1.15 * solid

    strangers = [relatives(1, 5000, seed)[0] for seed in range(5)]
    (only,) = group(strangers)
    assert pack_group(only).dictionary is None


def test_one_representative_is_stored_once_as_both() -> None:
    packed = pack_group(Group(tuple(relatives(4, 3000, 1)), (0,)))
    assert packed.dictionary == 0
    assert not packed.members[0].with_dictionary
    assert all(member.with_dictionary for member in packed.members[1:])


def test_every_blob_is_aligned(tmp_path: Path) -> None:
    specs = [(specialisation("k", code, N=n), code) for n, code in enumerate(relatives(9, 1001, 3))]
    for compression in ("zstd", "raw"):
        written = write_bundle(tmp_path, contents("b", specs), compression=compression)
        bundle = BundleFile.open(written.path)
        seen: list[Ref] = [ref for _, ref in bundle.sections.values()]
        list(bundle.index.items(visit=seen.append))
        for key, record in bundle.scan(b"k\0{"):
            ref = Ref.from_json(json.loads(record)["blob"], key.decode())
            if ref.codec != SLICE:
                seen.append(ref)
        assert len(seen) > 4
        assert all(ref.offset % ALIGNMENT == 0 and ref.offset > HEADER.size for ref in seen)
        assert written.size % ALIGNMENT == 0
