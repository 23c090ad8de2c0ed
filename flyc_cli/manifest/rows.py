"""Rows from a CSV or YAML file, or written in the manifest: filtered, mapped to parameters, merged.

The columns of a row are what templates here may use. Rows with equal parameters become one row of
the kernel's matrix; what the tuned table is looked up with stays with it as keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flyc_cli.manifest.csv_file import CsvFile, CsvRow, read_cell, read_csv
from flyc_cli.manifest.expressions import ExpressionError, has_template, parse_template
from flyc_cli.manifest.messages import choices, kind_of, nearest, shown
from flyc_cli.manifest.model import (
    ListValue,
    Row,
    TupleValue,
    TypeValue,
    Value,
    covers,
    json_value,
)
from flyc_cli.manifest.source import KeyPath, ManifestError, Place, Spot, read_document
from runtime_loader.target import Target, TargetError

_TYPE_HINT = ", or say how to read a CSV column: columns: {{{}: {{type: text}}}}"
_NEAREST_RANGE = range(-(2**63), 2**63)


@dataclass(frozen=True)
class Column:
    """How a column is read: its header in the file, and its type (one of TYPES, or None)."""

    header: str
    type: str | None = None


@dataclass(frozen=True)
class RowsSpec:
    """What `rows` says. `params` and `keys` are values with templates of columns; None as `params`
    means every column. `spot` is that of `rows` in the manifest."""

    spot: Spot
    columns: Mapping[str, Column] = field(default_factory=dict)
    params: Mapping[str, Value] | None = None
    keys: Mapping[str, Any] = field(default_factory=dict)
    nearest: tuple[str, ...] = ()
    where: str | None = None
    targets: str | None = None
    best: str | None = None


@dataclass(frozen=True)
class RawRow:
    """A row as it was read: its cells by column, and the places of both."""

    cells: Mapping[str, Any]
    place: Place
    place_of: Callable[[str], Place]


@dataclass(frozen=True)
class RawRows:
    """All rows of a source, which messages call `name`. `sha256` is empty for the manifest's."""

    name: str
    columns: tuple[str, ...]
    rows: Sequence[RawRow]
    sha256: str = ""


def read_rows_file(path: Path, file: str, spec: RowsSpec) -> RawRows:
    """The rows of a CSV file, or of a YAML file (`.yaml`, `.yml`) with a list of mappings."""
    if path.suffix in (".yaml", ".yml"):
        document = read_document(path)
        return yaml_rows(document.value, document.spot, document.sha256)
    return _csv_rows(read_csv(path, file), spec)


def yaml_rows(value: Any, spot: Spot, sha256: str = "") -> RawRows:
    """Rows that are a list of mappings."""
    if not isinstance(value, list) or not value:
        spot.fail(f"expected a list of rows, found {kind_of(value)}")
    rows = []
    for i, cells in enumerate(value):
        at = spot.at(i)
        if not isinstance(cells, dict) or not cells:
            at.fail(f"expected a row of values by column, found {kind_of(cells)}")
        for name, cell in cells.items():
            if isinstance(cell, (dict, list)):
                at.at(name).fail(
                    f"a cell is text, a number, true, false or null, not {shown(cell)}"
                )
        for name in value[0]:
            if name not in cells:
                at.fail(f"the row has no {name!r}, which the first row has")
        for name in cells:
            if name not in value[0]:
                at.at(name).fail_at_key(
                    f"the first row has no {shown(name)}{nearest(name, value[0])}"
                )
        rows.append(RawRow(cells, at.place, _yaml_place(at)))
    return RawRows(spot.file, tuple(value[0]), rows, sha256)


def _yaml_place(spot: Spot) -> Callable[[str], Place]:
    return lambda column: spot.at(column).place


def _csv_rows(file: CsvFile, spec: RowsSpec) -> RawRows:
    headers = dict(zip(file.header, file.header, strict=True))
    for name, column in spec.columns.items():
        if column.header not in file.header:
            spec.spot.at("columns", name).fail(
                f"{file.file} has no column {shown(column.header)}"
                f"{nearest(column.header, file.header)}; it has {choices(file.header)}"
            )
        headers.pop(column.header, None)
        headers[name] = column.header
    positions = {name: file.header.index(header) for name, header in headers.items()}
    kinds = {name: column.type for name, column in spec.columns.items()}
    rows = []
    for row in file.rows:
        cells = _LazyCells(file, row, positions, kinds)
        rows.append(RawRow(cells, Place(file.file, row.line, 1), cells.place_of))
    return RawRows(file.file, tuple(headers), rows, file.sha256)


class _LazyCells(Mapping[str, Any]):
    """The cells of a CSV row, read when they are used: other columns may hold anything."""

    def __init__(
        self,
        file: CsvFile,
        row: CsvRow,
        positions: Mapping[str, int],
        kinds: Mapping[str, str | None],
    ) -> None:
        self._file = file
        self._row = row
        self._positions = positions
        self._kinds = kinds

    def __getitem__(self, name: str) -> Any:
        text = self._row.cells[self._positions[name]]
        kind = self._kinds.get(name)
        try:
            value = read_cell(text, kind)
        except ValueError as error:
            self._file.fail(
                self._row, self._positions[name], f"{name}: {shown(text)} is not {error}"
            )
        if value is None and kind is not None:
            self._file.fail(
                self._row, self._positions[name], f"{name}: the cell is empty; expected {kind}"
            )
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._positions)

    def __len__(self) -> int:
        return len(self._positions)

    def place_of(self, name: str) -> Place:
        return self._file.place(self._row, self._positions[name])


