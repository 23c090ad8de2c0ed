"""Checking a whole bundle: every blob, every record, and that no byte is left unexplained."""

from __future__ import annotations

from dataclasses import dataclass, field

from runtime_loader.checked import Fields, parse_json
from runtime_loader.errors import BundleError, PlanError
from runtime_loader.format import (
    HEADER,
    KNOWN_SECTIONS,
    MAX_BLOB,
    MAX_DICTIONARY,
    MAX_META,
    MAX_SIGNATURES,
    META,
    NO_DICTIONARY,
    SECTION_ENTRY_SIZE,
    SIGNATURES,
    SLICE,
    Ref,
)
from runtime_loader.specialisation import Specialisation, specialisation_key
from runtime_loader.table import Table
from runtime_loader.tree import WALK_BYTES, WALK_FACTOR, Tree
from runtime_loader.trust import embedded_signatures

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runtime_loader.bundle_file import BundleFile


def verify_bundle(bundle: BundleFile) -> None:
    """Raise `BundleError` for the first thing that is wrong in `bundle`."""
    _Verification(bundle).run()


@dataclass
class _Kernel:
    """What the records of one kernel's specialisations add up to."""

    record: Fields
    targets: set[str] = field(default_factory=set)
    specialisations: int = 0


class _Verification:
    def __init__(self, bundle: BundleFile) -> None:
        self._bundle = bundle
        self._read: set[Ref] = set()
        self._extents: dict[int, int] = {}
        self._left = WALK_BYTES + WALK_FACTOR * bundle.size

    def run(self) -> None:
        bundle = self._bundle
        self._blob(bundle.sections[META][1], MAX_META, "its description")
        self._dictionaries()
        self._records()
        if bundle.tables is not None:
            self._tables(bundle.tables)
        if bundle.stages is not None:
            self._stages(bundle.stages)
        if SIGNATURES in bundle.sections:
            self._signatures(bundle.sections[SIGNATURES][1])
        self._layout()

    def _blob(self, ref: Ref, limit: int, what: str) -> bytes | memoryview:
        """Read a blob, once for each Ref (a second reading returns nothing)."""
        if ref in self._read:
            return b""
        self._left -= ref.size
        if self._left < 0:
            raise self._bundle.blobs.damaged(what, "the bundle unpacks to far too much")
        content = self._bundle.blobs.read(ref, limit, what)
        self._read.add(ref)
        self._extent(ref)
        return content

    def _extent(self, ref: Ref) -> None:
        if ref.codec == SLICE or not ref.stored_size:
            return
        if self._extents.setdefault(ref.offset, ref.stored_size) != ref.stored_size:
            raise self._overlap(ref.offset)

    def _overlap(self, offset: int) -> BundleError:
        return self._bundle.blobs.damaged(f"the blob at {offset}", "it overlaps another")

    def _dictionaries(self) -> None:
        for key, value in self._bundle.dictionaries.items(visit=self._extent):
            what = f"dictionary {int.from_bytes(key, 'big')}"
            ref = self._bundle.blobs.parse_ref(value, what)
            if len(key) != 4 or ref.dictionary != NO_DICTIONARY:
                raise self._bundle.blobs.damaged(what, "its number or codec is wrong")
            self._blob(ref, MAX_DICTIONARY, what)

    def _records(self) -> None:
        kernels: dict[bytes, _Kernel] = {}
        code_objects: set[str] = set()
        for key, value in self._bundle.index.items(visit=self._extent):
            name, separator, rest = key.partition(b"\0")
            what = f"{self._bundle.path}: record {key!r:.120}"
            record = Fields(parse_json(value, what), what)
            if not rest:
                if not separator or record.text("kernel").encode(errors="replace") != name:
                    raise BundleError(f"{what} is damaged: it is of another kernel")
                kernels[name] = _Kernel(record)
                continue
            if name not in kernels:
                raise BundleError(f"{what} is damaged: its kernel has no record")
            spec = self._specialisation(key, record)
            kernels[name].targets.add(str(spec.target))
            kernels[name].specialisations += 1
            code_objects.add(spec.code_object)
        for kernel in kernels.values():
            if (
                kernel.record.integer("specialisations") != kernel.specialisations
                or set(map(str, kernel.record.items("targets"))) != kernel.targets
            ):
                raise BundleError(
                    f"{kernel.record.what} is damaged: it disagrees with the kernel's "
                    f"{kernel.specialisations} specialisations"
                )
        found = {
            "kernels": len(kernels),
            "specialisations": sum(kernel.specialisations for kernel in kernels.values()),
            "code_objects": len(code_objects),
        }
        stated = self._bundle.meta.get("counts")
        if stated != found:
            raise BundleError(
                f"{self._bundle.path} is damaged: it says that it holds {stated} and holds {found}"
            )

    def _specialisation(self, key: bytes, record: Fields) -> Specialisation:
        try:
            spec = Specialisation.read(record)
            agrees = spec.key() == key
        except (PlanError, UnicodeEncodeError) as error:
            raise BundleError(f"{record.what} is damaged: {error}") from None
        ref = Ref.from_json(record.optional("blob"), record.what)
        if not agrees or spec.code_object != ref.sha256.hex():
            raise BundleError(
                f"{record.what} is damaged: its key, parameters and code object disagree"
            )
        self._blob(ref, MAX_BLOB, f"the code object of {spec.label()}")
        return spec

    def _tables(self, tables: Tree) -> None:
        """Every row is where a lookup finds it, and means a specialisation of the bundle."""
        rows: dict[str, int] = {}
        table: Table | None = None
        for key, value in tables.items(visit=self._extent):
            what = f"{self._bundle.path}: table record {key!r:.120}"
            kernel, separator, rest = key.partition(b"\0")
            if not rest:
                record = Fields(parse_json(value, what), what)
                if not separator or record.text("kernel").encode(errors="replace") != kernel:
                    raise BundleError(f"{what} is damaged: it is of another kernel")
                if self._bundle.index.find(key) is None:
                    raise BundleError(f"{what} is damaged: the bundle lacks its kernel")
                table = Table(self._bundle, record.text("kernel"))
                rows[table.kernel] = table.rows
                continue
            if table is None or table.kernel.encode() != kernel:
                raise BundleError(f"{what} is damaged: it belongs to no table")
            row = table.row_at(key, value)
            rows[table.kernel] -= 1
            if (
                self._bundle.index.find(specialisation_key(table.kernel, row.params, row.target))
                is None
            ):
                raise BundleError(f"{what} is damaged: the bundle lacks its specialisation")
        for name, missing in rows.items():
            if missing:
                raise BundleError(
                    f"{self._bundle.path} is damaged: the table of {name} states another number "
                    "of rows than it has"
                )

    def _stages(self, stages: Tree) -> None:
        for key, value in stages.items(visit=self._extent):
            of, _, name = key.rpartition(b"\0")
            what = f"stage {name!r:.60}"
            if self._bundle.index.find(of) is None:
                raise self._bundle.blobs.damaged(what, "the bundle lacks its specialisation")
            try:
                str(self._blob(self._bundle.blobs.parse_ref(value, what), MAX_BLOB, what), "utf-8")
            except UnicodeDecodeError:
                raise self._bundle.blobs.damaged(what, "it is not UTF-8 text") from None

    def _signatures(self, ref: Ref) -> None:
        """They can be read; whose they are is asked by `runtime_loader.trust`."""
        self._blob(ref, MAX_SIGNATURES, "its signatures")
        embedded_signatures(self._bundle)

    def _layout(self) -> None:
        """No two blobs overlap, and what lies between them is zero."""
        bundle = self._bundle
        at = HEADER.size + len(bundle.sections) * SECTION_ENTRY_SIZE
        gaps = []
        for offset, size in sorted(self._extents.items()):
            if offset < at:
                raise self._overlap(offset)
            gaps.append((at, offset))
            at = offset + size
        gaps.append((at, bundle.size))
        if not set(bundle.sections) <= KNOWN_SECTIONS:
            return  # what an unknown section refers to cannot be told from padding
        for start, end in gaps:
            if not bundle.is_zero(start, end):
                raise bundle.blobs.damaged(f"the padding at {start} to {end}", "it is not zero")
