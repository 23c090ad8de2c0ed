"""A second reader, written from docs/format.md alone: the page says enough to write one."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from bench.size import measure, report
from flyc_cli.bundle_writer import write_bundle
from tests.fuzz.bundle_seeds import contents, family, relatives, specialisation, with_stages


class PageReader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        magic, major, _, count, size, check, identity = struct.unpack_from("<8sHHIQ8s32s", data)
        assert magic == b"\x93FLYBNDL"
        assert major == 1
        assert size == len(data)
        end = 64 + 80 * count
        blank = data[:24] + bytes(8) + data[32:end]
        assert hashlib.sha256(blank).digest()[:8] == check
        covered = b"flybundle\x01\x00"
        self.sections = {}
        for at in range(64, end, 80):
            name, flags = struct.unpack_from("<8sI", data, at)
            self.sections[name.rstrip(b"\0")] = data[at + 16 : at + 80]
            if not flags & 2:
                covered += data[at : at + 80]
        assert hashlib.sha256(covered).digest() == identity

    def blob(self, ref: bytes) -> bytes:
        offset, stored, size, sha256, codec, number = struct.unpack("<QQQ32sII", ref)
        dictionary = b""
        if number != 0xFFFFFFFF:
            dictionary = self.blob(self.find(b"dicts", number.to_bytes(4, "big")))
        content = (dictionary if codec == 2 else self.data)[offset : offset + stored]
        if codec == 1:
            assert zstandard.frame_content_size(content) == size
            raw = zstandard.ZstdCompressionDict(
                dictionary, dict_type=zstandard.DICT_TYPE_RAWCONTENT
            )
            content = zstandard.ZstdDecompressor(dict_data=raw if dictionary else None).decompress(
                content
            )
        assert len(content) == size
        assert hashlib.sha256(content).digest() == sha256
        return content

    def node(self, ref: bytes) -> tuple[int, list[tuple[bytes, bytes]]]:
        node = self.blob(ref)
        magic, level, count = struct.unpack_from("<4sHH", node)
        assert magic == b"FBTN"
        entries = []
        for n in range(count):
            key, key_size, value, value_size = struct.unpack_from("<4I", node, 16 + 16 * n)
            entries.append((node[key : key + key_size], node[value : value + value_size]))
        return level, entries

    def find(self, section: bytes, key: bytes) -> bytes:
        level, entries = self.node(self.sections[section])
        while level:
            child = [value for first, value in entries if first <= key][-1]
            level, entries = self.node(child)
        return dict(entries)[key]

    def walk(self, ref: bytes) -> Iterator[tuple[bytes, bytes]]:
        level, entries = self.node(ref)
        for key, value in entries:
            if level:
                yield from self.walk(value)
            else:
                yield key, value


@pytest.mark.parametrize("compression", ["zstd", "raw"])
def test_a_reader_written_from_the_page_reads_everything(tmp_path: Path, compression) -> None:
    specs = [
        *family(20),
        *((specialisation("solo", c, N=n), c) for n, c in enumerate(relatives(3, 5000, 8))),
        *((specialisation("deep", b"same", N=n), b"same") for n in range(300)),
    ]
    made = with_stages("b", specs)
    written = write_bundle(tmp_path, made, compression=compression)
    reader = PageReader(written.path.read_bytes())
    meta = json.loads(reader.blob(reader.sections[b"meta"]))
    assert meta["counts"] == {"kernels": 4, "specialisations": 324, "code_objects": 24}
    records = dict(reader.walk(reader.sections[b"index"]))
    assert list(records) == sorted(records)
    assert len(records) == 328
    for spec, code in specs:
        assert reader.find(b"index", spec.key()) == records[spec.key()]
        *numbers, sha256, codec, number = json.loads(records[spec.key()])["blob"]
        ref = struct.pack("<QQQ32sII", *numbers, bytes.fromhex(sha256), codec, number)
        assert reader.blob(ref) == code
        for order, (name, text) in enumerate(made.stages[spec.key()]):
            key = spec.key() + f"\0{order:02} {name}".encode()
            assert reader.blob(reader.find(b"stages", key)) == text.encode()


def test_sizes_are_measured_without_stages(tmp_path: Path) -> None:
    specs = family(9)
    plain = measure(write_bundle(tmp_path / "a", contents("b", specs)).path)
    staged = measure(write_bundle(tmp_path / "b", with_stages("b", specs)).path)
    assert (plain.raw, plain.alone, plain.stages) == (9 * 600, staged.alone, 0)
    assert (plain.specialisations, plain.code_objects) == (10, 9)
    assert plain.stored < plain.bundle < staged.bundle
    assert plain.solid < plain.alone
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "entry.pkl").write_bytes(bytes(50_000))
    cached = measure(tmp_path / "a" / "b.flybundle", cache)
    assert cached.flydsl == 50_000
    assert "FlyDSL's cache files" in report(cached)
    assert "FlyDSL" not in report(plain)
