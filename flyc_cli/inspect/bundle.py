"""What a bundle holds, as data: its summary, and the specialisations of a kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyc_cli.inspect.selection import choose_targets, fits, nothing_fits
from runtime_loader.bundle_file import BundleFile
from runtime_loader.catalogue import Catalogue, KernelRecord
from runtime_loader.checked import Fields
from runtime_loader.errors import MissError
from runtime_loader.format import MAGIC, Ref
from runtime_loader.specialisation import Specialisation
from runtime_loader.table import Table, TableRow
from runtime_loader.target import Target


@dataclass(frozen=True)
class Summary:
    """A whole bundle. `size` is that of the file in bytes, `counts` what the build recorded.

    `tables` are the tuned tables of `kernels`, by kernel.
    """

    path: Path
    id: str
    name: str
    size: int
    counts: Mapping[str, int]
    targets: tuple[str, ...]
    has_stages: bool
    provenance: Mapping[str, Any]
    kernels: tuple[KernelRecord, ...]
    tables: Mapping[str, Table]


@dataclass(frozen=True)
class Entry:
    """One specialisation, with its parameters in the manifest's order.

    `size` is that of its code object in bytes, `stored_size` what it takes in the file (shared
    with every specialisation that has the same one).
    """

    spec: Specialisation
    params: Mapping[str, Any]
    size: int
    stored_size: int


def looks_like_bundle(path: Path) -> bool:
    """Whether `path` is to be read as a bundle: by its first bytes, or else by its name."""
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) == MAGIC:
                return True
    except OSError:
        pass
    return path.suffix not in (".yaml", ".yml")


@contextmanager
def open_bundle(path: Path) -> Iterator[BundleFile]:
    """The bundle at `path`, closed afterwards. Raises `BundleError`."""
    file = BundleFile.open(path)
    try:
        yield file
    finally:
        file.close()


def summarise(file: BundleFile, target: Target | None = None) -> Summary:
    """The summary of a bundle; with `target`, of the kernels that are there for it."""
    catalogue = Catalogue(file)
    names = ("specialisations", "kernels", "code_objects")
    meta = Fields(file.meta, f"{file.path}: its description")
    provenance = meta.optional("provenance")
    counts = Fields(meta.mapping("counts"), meta.what)
    records = [catalogue.kernel_record(name) for name in catalogue.kernels()]
    kept = [record for record in records if choose_targets(target, record.targets)]
    targets = tuple(str(name) for name in meta.items("targets"))
    if not kept and target is not None:
        raise MissError(f"{file.path} has nothing for {target}; it has {', '.join(targets)}")
    return Summary(
        path=Path(file.path),
        id=file.id,
        name=meta.text("name"),
        size=file.size,
        counts={name: counts.integer(name) for name in names},
        targets=targets,
        has_stages=file.has_stages,
        provenance=provenance if isinstance(provenance, dict) else {},
        kernels=tuple(kept),
        tables=dict(_tables(file, kept)),
    )


def _tables(file: BundleFile, records: Sequence[KernelRecord]) -> Iterator[tuple[str, Table]]:
    for record in records:
        with suppress(MissError):
            yield record.kernel, Table(file, record.kernel)


def table_rows(
    file: BundleFile, kernel: str, given: Mapping[str, str], target: Target | None = None
) -> tuple[Table, tuple[TableRow, ...]]:
    """A kernel's tuned table, and its rows with these keys or parameters. Raises `MissError`."""
    Catalogue(file).kernel_record(kernel)
    table = Table(file, kernel)
    rows = tuple(
        row
        for row in table.scan()
        if (target is None or row.target == str(target)) and fits(given, {**row.params, **row.keys})
    )
    if not rows:
        raise MissError(
            f"the table of {kernel} has no such row; it is looked up with {', '.join(table.keys)} "
            f"and has {table.rows} rows"
        )
    return table, rows


def select(
    file: BundleFile, kernel: str, given: Mapping[str, str], target: Target | None = None
) -> tuple[Entry, ...]:
    """The specialisations that a selection fits, at least one. Raises `MissError`."""
    catalogue = Catalogue(file)
    record = catalogue.kernel_record(kernel)
    entries = []
    for params, targets in catalogue.variants(kernel):
        if fits(given, params):
            for name in choose_targets(target, targets):
                found = catalogue.specialisation(kernel, params, name)
                if found is not None:
                    entries.append(_entry(record, *found))
    if not entries:
        known = list(catalogue.variants(kernel))
        raise nothing_fits(Path(file.path).name, record.kernel, given, target, known)
    return tuple(entries)


def variants(file: BundleFile, kernel: str, given: Mapping[str, str]) -> list[dict[str, Any]]:
    """The sets of parameters that a selection fits, for any target. Raises `MissError`."""
    catalogue = Catalogue(file)
    record = catalogue.kernel_record(kernel)
    found = [params for params, _ in catalogue.variants(kernel) if fits(given, params)]
    if not found:
        known = list(catalogue.variants(kernel))
        raise nothing_fits(Path(file.path).name, record.kernel, given, None, known)
    return found


def code_object(file: BundleFile, spec: Specialisation) -> bytes:
    """The bytes of a specialisation's code object, checked."""
    found = Catalogue(file).specialisation(spec.kernel, spec.params, spec.target)
    assert found is not None
    return bytes(file.blob(found[1]))


def _entry(record: KernelRecord, spec: Specialisation, ref: Ref) -> Entry:
    params = {name: spec.params[name] for name in record.params if name in spec.params}
    return Entry(spec, params, ref.size, ref.stored_size)
