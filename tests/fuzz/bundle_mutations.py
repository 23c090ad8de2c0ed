"""Structure-aware mutations of a bundle, each a function of a random source only."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import zstandard

from runtime_loader.bundle_file import BundleFile
from runtime_loader.format import (
    ANNEX,
    DICTIONARIES,
    INDEX,
    META,
    REF,
    SIGNATURES,
    STAGES,
    TABLES,
    ZSTD,
    Ref,
)
from runtime_loader.records import replace
from runtime_loader.trust import key_id
from tests.fuzz.bundle_forge import Entries, Forge, node
from tests.fuzz.bundle_seeds import SIGNER

NUMBERS = (0, 1, 2, 63, 64, 65, 255, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1)


def mutate(path: Path, rng: random.Random) -> bytes:
    """One mutation of the bundle at `path`."""
    return rng.choice(MUTATIONS)(path, rng)


def damage_bytes(path: Path, rng: random.Random) -> bytes:
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def change_length(path: Path, rng: random.Random) -> bytes:
    data = path.read_bytes()
    if rng.random() < 0.5:
        return data[: rng.randrange(len(data))]
    return data + rng.randbytes(rng.randrange(1, 200))


def reseal_header(path: Path, rng: random.Random) -> bytes:
    """Wrong numbers in the header under a checksum that holds."""
    forge = Forge(path)
    return forge.seal(
        major=rng.choice((0, 1, 1, 2, 65535)),
        minor=rng.choice((0, 1, 65535)),
        size=rng.choice((None, *NUMBERS)),
    )


def change_sections(path: Path, rng: random.Random) -> bytes:
    """Drop, rename, add or re-flag a section, or change a number of its Ref."""
    forge = Forge(path)
    name = rng.choice(list(forge.sections))
    flags, ref = forge.sections[name]
    kind = rng.randrange(5)
    if kind == 0:
        del forge.sections[name]
    elif kind == 1:
        forge.sections[rng.choice((b"novel", b"index", b"", b"12345678"))] = forge.sections.pop(
            name
        )
    elif kind == 2:
        forge.sections[name] = rng.choice((0, 1, 2, 3, 2**32 - 1)), ref
    elif kind == 3:
        forge.sections[name] = flags, forge.sections[rng.choice(list(forge.sections))][1]
    else:
        forge.sections[name] = flags, _changed(ref, rng)
    return forge.seal()


def change_node(path: Path, rng: random.Random) -> bytes:
    """Damage the bytes of a root node, and hash what comes of it."""
    forge = Forge(path)
    section, entries = _some_tree(path, rng)
    content = bytearray(node(rng.choice((0, 0, 0, 1, 7, 8)), entries))
    for _ in range(rng.randrange(4)):
        at = rng.randrange(0, min(len(content), 200), 4)
        content[at : at + 4] = (rng.choice(NUMBERS) & 0xFFFFFFFF).to_bytes(4, "little")
    forge.sections[section] = 1, forge.blob(bytes(content))
    return forge.seal()


def change_entries(path: Path, rng: random.Random) -> bytes:
    """Shuffle, repeat, drop or cut entries of a tree."""
    forge = Forge(path)
    section, entries = _some_tree(path, rng)
    for _ in range(rng.randrange(1, 4)):
        if not entries:
            break
        at = rng.randrange(len(entries))
        kind = rng.randrange(4)
        if kind == 0:
            rng.shuffle(entries)
        elif kind == 1:
            entries.insert(at, entries[at])
        elif kind == 2:
            del entries[at]
        else:
            key, value = entries[at]
            entries[at] = key[: rng.randrange(len(key) + 1)], value[: rng.randrange(len(value) + 1)]
    forge.sections[section] = 1, forge.node(0, entries)
    return forge.seal()


def change_tree(path: Path, rng: random.Random) -> bytes:
    """Inner nodes that point at each other in ways that no writer makes."""
    forge = Forge(path)
    section, entries = _some_tree(path, rng)
    child = forge.node(rng.choice((0, 0, 1)), entries)
    for level in range(1, rng.randrange(2, 10)):
        keys = [key for key, _ in entries[:3]] or [b""]
        if rng.random() < 0.3:
            keys = keys[:1] * 3
        child = forge.node(level % 65536, [(key, child.pack()) for key in keys])
    forge.sections[section] = 1, child
    return forge.seal()


def change_record(path: Path, rng: random.Random) -> bytes:
    """Replace a value somewhere inside a JSON record or the description."""
    forge = Forge(path)
    section = rng.choice((INDEX, INDEX, META))
    if section == META:
        meta = dict(BundleFile.open(path).meta)
        forge.sections[META] = 1, forge.blob(json.dumps(_changed_json(meta, rng)).encode())
        return forge.seal()
    entries = _entries(path, INDEX)
    at = rng.randrange(len(entries))
    key, value = entries[at]
    text = json.dumps(_changed_json(json.loads(value), rng)).encode()
    if rng.random() < 0.1:
        text = rng.choice((b"[" * 100_000, text[:-1], b"\xff" + text, b"1e999", b"9" * 5000))
    entries[at] = key, text
    forge.sections[INDEX] = 1, forge.node(0, entries)
    return forge.seal()


def change_dictionary(path: Path, rng: random.Random) -> bytes:
    """Dictionaries that are missing, foreign, chained, or the dictionary of their own tree."""
    forge = Forge(path)
    entries = _entries(path, DICTIONARIES)
    number = rng.choice((0, 1, 2**32 - 2))
    ref = forge.blob(rng.randbytes(100))
    if entries and rng.random() < 0.5:
        ref = _changed(Ref.unpack(rng.choice(entries)[1]), rng)
    ref = replace(ref, dictionary=rng.choice((ref.dictionary, ref.dictionary, number)))
    root = forge.node(0, [(number.to_bytes(4, "big"), ref.pack())])
    if rng.random() < 0.2:
        root = replace(root, dictionary=number, codec=rng.choice((1, 2)))
    forge.sections[DICTIONARIES] = 1, root
    return forge.seal()


def inflate(path: Path, rng: random.Random) -> bytes:
    """A section that unpacks to much more than it says, or says much more than it is."""
    forge = Forge(path)
    content = bytes(rng.choice((1 << 10, 1 << 20, 1 << 23)))
    stored = zstandard.ZstdCompressor(write_content_size=rng.random() < 0.7).compress(content)
    ref = forge.blob(stored, content, ZSTD)
    if rng.random() < 0.5:
        ref = replace(ref, size=rng.choice(NUMBERS))
    forge.sections[rng.choice((META, INDEX, DICTIONARIES))] = 1, ref
    return forge.seal()


def change_signatures(path: Path, rng: random.Random) -> bytes:
    """Signatures that are malformed, too many, by others, or over another bundle."""
    forge = Forge(path)
    signature = {
        "key": rng.choice((key_id(SIGNER), "0" * 16)),
        "bundle": rng.randbytes(32).hex(),
        "signature": rng.randbytes(rng.choice((0, 1, 64, 64, 65))).hex(),
    }
    signatures = {"signatures": [signature] * rng.choice((0, 1, 2, 32, 33))}
    content = json.dumps(_changed_json(signatures, rng)).encode()
    if rng.random() < 0.2:
        content = rng.choice((content[:-1], b"\xff", b"", b"[" * 60_000, content * 900))
    forge.sections[SIGNATURES] = ANNEX, forge.blob(content)
    return forge.seal()


MUTATIONS = (
    damage_bytes,
    change_length,
    reseal_header,
    change_sections,
    change_node,
    change_entries,
    change_tree,
    change_record,
    change_dictionary,
    change_signatures,
    inflate,
)


def _entries(path: Path, section: bytes) -> Entries:
    bundle = BundleFile.open(path)
    trees = (bundle.index, bundle.dictionaries, bundle.tables, bundle.stages)
    tree = dict(zip((INDEX, DICTIONARIES, TABLES, STAGES), trees, strict=True))[section]
    return [] if tree is None else list(tree.items())


def _some_tree(path: Path, rng: random.Random) -> tuple[bytes, Entries]:
    section = rng.choice((INDEX, INDEX, DICTIONARIES, TABLES, STAGES))
    return section, _entries(path, section)


def _changed(ref: Ref, rng: random.Random) -> Ref:
    field = rng.choice(("offset", "stored_size", "size", "codec", "dictionary", "sha256"))
    if field == "sha256":
        return replace(ref, sha256=rng.randbytes(32))
    small = field in ("codec", "dictionary")
    value = rng.choice(NUMBERS) & (2**32 - 1 if small else 2**64 - 1)
    if not small and rng.random() < 0.5:
        value = max(0, getattr(ref, field) + rng.choice((-64, -1, 1, 64)))
    return Ref.unpack(replace(ref, **{field: value}).pack().ljust(REF.size, b"\0"))


def _changed_json(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        changed = dict(value)
        if rng.random() < 0.1:
            del changed[key]
        else:
            changed[key] = _changed_json(value[key], rng)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return [*value[:at], _changed_json(value[at], rng), *value[at + 1 :]]
    return rng.choice(
        (None, True, -1, 0, 1, 2**31, 2**63, 10**30, 0.5, "", "x", "i32", "\ud800", [], {}, [[]])
    )