def table_rows(raw: RawRows, spec: RowsSpec, targets: Sequence[Target]) -> tuple[Row, ...]:
    """The rows of the kernel's matrix, in order of first appearance.

    `targets` are those of the kernel. Raises `ManifestError` at the cell that is wrong, and where
    no row is left.
    """
    return _Table(raw, spec, targets).rows()


_Identity = tuple[tuple[type, Any], ...]


def _identity(values: Mapping[str, Any]) -> _Identity:
    """Equal for equal values only: 1, 1.0 and true are three."""
    return tuple(
        (type(value), repr(value) if isinstance(value, (TupleValue, ListValue)) else value)
        for value in values.values()
    )


@dataclass
class _Merged:
    values: Mapping[str, Value]
    targets: tuple[Target, ...]
    spot: Spot
    keys: dict[_Identity, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Line:
    """One row of the table after mapping."""

    values: Mapping[str, Value]
    keys: Mapping[str, Any]
    targets: tuple[Target, ...]
    spot: Spot
    score: float


class _Table:
    def __init__(self, raw: RawRows, spec: RowsSpec, targets: Sequence[Target]) -> None:
        self._raw = raw
        self._spec = spec
        self._targets = targets
        self._params: Mapping[str, Value] = (
            {name: f"${name}" for name in raw.columns} if spec.params is None else spec.params
        )
        self._kinds: dict[str, tuple[str, Place]] = {}
        self._dropped = {"where": 0, "targets": 0}
        conditions = {"where": spec.where, "targets": spec.targets, "best": spec.best}
        self._sources = _sources({**spec.keys, **self._params, **conditions})
        self._check_names()

    def _check_names(self) -> None:
        """Every template names columns only."""
        spot = self._spec.spot
        places: list[tuple[Spot, Any]] = [
            (spot.at(key), getattr(self._spec, key)) for key in ("where", "targets", "best")
        ]
        places += [(spot.at("params", name), value) for name, value in self._params.items()]
        places += [(spot.at("keys", name), value) for name, value in self._spec.keys.items()]
        for at, value in places:
            for text in _texts(value):
                try:
                    names = parse_template(text).names
                except ExpressionError as error:
                    at.fail(str(error))
                for name in sorted(names):
                    if name not in self._raw.columns:
                        at.fail(
                            f"{self._raw.name} has no column {shown(name)}"
                            f"{nearest(name, self._raw.columns)}; "
                            f"it has {choices(self._raw.columns)}"
                        )

    def rows(self) -> tuple[Row, ...]:
        merged: dict[tuple[_Identity, tuple[Target, ...]], _Merged] = {}
        for line in self._chosen():
            key = (_identity(line.values), line.targets)
            entry = merged.setdefault(key, _Merged(line.values, line.targets, line.spot))
            if line.keys:
                entry.keys[_identity(line.keys)] = line.keys
        if not merged:
            dropped = " and ".join(f"{n:,} by {key}" for key, n in self._dropped.items() if n)
            self._spec.spot.fail(
                f"no row of {self._raw.name} is left: of {len(self._raw.rows):,}, "
                f"{dropped or 'none'} {'are' if dropped else 'is'} dropped"
            )
        return tuple(
            Row(entry.values, entry.targets, tuple(entry.keys.values()), entry.spot)
            for entry in merged.values()
        )

    def _chosen(self) -> Iterator[_Line]:
        """The rows that are wanted; of several with the same keys the best, or it is an error."""
        first: dict[tuple[_Identity, tuple[Target, ...]], _Line] = {}
        for row in self._raw.rows:
            line = self._line(row)
            if line is None:
                continue
            if not self._spec.keys:
                yield line
                continue
            key = (_identity(line.keys), line.targets)
            other = first.setdefault(key, line)
            if other is line:
                continue
            if self._spec.best is not None:
                if line.score < other.score:
                    first[key] = line
            elif _identity(other.values) != _identity(line.values):
                line.spot.fail(
                    f"{_shown(line.keys)} is at line {other.spot.place.line} too, with other "
                    f"parameters ({_shown(other.values)}, here {_shown(line.values)}); keep one, "
                    "add a key that tells them apart, or say which is best (best: $time)"
                )
        yield from first.values()

    def _line(self, row: RawRow) -> _Line | None:
        spec = self._spec
        spot = self._spot(row)
        if spec.where is not None:
            holds = self._filled(spec.where, row, spot.at("where"))
            if not isinstance(holds, bool):
                spot.at("where").fail(
                    f"{shown(holds)} is not true or false; where is a condition such as "
                    '"${M > 16}"'
                )
            if not holds:
                self._dropped["where"] += 1
                return None
        targets: tuple[Target, ...] = ()
        if spec.targets is not None:
            target = self._target(self._filled(spec.targets, row, spot.at("targets")), spot)
            if not any(covers(target, other) for other in self._targets):
                self._dropped["targets"] += 1
                return None
            targets = (target,)
        return _Line(
            values={
                name: _literal(self._filled(value, row, spot.at(name)))
                for name, value in self._params.items()
            },
            keys={name: self._key(name, row, spot) for name in spec.keys},
            targets=targets,
            spot=spot,
            score=self._score(row, spot),
        )

    def _score(self, row: RawRow, spot: Spot) -> float:
        if self._spec.best is None:
            return 0.0
        score = self._filled(self._spec.best, row, spot.at("best"))
        if isinstance(score, bool) or not isinstance(score, (int, float)):
            spot.at("best").fail(f"{shown(score)} is not a number; the smallest is the best")
        return float(score)

    def _key(self, name: str, row: RawRow, spot: Spot) -> Any:
        value = self._filled(self._spec.keys[name], row, spot.at(name))
        if name in self._spec.nearest and (
            isinstance(value, bool) or not isinstance(value, int) or value not in _NEAREST_RANGE
        ):
            spot.at(name).fail(f"{shown(value)} is not a 64-bit integer, as a nearest key must be")
        return value

    @staticmethod
    def _target(value: Any, spot: Spot) -> Target:
        if not isinstance(value, str):
            spot.at("targets").fail(f"{shown(value)} is not a target such as gfx942")
        try:
            return Target.parse(value)
        except TargetError as error:
            spot.at("targets").fail(str(error))

    def _spot(self, row: RawRow) -> Spot:
        path: KeyPath = ("row",)
        return Spot(row.place.file, _RowPlaces(row, path, self._sources), {}, path)

    def _filled(self, value: Any, row: RawRow, spot: Spot) -> Any:
        """A value with its templates filled in from the row."""
        if isinstance(value, TypeValue):
            return TypeValue(str(self._filled(value.name, row, spot)))
        if isinstance(value, (TupleValue, ListValue)):
            return type(value)(tuple(self._filled(item, row, spot) for item in value.items))
        if not has_template(value):
            return value
        template = parse_template(value)
        try:
            cells = {name: row.cells[name] for name in template.names}
            for name, cell in cells.items():
                self._check_kind(name, cell, row)
            return template.evaluate(cells)
        except ExpressionError as error:
            spot.fail(str(error))

    def _check_kind(self, name: str, cell: Any, row: RawRow) -> None:
        """A column whose cells are text here and numbers there is a mistake, not a choice."""
        column = self._spec.columns.get(name)
        if cell is None or (column is not None and column.type is not None):
            return
        kind = (
            "true or false"
            if isinstance(cell, bool)
            else "a number"
            if isinstance(cell, (int, float))
            else "text"
        )
        first, place = self._kinds.setdefault(name, (kind, row.place))
        if kind != first:
            raise ManifestError(
                row.place_of(name),
                f"{name} is {kind} here ({shown(cell)}) and {first} at line {place.line}; correct "
                f"one{_TYPE_HINT.format(name) if self._raw.sha256 else ''}",
            )


class _RowPlaces(Mapping[KeyPath, Place]):
    """The places of one row, worked out when an error asks for them."""

    def __init__(self, row: RawRow, path: KeyPath, sources: Mapping[str, str]) -> None:
        self._row = row
        self._path = path
        self._sources = sources

    def __getitem__(self, path: KeyPath) -> Place:
        if path == self._path:
            return self._row.place
        if path[:1] == self._path and len(path) == 2 and path[1] in self._sources:
            column = self._sources[str(path[1])]
            return self._row.place_of(column) if column else self._row.place
        raise KeyError(path)

    def __iter__(self) -> Iterator[KeyPath]:
        yield self._path
        for name in self._sources:
            yield (*self._path, name)

    def __len__(self) -> int:
        return 1 + len(self._sources)


def _literal(value: Any) -> Any:
    """A dollar sign that came from a cell stays one in the kernel's own templates."""
    if isinstance(value, TypeValue):
        return TypeValue(_literal(value.name))
    if isinstance(value, (TupleValue, ListValue)):
        return type(value)(tuple(_literal(item) for item in value.items))
    return value.replace("$", "$$") if isinstance(value, str) else value


def _sources(values: Mapping[str, Any]) -> dict[str, str]:
    """For each value the first column that it is made from, or nothing."""
    return {name: next(iter(_names(value)), "") for name, value in values.items()}


def _names(value: Any) -> list[str]:
    names: list[str] = []
    for text in _texts(value):
        try:
            names += sorted(parse_template(text).names, key=text.find)
        except ExpressionError:
            continue
    return names


def _texts(value: Any) -> Iterator[str]:
    """The templates in a value."""
    if isinstance(value, TypeValue):
        value = value.name
    if isinstance(value, (TupleValue, ListValue)):
        for item in value.items:
            yield from _texts(item)
    elif has_template(value):
        yield value


def _shown(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={json_value(value)}" for name, value in values.items())
