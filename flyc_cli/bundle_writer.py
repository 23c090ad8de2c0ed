"""Writing a `.flybundle`: the same bytes for the same contents, published by an atomic rename.

docs/format.md specifies the file. It is written front to back: code objects and their
dictionaries, the trees, the description, the stages, and last the header, since every Ref and the
id depend on what they refer to.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import re
import secrets
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from flyc_cli.compression import Compression, Packed, PackedGroup, group, pack, pack_group, store
from runtime_loader.checked import canonical_json
from runtime_loader.errors import FlycError
from runtime_loader.format import (
    ALIGNMENT,
    ANNEX,
    DICTIONARIES,
    HEADER,
    INDEX,
    MAGIC,
    MAJOR,
    MAX_BLOB,
    MAX_LEVELS,
    MAX_META,
    MAX_NODE,
    META,
    MINOR,
    NO_DICTIONARY,
    NODE,
    NODE_ENTRY,
    NODE_MAGIC,
    REQUIRED,
    SECTION,
    SECTION_ENTRY_SIZE,
    SLICE,
    STAGES,
    TABLES,
    Ref,
    bundle_id,
    header_check,
)
from runtime_loader.specialisation import Specialisation, specialisation_key
from runtime_loader.table import TableRow, row_key, table_key

# Room for this many sections before the first blob, so that annexes move nothing else.
_TABLE_ROOM = 8
# A leaf is decoded as a whole by each lookup: large enough to compress well, small enough to be
# quick. Inner nodes are stored raw and searched in place.
_LEAF_BYTES = 64 << 10
_INNER_BYTES = 8 << 10
_INNER_ENTRIES = 8  # at least, so that long keys cannot make the tree too deep
_STAGES_AT_MOST = 100  # two digits order them
_STAGE_LEVEL = 12
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class TableContents:
    """The tuned table of one kernel: names of its exact and nearest keys, and its rows."""

    exact: tuple[str, ...]
    nearest: tuple[str, ...]
    rows: Sequence[TableRow]


@dataclass(frozen=True)
class BundleContents:
    """What a bundle is made of, in any order.

    `code_objects` maps SHA-256 (hex) to bytes and is read one item at a time; `stages` maps a
    specialisation's key to (name, text) pairs in pipeline order; `parameter_order` maps a kernel
    to its parameters as the manifest orders them, `tables` a kernel to its tuned table. `meta` is
    JSON data (provenance and the like).
    """

    name: str
    meta: Mapping[str, Any]
    specialisations: Sequence[Specialisation]
    code_objects: Mapping[str, bytes]
    stages: Mapping[bytes, Sequence[tuple[str, str]]] = field(default_factory=dict)
    parameter_order: Mapping[str, Sequence[str]] = field(default_factory=dict)
    tables: Mapping[str, TableContents] = field(default_factory=dict)


@dataclass(frozen=True)
class WrittenBundle:
    """A bundle on disk: `path` carries its id, `link` the plain name. Sizes are in bytes.

    `deduplicated` counts the specialisations that share the code object of another one.
    """

    path: Path
    link: Path
    id: str
    size: int
    specialisations: int
    kernels: int
    code_objects: int
    deduplicated: int


def write_bundle(
    directory: str | Path,
    contents: BundleContents,
    *,
    compression: Compression = "zstd",
    jobs: int | None = None,
) -> WrittenBundle:
    """Write `<name>-<id>.flybundle` into `directory` and point `<name>.flybundle` at it.

    `compression="raw"` stores code objects as they are: larger, and mapped without decoding.
    Raises `FlycError` when the contents do not fit together or the file cannot be written; then
    no part of a file is left behind, and what was there before is untouched.
    """
    directory = Path(directory)
    ordered = _in_order(contents)
    jobs = jobs or os.cpu_count() or 1
    with _reported(directory):
        directory.mkdir(parents=True, exist_ok=True)
    temporary = directory / f".{contents.name}-{secrets.token_hex(8)}.tmp"
    with _reported(directory), _removed_unless_published(temporary):
        # "x" and no mkstemp: the bundle gets the permissions that the umask gives other files.
        with temporary.open("xb") as file, ThreadPoolExecutor(jobs) as pool:
            writer = _Writer(file, pool, jobs)
            code_objects = _write_code_objects(
                writer, _code_object_order(ordered), contents.code_objects, compression
            )
            index = _write_tree(writer, _records(ordered, contents, code_objects))
            meta = _describe(contents, ordered, code_objects)
            sections = [
                (DICTIONARIES, REQUIRED, _write_dictionaries(writer)),
                (INDEX, REQUIRED, index),
                (META, REQUIRED, writer.blob(pack(meta))),
            ]
            if contents.tables:
                sections.insert(2, (TABLES, 0, _write_tree(writer, _table_records(contents))))
            if contents.stages:
                sections.append((STAGES, ANNEX, _write_stages(writer, contents, ordered)))
            size, identity = writer.finish(sections)
        path = directory / f"{contents.name}-{identity.hex()[:16]}.flybundle"
        temporary.replace(path)
    link = directory / f"{contents.name}.flybundle"
    shortcut = temporary.with_suffix(".link.tmp")
    with _reported(directory), _removed_unless_published(shortcut):
        shortcut.symlink_to(path.name)
        shortcut.replace(link)
        _sync_directory(directory)
    return WrittenBundle(
        path=path,
        link=link,
        id=identity.hex(),
        size=size,
        specialisations=len(ordered),
        kernels=len({spec.kernel for _, spec in ordered}),
        code_objects=len(code_objects),
        deduplicated=len(ordered) - len(code_objects),
    )


_Ordered = list[tuple[bytes, Specialisation]]


def _in_order(contents: BundleContents) -> _Ordered:
    """The specialisations with their keys, by key; checked as far as the format needs it."""
    if not _NAME.fullmatch(contents.name):
        raise FlycError(
            f"{contents.name!r} cannot name a bundle: use letters, digits, '.', '_' and '-'"
        )
    if not contents.specialisations:
        raise FlycError(f"bundle {contents.name}: there is no specialisation to write")
    ordered = sorted(
        ((spec.key(), spec) for spec in contents.specialisations), key=lambda item: item[0]
    )
    for (key, spec), (following, _) in itertools.pairwise(ordered):
        if key == following:
            raise FlycError(f"bundle {contents.name}: {spec.label()} is there twice")
    for _, spec in ordered:
        if not spec.kernel or "\0" in spec.kernel:
            raise FlycError(f"bundle {contents.name}: {spec.kernel!r} cannot name a kernel")
        if spec.code_object not in contents.code_objects:
            raise FlycError(f"bundle {contents.name}: {spec.label()} has no code object")
    return ordered


def _code_object_order(ordered: _Ordered) -> list[str]:
    """Each code object once, relatives (same kernel, then same target) next to each other."""
    by_family = sorted(ordered, key=lambda item: (item[1].kernel, str(item[1].target), item[0]))
    return list(dict.fromkeys(spec.code_object for _, spec in by_family))


class _Writer:
    """Appends blobs to the file; `dictionaries` lists the Refs of dictionaries by number."""

    def __init__(self, file: BinaryIO, pool: ThreadPoolExecutor, jobs: int) -> None:
        self._file = file
        self._pool = pool
        self._jobs = jobs
        self._end = file.write(bytes(HEADER.size + _TABLE_ROOM * SECTION_ENTRY_SIZE))
        self.dictionaries: list[Ref] = []

    def blob(self, packed: Packed, dictionary: int = NO_DICTIONARY) -> Ref:
        """Append a blob; `dictionary` is the number of its group's, used if it needs that."""
        if packed.codec == SLICE:
            size = packed.size
            return Ref(packed.offset, size, size, packed.sha256, SLICE, dictionary)
        self._pad()
        offset = self._end
        self._end += self._file.write(packed.stored)
        return Ref(
            offset=offset,
            stored_size=len(packed.stored),
            size=packed.size,
            sha256=packed.sha256,
            codec=packed.codec,
            dictionary=dictionary if packed.with_dictionary else NO_DICTIONARY,
        )

    def map(self, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """`work` on each item in threads; results in order, few items in memory at a time."""
        running: deque[Future[R]] = deque()
        for item in items:
            running.append(self._pool.submit(work, item))
            if len(running) > self._jobs:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()

    def finish(self, sections: list[tuple[bytes, int, Ref]]) -> tuple[int, bytes]:
        """Write the header; returns the size of the file and its id."""
        self._pad()
        identity = bundle_id(MAJOR, sections)
        table = b"".join(SECTION.pack(name, flags, 0) + ref.pack() for name, flags, ref in sections)
        header = partial(HEADER.pack, MAGIC, MAJOR, MINOR, len(sections), self._end)
        check = header_check(header(bytes(8), identity), table)
        self._file.seek(0)
        self._file.write(header(check, identity) + table)
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._end, identity

    def _pad(self) -> None:
        self._end += self._file.write(bytes(-self._end % ALIGNMENT))


def _write_code_objects(
    writer: _Writer,
    order: list[str],
    contents: Mapping[str, bytes],
    compression: Compression,
) -> dict[str, Ref]:
    """The Ref of each code object, by SHA-256 (hex)."""
    items = (_allowed(contents[digest]) for digest in order)
    refs: dict[str, Ref] = {}
    packed_groups: Iterator[PackedGroup] = (
        (PackedGroup((store(content),), None) for content in items)
        if compression == "raw"
        else writer.map(pack_group, group(items))
    )
    for packed in packed_groups:
        digests = order[len(refs) : len(refs) + len(packed.members)]
        refs.update(_write_group(writer, packed, digests))
    return refs


def _allowed(code_object: bytes) -> bytes:
    if len(code_object) > MAX_BLOB:
        raise FlycError(f"a code object of {len(code_object)} bytes; at most {MAX_BLOB} fit")
    return code_object


def _write_group(writer: _Writer, packed: PackedGroup, digests: list[str]) -> dict[str, Ref]:
    number = len(writer.dictionaries)
    if isinstance(packed.dictionary, Packed):
        writer.dictionaries.append(writer.blob(packed.dictionary))
    refs: dict[str, Ref] = {}
    for digest, member in zip(digests, packed.members, strict=True):
        if member.sha256.hex() != digest:
            raise FlycError(f"code object {digest} has the SHA-256 {member.sha256.hex()}")
        refs[digest] = writer.blob(member, number)
    if isinstance(packed.dictionary, int):
        writer.dictionaries.append(refs[digests[packed.dictionary]])
    return refs


def _write_dictionaries(writer: _Writer) -> Ref:
    return _write_tree(
        writer,
        ((n.to_bytes(4, "big"), ref.pack()) for n, ref in enumerate(writer.dictionaries)),
    )


def _records(
    ordered: _Ordered, contents: BundleContents, code_objects: Mapping[str, Ref]
) -> Iterator[tuple[bytes, bytes]]:
    """The entries of the index: each kernel's record, then those of its specialisations."""
    for kernel, items in itertools.groupby(ordered, key=lambda item: item[1].kernel):
        family = list(items)
        order = contents.parameter_order.get(kernel, ())
        specs = [spec for _, spec in family]
        yield kernel.encode() + b"\0", canonical_json(_kernel_record(kernel, specs, order))
        for key, spec in family:
            blob = code_objects[spec.code_object].to_json()
            yield key, canonical_json({**spec.to_json(), "blob": blob})


def _kernel_record(
    kernel: str, specs: list[Specialisation], order: Sequence[str]
) -> dict[str, Any]:
    values: dict[str, dict[bytes, Any]] = {}
    uses: Counter[str] = Counter()
    for spec in specs:
        uses.update(spec.params.keys())
        for name, value in spec.params.items():
            values.setdefault(name, {})[canonical_json(value)] = value
    listed = [name for name in dict.fromkeys(order) if name in values]
    return {
        "kernel": kernel,
        "params": [*listed, *sorted(set(values) - set(listed))],
        "fixed": {
            name: next(iter(found.values()))
            for name, found in values.items()
            if len(found) == 1 and uses[name] == len(specs)
        },
        "targets": sorted({str(spec.target) for spec in specs}),
        "specialisations": len(specs),
    }


def _table_records(contents: BundleContents) -> Iterator[tuple[bytes, bytes]]:
    """The entries of the tables section: each table's record, then its rows."""
    built = {spec.key() for spec in contents.specialisations}
    entries: dict[bytes, bytes] = {}
    for kernel, table in contents.tables.items():
        record = {
            "kernel": kernel,
            "exact": table.exact,
            "nearest": table.nearest,
            "rows": len(table.rows),
        }
        entries[table_key(kernel)] = canonical_json(record)
        for row in table.rows:
            exact = [row.keys[name] for name in table.exact]
            nearest = [row.keys[name] for name in table.nearest]
            key = row_key(kernel, row.target, exact, nearest)
            if specialisation_key(kernel, row.params, row.target) not in built:
                raise FlycError(f"the table of {kernel} has a row without specialisation: {row}")
            if key in entries:
                raise FlycError(f"the table of {kernel} has the row {row} twice")
            entries[key] = canonical_json(row.params)
    return iter(sorted(entries.items()))


def _describe(
    contents: BundleContents, ordered: _Ordered, code_objects: Mapping[str, Ref]
) -> bytes:
    meta = {
        **contents.meta,
        "name": contents.name,
        "targets": sorted({str(spec.target) for _, spec in ordered}),
        "counts": {
            "specialisations": len(ordered),
            "kernels": len({spec.kernel for _, spec in ordered}),
            "code_objects": len(code_objects),
        },
    }
    data = canonical_json(meta)
    if len(data) > MAX_META:
        raise FlycError(f"bundle {contents.name}: its description takes {len(data)} bytes")
    return data


def _write_stages(writer: _Writer, contents: BundleContents, ordered: _Ordered) -> Ref:
    """Append the stages, equal texts once, and their tree."""
    refs: dict[bytes, Ref] = {}
    entries: list[tuple[bytes, bytes]] = []

    def texts() -> Iterator[bytes]:
        for key, spec in ordered:
            stages = contents.stages.get(key, ())
            if len(stages) > _STAGES_AT_MOST:
                raise FlycError(f"{spec.label()} has more than {_STAGES_AT_MOST} stages")
            for number, (name, text) in enumerate(stages):
                content = text.encode()
                digest = hashlib.sha256(content).digest()
                entries.append((b"%s\0%02d %s" % (key, number, name.encode("ascii")), digest))
                if digest not in seen:
                    seen.add(digest)
                    yield _allowed(content)

    seen: set[bytes] = set()
    for packed in writer.map(partial(pack, level=_STAGE_LEVEL), texts()):
        refs[packed.sha256] = writer.blob(packed)
    return _write_tree(writer, ((key, refs[digest].pack()) for key, digest in entries))


def _write_tree(writer: _Writer, entries: Iterable[tuple[bytes, bytes]]) -> Ref:
    """Append the tree of `entries`, which come in the order of their keys; returns its root."""
    level = 0
    while True:
        pages = _pages(entries, *((_INNER_BYTES, _INNER_ENTRIES) if level else (_LEAF_BYTES, 1)))
        children = [
            (first, writer.blob(packed).pack())
            for first, packed in writer.map(partial(_pack_node, level), pages)
        ]
        if len(children) == 1:
            return Ref.unpack(children[0][1])
        entries, level = children, level + 1
        if level == MAX_LEVELS:
            raise FlycError("the index has too many entries for this format")


_Page = list[tuple[bytes, bytes]]


def _pages(entries: Iterable[tuple[bytes, bytes]], target: int, fewest: int) -> Iterator[_Page]:
    """Entries in pages of about `target` bytes and at least `fewest` entries.

    There is one empty page when there are no entries.
    """
    page: _Page = []
    size = 0
    for key, value in entries:
        entry = NODE_ENTRY.size + len(key) + len(value)
        if len(page) >= fewest and size + entry > target:
            yield page
            page, size = [], 0
        page.append((key, value))
        size += entry
    yield page


def _pack_node(level: int, page: _Page) -> tuple[bytes, Packed]:
    at = NODE.size + len(page) * NODE_ENTRY.size
    table, heap = [NODE.pack(NODE_MAGIC, level, len(page), 0)], []
    for key, value in page:
        table.append(NODE_ENTRY.pack(at, len(key), at + len(key), len(value)))
        heap += [key, value]
        at += len(key) + len(value)
    if at > MAX_NODE:
        raise FlycError(f"the records around {page[0][0]!r:.80} take {at} bytes, too many")
    content = b"".join(table + heap)
    return page[0][0] if page else b"", store(content) if level else pack(content)


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Turn an `OSError` into one message that names the path and what can be done."""
    try:
        yield
    except OSError as error:
        advice = {
            errno.ENOSPC: " Free some space, or write to another directory.",
            errno.EDQUOT: " Free some of your quota, or write to another directory.",
            errno.EROFS: " Choose a directory that can be written.",
            errno.EACCES: " Choose a directory that you may write.",
        }.get(error.errno or 0, "")
        raise FlycError(
            f"cannot write the bundle into {path}: {error.strerror or error}.{advice}"
        ) from error


@contextmanager
def _removed_unless_published(temporary: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
