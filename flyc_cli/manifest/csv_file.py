"""CSV with places: the cells of each row, and the line and column where each of them is."""

from __future__ import annotations

import csv
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from flyc_cli.manifest.messages import shown
from flyc_cli.manifest.source import ManifestError, Place

MAX_BYTES = 256 << 20
MAX_ROWS = 1_000_000

_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False}
_BOOLEANS |= {"FALSE": False}

TYPES = ("int", "float", "bool", "text")
Cell = bool | int | float | str | None


@dataclass(frozen=True)
class CsvRow:
    """One row: its line in the file (from 1), and the text of its cells."""

    line: int
    cells: tuple[str, ...]


@dataclass(frozen=True)
class CsvFile:
    """A CSV file with a header line; `sha256` (hex) is that of its bytes."""

    file: str
    header: tuple[str, ...]
    rows: tuple[CsvRow, ...]
    sha256: str
    lines: tuple[str, ...]

    def place(self, row: CsvRow, cell: int) -> Place:
        """Where a cell starts: line, and column in characters."""
        return Place(self.file, row.line, _column(self.lines[row.line - 1], cell))

    def fail(self, row: CsvRow, cell: int, message: str) -> NoReturn:
        raise ManifestError(self.place(row, cell), message)


def read_csv(path: Path, file: str) -> CsvFile:
    """Read the CSV file at `path`, which messages call `file`.

    RFC 4180 with a header line, UTF-8; a cell may not span lines; empty lines are skipped, and so
    are lines that start with `#`. Raises `ManifestError`.
    """
    start = Place(file, 1, 1)
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ManifestError(start, f"cannot read the rows: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ManifestError(start, f"the file is larger than {MAX_BYTES >> 20} MiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ManifestError(Place(file, line, 1), "the file is not UTF-8 text") from None
    lines = tuple(line.removesuffix("\r") for line in text.split("\n"))
    rows = [
        CsvRow(number, _cells(line, Place(file, number, 1)))
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.startswith("#")
    ]
    if not rows:
        raise ManifestError(start, "the file is empty; its first line names the columns")
    header, *body = rows
    names = tuple(cell.strip() for cell in header.cells)
    parsed = CsvFile(file, names, tuple(body), hashlib.sha256(data).hexdigest(), lines)
    for index, name in enumerate(names):
        if name in names[:index]:
            parsed.fail(header, index, f"the column {shown(name)} is there twice")
    if len(body) > MAX_ROWS:
        raise ManifestError(start, f"the file has more than {MAX_ROWS:,} rows")
    for row in body:
        if len(row.cells) != len(names):
            parsed.fail(
                row,
                min(len(row.cells), len(names)) - 1,
                f"the row has {len(row.cells)} cells, and the header {len(names)}",
            )
    return parsed


def read_cell(text: str, kind: str | None) -> Cell:
    """The value of a cell: as `kind` says, or what it looks like. An empty cell is None.

    Raises `ValueError` with what was expected.
    """
    text = text.strip()
    if not text:
        return None
    if kind == "text":
        return text
    if kind == "bool" or (kind is None and text in _BOOLEANS):
        if text not in (*_BOOLEANS, "0", "1"):
            raise ValueError("true or false")
        return _BOOLEANS.get(text, text == "1")
    if kind == "int" or (kind is None and _INTEGER.fullmatch(text)):
        # Tables that were written through floats have 16.0 where 16 is meant.
        whole = text.removesuffix(".0") if kind == "int" else text
        if not _INTEGER.fullmatch(whole) or len(whole) > 30:
            raise ValueError("an integer")
        value = int(whole)
        if not -(2**63) <= value < 2**64:
            raise ValueError("an integer of at most 64 bits")
        return value
    if kind == "float" or (kind is None and _FLOAT.fullmatch(text)):
        if not _FLOAT.fullmatch(text):
            raise ValueError("a number")
        number = float(text)
        if abs(number) == float("inf"):
            raise ValueError("a finite number")
        return number
    return text


def _cells(line: str, place: Place) -> tuple[str, ...]:
    try:
        return tuple(next(csv.reader([line], strict=True)))
    except csv.Error as error:
        hint = "; a cell cannot span lines" if line.count('"') % 2 else ""
        raise ManifestError(place, f"not CSV: {error}{hint}") from None


def _column(line: str, cell: int) -> int:
    """The column (from 1) where a cell starts."""
    quoted = False
    seen = 0
    for position, character in enumerate(line):
        if seen == cell:
            return position + 1
        if character == '"':
            quoted = not quoted
        elif character == "," and not quoted:
            seen += 1
    return len(line) + 1
