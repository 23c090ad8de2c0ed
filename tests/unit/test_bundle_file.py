"""Reading bundles: what is found, and what every kind of bad file says."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import zstandard

import runtime_loader.tree
from flyc_cli.bundle_writer import write_bundle
from runtime_loader.bundle_file import BundleFile
from runtime_loader.errors import BundleError
from runtime_loader.format import (
    DICTIONARIES,
    HEADER,
    INDEX,
    META,
    REQUIRED,
    SLICE,
    ZSTD,
    Ref,
)
from runtime_loader.records import replace
from tests.fuzz.bundle_forge import Forge
from tests.fuzz.bundle_seeds import (
    contents,
    family,
    seed_bundles,
    specialisation,
    with_stages,
)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    paths = seed_bundles(tmp_path_factory.mktemp("seeds"))
    return {path.name.rpartition("-")[0]: path for path in paths}


def refused(data: bytes, path: Path, *, verify: bool = False) -> str:
    """What the reader says of a file with these bytes; fails when it says nothing."""
    path.write_bytes(data)
    with pytest.raises(BundleError) as caught:
        everything(BundleFile.open(path, verify="open" if verify else "use"))
    return str(caught.value)


def everything(bundle: BundleFile) -> dict[bytes, object]:
    """All that a bundle says, read the way the loader reads it."""
    found: dict[bytes, object] = {b"meta": bundle.meta}
    for key, record in bundle.scan():
        found[key] = record
        if not key.endswith(b"\0"):
            ref = Ref.from_json(json.loads(record)["blob"], "record")
            found[b"code of " + key] = bytes(bundle.blob(ref))
        for name in bundle.stage_names(key):
            found[key + name.encode()] = bundle.stage(key, name)
    return found


@pytest.mark.parametrize("compression", ["zstd", "raw"])
def test_finds_each_specialisation_and_its_code_object(tmp_path: Path, compression) -> None:
    specs = family(9)
    written = write_bundle(tmp_path, contents("b", specs), compression=compression)
    bundle = BundleFile.open(written.link, verify="open")
    assert bundle.id == written.id
    assert bundle.size == written.size == written.path.stat().st_size
    for spec, code in specs:
        record = bundle.find(spec.key())
        assert record is not None
        ref = Ref.from_json(json.loads(record)["blob"], "record")
        assert bytes(bundle.blob(ref)) == code
        assert ref.sha256 == hashlib.sha256(code).digest()
    assert bundle.find(b"norm\0{}\0gfx942") is None
    assert bundle.find(b"") is None
    assert bundle.find(b"zzz") is None


def test_kernel_records_say_what_their_specialisations_share(tmp_path: Path) -> None:
    specs = [
        (specialisation("norm", b"a", "gfx942", dtype="bf16", N=1), b"a"),
        (specialisation("norm", b"b", "gfx950", dtype="bf16", N=2), b"b"),
    ]
    bundle = BundleFile.open(write_bundle(tmp_path, contents("b", specs)).path)
    record = bundle.find(b"norm\0")
    assert record is not None
    assert json.loads(record) == {
        "kernel": "norm",
        "params": ["N", "dtype"],
        "fixed": {"dtype": "bf16"},
        "targets": ["gfx942", "gfx950"],
        "specialisations": 2,
    }


def test_walks_by_prefix_and_from_kernel_to_kernel(seeds: dict[str, Path]) -> None:
    bundle = BundleFile.open(seeds["family"])
    all_keys = [key for key, _ in bundle.scan()]
    assert all_keys == sorted(all_keys)
    assert list(bundle.keys(b"gemm\0")) == [k for k in all_keys if k.startswith(b"gemm\0")]
    assert bundle.next_key(b"") == b"gemm\0"
    assert bundle.next_key(b"gemm\1") == b"norm\0"
    assert bundle.next_key(b"norm\1") is None


def test_walks_an_index_of_several_levels(seeds: dict[str, Path]) -> None:
    bundle = BundleFile.open(seeds["deep"], verify="open")
    keys = list(bundle.keys())
    assert len(keys) == 141
    for number, key in enumerate(keys):
        assert bundle.find(key) is not None
        assert bundle.find(key + b"x") is None
        assert bundle.next_key(key) == key
        assert bundle.next_key(key + b"\0") == (keys[number + 1] if number < 140 else None)


def test_stages_come_in_order_and_leave_the_rest_as_it_was(tmp_path: Path) -> None:
    specs = family(4)
    plain = write_bundle(tmp_path / "a", contents("b", specs))
    staged = write_bundle(tmp_path / "b", with_stages("b", specs))
    assert plain.id == staged.id
    start = HEADER.size + 8 * 80
    assert staged.path.read_bytes()[start : plain.size] == plain.path.read_bytes()[start:]
    bundle = BundleFile.open(staged.path, verify="open")
    key = specs[0][0].key()
    assert bundle.has_stages
    assert bundle.stage_names(key) == ["traced", "isa"]
    assert bundle.stage(key, "isa") == "s_endpgm\n"
    assert bundle.stage(key, "llvm") is None
    without = BundleFile.open(plain.path)
    assert not without.has_stages
    assert without.stage_names(key) == []
    assert without.stage(key, "isa") is None


def test_opening_and_finding_touch_few_nodes_of_a_large_index(tmp_path: Path) -> None:
    def nodes_read(count: int) -> int:
        specs = [(specialisation("k", b"code", N=n), b"code") for n in range(count)]
        bundle = BundleFile.open(write_bundle(tmp_path, contents("b", specs)).path)
        read: list[Ref] = []
        inner = bundle.blobs.read
        bundle.blobs.read = lambda *a: (read.append(a[0]), inner(*a))[1]  # type: ignore[method-assign]
        assert bundle.find(specs[count // 2][0].key()) is not None
        return len(read)

    assert nodes_read(10) == 1
    assert nodes_read(3000) == 2


def test_raw_code_objects_are_views_of_the_file_that_outlive_close(tmp_path: Path) -> None:
    (spec, code), *_ = specs = family(2)
    written = write_bundle(tmp_path, contents("b", specs), compression="raw")
    bundle = BundleFile.open(written.path)
    record = bundle.find(spec.key())
    assert record is not None
    view = bundle.blob(Ref.from_json(json.loads(record)["blob"], "record"))
    assert isinstance(view, memoryview)
    bundle.close()
    bundle.close()
    assert view == code
    for use in (lambda: bundle.find(b"x"), lambda: bundle.meta, lambda: list(bundle.keys())):
        with pytest.raises(BundleError, match="closed"):
            use()


def test_reads_from_read_only_files_and_survives_replacement(tmp_path: Path) -> None:
    specs = family(5)
    written = write_bundle(tmp_path / "d", contents("b", specs))
    written.path.chmod(0o444)
    written.path.parent.chmod(0o555)
    before = sorted(written.path.parent.iterdir())
    bundle = BundleFile.open(written.link)
    assert sorted(written.path.parent.iterdir()) == before
    written.path.parent.chmod(0o755)
    other = tmp_path / "other"
    other.write_bytes(b"something else")
    other.replace(written.path)
    bundle.verify()
    assert len(everything(bundle)) > 5


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda p: p.mkdir(), "not a file"),
        (lambda p: os.mkfifo(p), "not a file"),
        (lambda p: p.write_bytes(b""), "empty"),
        (lambda p: p.write_bytes(b"\x7fELF" + bytes(900)), "not a flybundle"),
        (lambda p: p.write_bytes(b"PK\x03\x04"), "not a flybundle"),
        (lambda p: None, "no such bundle"),
    ],
)
def test_foreign_files(tmp_path: Path, make, text: str) -> None:
    path = tmp_path / "x.flybundle"
    make(path)
    with pytest.raises(BundleError, match=text) as caught:
        BundleFile.open(path)
    assert str(path) in str(caught.value)


def test_every_truncation_and_extension_is_refused_at_open(
    seeds: dict[str, Path], tmp_path: Path
) -> None:
    data = seeds["one"].read_bytes()
    path = tmp_path / "x"
    path.write_bytes(data)
    for length in range(len(data) - 1, -1, -1):
        os.truncate(path, length)
        with pytest.raises(BundleError):
            BundleFile.open(path)
    for tail in (b"\0", bytes(64), data):
        path.write_bytes(data + tail)
        with pytest.raises(BundleError, match="bytes long"):
            BundleFile.open(path)


@pytest.mark.parametrize(
    "name",
    [
        "one",
        pytest.param("pair", marks=pytest.mark.slow),
        pytest.param("stages", marks=pytest.mark.slow),
    ],
)
def test_every_flipped_byte_is_noticed_or_changes_nothing(
    seeds: dict[str, Path], tmp_path: Path, name: str
) -> None:
    data = seeds[name].read_bytes()
    bundle = BundleFile.open(seeds[name])
    compressed: set[int] = set()
    read = bundle.blobs.read

    def listen(ref: Ref, *args: Any) -> bytes | memoryview:
        if ref.codec == ZSTD:
            compressed.update(range(ref.offset, ref.offset + ref.stored_size))
        return read(ref, *args)

    bundle.blobs.read = listen  # type: ignore[method-assign]
    wanted = everything(bundle)
    path = tmp_path / "x"
    path.write_bytes(data)
    unnoticed = set()
    with path.open("r+b", buffering=0) as file:
        for at in range(len(data)):
            os.pwrite(file.fileno(), bytes([data[at] ^ (1 << at % 8)]), at)
            try:
                flipped = BundleFile.open(path, verify="open")
                assert everything(flipped) == wanted
                unnoticed.add(at)
            except BundleError:
                pass
            os.pwrite(file.fileno(), data[at : at + 1], at)
    # Some bits of a zstd frame change nothing of what it decodes to.
    assert unnoticed <= compressed
    assert len(unnoticed) < len(data) // 100


def test_versions(seeds: dict[str, Path], tmp_path: Path) -> None:
    forge = Forge(seeds["one"])
    assert "format version 2.0, and this version of flyc reads 1.0" in refused(
        forge.seal(major=2), tmp_path / "x"
    )
    path = tmp_path / "minor"
    path.write_bytes(forge.seal(minor=7))
    BundleFile.open(path, verify="open")


def test_sections_that_are_not_known(seeds: dict[str, Path], tmp_path: Path) -> None:
    forge = Forge(seeds["one"])
    forge.sections[b"extra"] = 0, forge.blob(b"of a later version")
    path = tmp_path / "optional"
    path.write_bytes(forge.seal())
    assert everything(BundleFile.open(path, verify="open")) == everything(
        BundleFile.open(seeds["one"])
    )
    forge.sections[b"extra"] = REQUIRED, forge.sections[b"extra"][1]
    assert "needs section b'extra'" in refused(forge.seal(), tmp_path / "x")


@pytest.mark.parametrize("name", [META, INDEX, DICTIONARIES])
def test_missing_and_annexed_sections(seeds: dict[str, Path], tmp_path: Path, name) -> None:
    forge = Forge(seeds["one"])
    flags, ref = forge.sections.pop(name)
    assert f"no section {name!r}" in refused(forge.seal(), tmp_path / "x")
    forge.sections[name] = flags | 2, ref
    assert "outside of its id" in refused(forge.seal(), tmp_path / "x")


def test_header_lies(seeds: dict[str, Path], tmp_path: Path) -> None:
    good = seeds["one"].read_bytes()
    path = tmp_path / "x"
    many = good[:12] + (2**32 - 1).to_bytes(4, "little") + good[16:]
    assert "4294967295 sections" in refused(many, path)
    size = good[:16] + (2**64 - 1).to_bytes(8, "little") + good[24:]
    assert "bytes long and says that it has" in refused(size, path)
    assert "checksum" in refused(good[:70] + b"\xff" + good[71:], path)
    forge = Forge(seeds["one"])
    other_id = bytearray(forge.seal())
    other_id[32:64] = bytes(32)
    assert "checksum" in refused(bytes(other_id), path)


@pytest.mark.parametrize(
    "change",
    [
        {"offset": 2**64 - 64},
        {"offset": 0},
        {"offset": 65},
        {"stored_size": 2**63},
        {"size": 2**63},
        {"stored_size": 1, "size": 1},
        {"codec": 3},
        {"codec": SLICE},
        {"codec": SLICE, "dictionary": 0},
        {"codec": ZSTD},
        {"dictionary": 0},
        {"sha256": bytes(32)},
    ],
)
def test_refs_that_lie(seeds: dict[str, Path], tmp_path: Path, change: dict[str, int]) -> None:
    forge = Forge(seeds["one"])
    forge.sections[META] = REQUIRED, replace(forge.blob(b'{"counts": {}}'), **change)
    refused(forge.seal(), tmp_path / "x")


def test_decompression_bombs(seeds: dict[str, Path], tmp_path: Path) -> None:
    content = bytes(64 << 20)
    stored = zstandard.ZstdCompressor().compress(content)
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(content)
    skippable = b"\x50\x2a\x4d\x18\x10\0\0\0" + bytes(16)
    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    wide = zstandard.ZstdCompressor(compression_params=parameters).compress(b"{}" * 100)
    for data, size, text in [
        (stored, len(content), "at most"),
        (stored, 1 << 20, "sizes in its zstd frame"),
        (unsized, 1 << 20, "sizes in its zstd frame"),
        (wide, 200, "sizes in its zstd frame"),
        (skippable, 16, "not smaller"),
        (skippable, 100, "sizes in its zstd frame"),
        (stored[:40], 1 << 20, "sizes in its zstd frame"),
        (b"\x28\xb5\x2f\xfd", 1 << 20, "damaged"),
    ]:
        forge = Forge(seeds["one"])
        forge.sections[META] = REQUIRED, replace(forge.blob(data, b"", ZSTD), size=size)
        assert text in refused(forge.seal(), tmp_path / "x")


def test_dictionaries_cannot_chain_or_refer_to_themselves(tmp_path: Path) -> None:
    def bundle(dictionary: Ref, forge: Forge, meta: Ref) -> bytes:
        forge.sections = {
            META: (REQUIRED, meta),
            INDEX: (REQUIRED, forge.node(0, [])),
            DICTIONARIES: (REQUIRED, forge.node(0, [(bytes(4), dictionary.pack())])),
        }
        return forge.seal()

    forge = Forge()
    content = forge.blob(b'{"counts": {}}' * 9)
    meta = replace(content, codec=SLICE, offset=0, dictionary=0)
    path = tmp_path / "x"
    assert "another dictionary" in refused(
        bundle(replace(content, dictionary=0), forge, meta), path
    )
    forge = Forge()
    forge.blob(b"")
    tree = replace(forge.node(0, []), codec=SLICE, dictionary=0)
    forge.sections = {
        META: (REQUIRED, meta),
        INDEX: (REQUIRED, tree),
        DICTIONARIES: (REQUIRED, tree),
    }
    assert "node needs a dictionary" in refused(forge.seal(), path)
    missing = replace(content, codec=SLICE, offset=0, dictionary=5)
    assert "does not have it" in refused(bundle(content, Forge(), missing), path)


def test_trees_that_no_writer_makes(seeds: dict[str, Path], tmp_path: Path) -> None:
    entries = list(BundleFile.open(seeds["family"]).index.items())
    path = tmp_path / "x"

    def with_index(make) -> str:
        forge = Forge(seeds["family"])
        forge.sections[INDEX] = REQUIRED, make(forge)
        return refused(forge.seal(), path)

    def chain(forge: Forge, levels: list[int]) -> Ref:
        child = forge.node(levels[0], entries)
        for level in levels[1:]:
            child = forge.node(level, [(entries[0][0], child.pack())])
        return child

    assert "where it belongs" in with_index(lambda f: chain(f, [0, 2]))
    assert "where it belongs" in with_index(lambda f: chain(f, [0, 1, 1]))
    assert "not that of a node" in with_index(lambda f: chain(f, [0, 1, 2, 3, 4, 5, 6, 7, 8]))
    assert "inner node is empty" in with_index(lambda f: f.node(1, []))
    assert "not in order" in with_index(lambda f: f.node(0, entries[::-1]))
    assert "not in order" in with_index(lambda f: f.node(0, [entries[0], *entries]))
    assert "no node" in with_index(lambda f: f.blob(b"FBTN"))
    assert "not that of a node" in with_index(
        lambda f: f.blob(b"FBTN" + bytes(2) + b"\xff\xff" + bytes(8))
    )

    def fan(forge: Forge) -> Ref:  # 3^7 visits, if nobody looked
        child = forge.node(0, entries)
        for level in range(1, 8):
            child = forge.node(level, [(entries[0][0], child.pack())] * 3)
        return child

    assert "not in order" in with_index(fan)


def test_a_walk_is_bounded_by_the_size_of_the_file(
    seeds: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_loader.tree, "WALK_BYTES", 0)
    monkeypatch.setattr(runtime_loader.tree, "WALK_FACTOR", 1)
    bundle = BundleFile.open(seeds["deep"])
    with pytest.raises(BundleError, match="far too much"):
        list(bundle.keys())


def test_verify_notices_what_use_cannot(seeds: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "x"
    good = seeds["family"]
    entries = list(BundleFile.open(good).index.items())
    meta = BundleFile.open(good).meta

    def complaint(edit) -> str:
        forge = Forge(good)
        changed = list(entries)
        edit(changed)
        forge.sections[INDEX] = REQUIRED, forge.node(0, changed)
        return refused(forge.seal(), path, verify=True)

    def edit_json(at: int, **values: object):
        def edit(changed: list[tuple[bytes, bytes]]) -> None:
            record = {**json.loads(changed[at][1]), **values}
            changed[at] = changed[at][0], json.dumps(record).encode()

        return edit

    assert "it holds" in complaint(
        lambda c: c.append(
            (b"zzz\0", json.dumps({"kernel": "zzz", "specialisations": 0, "targets": []}).encode())
        )
    )
    assert "has no record" in complaint(lambda c: c.pop(0))
    assert "disagrees with the kernel's" in complaint(lambda c: c.pop(1))
    assert "disagrees with the kernel's" in complaint(edit_json(0, targets=["gfx90a"]))
    assert "of another kernel" in complaint(edit_json(0, kernel="norm"))
    assert "disagree" in complaint(edit_json(1, params={"N": 5}))
    assert "disagree" in complaint(edit_json(1, code_object="00" * 32))
    assert "plan" in complaint(edit_json(1, plan={"inputs": [], "blocks": []}))
    assert "not a blob reference" in complaint(edit_json(1, blob=[64, 2**70, 1, "00" * 32, 0, 0]))
    forge = Forge(good)
    forge.sections[META] = REQUIRED, forge.blob(json.dumps({**meta, "counts": {}}).encode())
    assert "it says that it holds" in refused(forge.seal(), path, verify=True)


def test_verify_notices_padding_and_overlaps(seeds: dict[str, Path], tmp_path: Path) -> None:
    data = bytearray(seeds["one"].read_bytes())
    data[HEADER.size + 5 * 80] = 1  # in the room for more sections
    path = tmp_path / "x"
    path.write_bytes(data)
    everything(BundleFile.open(path))
    assert "padding" in refused(bytes(data), path, verify=True)

    forge = Forge(seeds["one"])
    bundle = BundleFile.open(seeds["one"])
    (kernel, (key, value)) = list(bundle.scan())
    record = json.loads(value)
    code = Ref.from_json(record["blob"], "blob")
    larger = bytes(forge.data[code.offset : code.offset + 100])
    blob = replace(code, stored_size=100, size=100, sha256=hashlib.sha256(larger).digest())
    spec = specialisation("copy", larger, N=2)
    second = {**spec.to_json(), "blob": blob.to_json()}
    counted = {**json.loads(kernel[1]), "specialisations": 2}
    forge.sections[INDEX] = (
        REQUIRED,
        forge.node(
            0,
            [
                (kernel[0], json.dumps(counted).encode()),
                (spec.key(), json.dumps(second).encode()),
                (key, value),
            ],
        ),
    )
    assert "overlaps" in refused(forge.seal(), path, verify=True)


def test_walking_and_closing_in_any_order(seeds: dict[str, Path]) -> None:
    bundle = BundleFile.open(seeds["deep"])
    walk = bundle.keys()
    first = next(walk)
    bundle.close()
    bundle.close()
    assert first == b"deep\0"
    with pytest.raises(BundleError):
        list(walk)
