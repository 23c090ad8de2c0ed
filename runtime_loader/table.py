"""Tuned tables: which specialisation to use for a problem, as the rows of a manifest say.

A table lives in the bundle's `tables` section (docs/format.md). Its keys are exact, or `nearest`:
integers for which another row may stand in. A lookup takes the nearest keys in order, and for each
the smallest value that is not below what was asked for among the rows that agree in all keys before
it, or the largest if all are below.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Iterator, Mapping, Sequence

from runtime_loader.checked import Fields, canonical_json, parse_json
from runtime_loader.errors import BundleError, MissError
from runtime_loader.nearest import did_you_mean
from runtime_loader.records import dataclass
from runtime_loader.specialisation import format_params
from runtime_loader.target import Target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from runtime_loader.bundle_file import BundleFile

_RANK = struct.Struct(">Q")
_BIAS = 1 << 63
_SHOW_LIMIT = 8


@dataclass(frozen=True)
class TableRow:
    """One row: for `target` and these `keys`, use the specialisation with `params`."""

    target: str
    keys: dict[str, Any]
    params: dict[str, Any]


def table_key(kernel: str) -> bytes:
    """The key of a table's own record: the kernel's name."""
    return kernel.encode() + b"\0"


def row_key(kernel: str, target: str, exact: Sequence[Any], nearest: Sequence[int]) -> bytes:
    """The key of a row: rows that differ only in `nearest` are neighbours, by value.

    `nearest` values are -2**63 to 2**63 - 1.
    """
    head = b"\0".join([kernel.encode(), target.encode(), canonical_json(list(exact)), b""])
    return head + b"".join(_RANK.pack(value + _BIAS) for value in nearest)


class Table:
    """The table of one kernel.

    `keys` are the names that a lookup takes, the exact ones first; `nearest` are those of them that
    need not match; `rows` is how many rows there are, for all targets.
    """

    def __init__(self, file: BundleFile, kernel: str) -> None:
        self._file = file
        self._where = f"{os.path.basename(file.path)} ({file.id[:16]})"
        record = file.tables.find(table_key(kernel)) if file.tables is not None else None
        if record is None:
            raise MissError(
                f"{self._where} has no table for {kernel!r}: only kernels with rows and keys in "
                "the manifest have one; ask for the kernel by its parameters"
            )
        self.kernel = kernel
        self._what = f"{self._where}: table of {kernel}"
        fields = Fields(parse_json(record, self._what), self._what)
        self._exact = tuple(str(name) for name in fields.items("exact"))
        self.nearest = tuple(str(name) for name in fields.items("nearest"))
        self.keys = self._exact + self.nearest
        self.rows = fields.integer("rows")

    def find(self, targets: Sequence[Target | str], **keys: Any) -> TableRow | None:
        """The row for `keys`: exact if any target has it, else nearest; None if there is none.

        `targets` are tried in order; give `device.target.candidates()`, most specific first.
        Raises `MissError` for keys that the table does not have, or that lack a value.
        """
        wanted = self._values(keys)
        exact = [wanted[name] for name in self._exact]
        asked = [wanted[name] for name in self.nearest]
        heads = [row_key(self.kernel, str(target), exact, ()) for target in targets]
        tail = b"".join(_RANK.pack(value + _BIAS) for value in asked)
        for target, head in zip(targets, heads, strict=True):
            record = self._tree.find(head + tail)
            if record is not None:
                return self._row(str(target), wanted, record)
        for target, head in zip(targets, heads, strict=True):
            key = self._nearest_key(head, asked) if asked else None
            record = None if key is None else self._tree.find(key)
            if key is not None and record is not None:
                ranks = (rank - _BIAS for (rank,) in _RANK.iter_unpack(key[len(head) :]))
                found = dict(zip(self.nearest, ranks, strict=True))
                return self._row(str(target), {**wanted, **found}, record)
        return None

    def find_or_raise(self, targets: Sequence[Target | str], **keys: Any) -> TableRow:
        """As `find`, with a `MissError` that shows what the table has instead."""
        row = self.find(targets, **keys)
        if row is not None:
            return row
        names = {str(target) for target in targets}
        some = [row for row in itertools.islice(self.scan(), 10_000) if row.target in names]
        exact = list(
            dict.fromkeys(
                format_params({name: row.keys[name] for name in self._exact}) for row in some
            )
        )
        has = (
            f"its rows are for {'; '.join(exact[:_SHOW_LIMIT])}"
            f"{f' and {len(exact) - _SHOW_LIMIT} more' if len(exact) > _SHOW_LIMIT else ''}"
            if exact
            else "it has no rows for these targets"
        )
        raise MissError(
            f"{self._what} has no row for {format_params(keys)} on "
            f"{', '.join(map(str, targets))}; {has}"
        )

    def scan(self) -> Iterator[TableRow]:
        """Every row, by target, exact keys, and nearest keys."""
        start = table_key(self.kernel)
        for key, record in self._tree.items(start):
            if not key.startswith(start):
                return
            if key != start:
                yield self.row_at(key, record)

    def row_at(self, key: bytes, record: bytes) -> TableRow:
        """The row that an entry of the section is. Raises `BundleError` if it is malformed."""
        start = table_key(self.kernel)
        target, _, rest = key[len(start) :].partition(b"\0")
        size = _RANK.size * len(self.nearest)
        text, tail = rest[: len(rest) - size], rest[len(rest) - size :]
        exact = parse_json(text.removesuffix(b"\0"), self._what)
        ranks = [rank - _BIAS for (rank,) in _RANK.iter_unpack(tail[: len(tail) // 8 * 8])]
        name = target.decode(errors="replace")
        if (
            not isinstance(exact, list)
            or len(exact) != len(self._exact)
            or len(ranks) != len(self.nearest)
            or row_key(self.kernel, name, exact, ranks) != key
        ):
            raise BundleError(f"{self._what} is damaged: the key of a row is malformed")
        return self._row(name, dict(zip(self.keys, (*exact, *ranks), strict=True)), record)

    @property
    def _tree(self) -> Any:
        return self._file.tables

    def _row(self, target: str, keys: Mapping[str, Any], record: bytes) -> TableRow:
        params = parse_json(record, self._what)
        Fields(params, self._what)
        return TableRow(target, {name: keys[name] for name in self.keys}, params)

    def _nearest_key(self, head: bytes, asked: Sequence[int]) -> bytes | None:
        """The key of the row that stands in for `asked`, below `head`."""
        for value in asked:
            found = self._tree.first(head + _RANK.pack(value + _BIAS))
            if found is None or not found.startswith(head):
                found = self._tree.last_before(head + b"\xff" * (_RANK.size * len(asked) + 1))
                if found is None or not found.startswith(head):
                    return None
            head = found[: len(head) + _RANK.size]
        return head

    def _values(self, keys: Mapping[str, Any]) -> dict[str, Any]:
        for name in keys:
            if name not in self.keys:
                raise MissError(
                    f"{self._what} has no key {name!r}{did_you_mean(name, self.keys)}; "
                    f"its keys are {', '.join(self.keys)}"
                )
        missing = [name for name in self.keys if name not in keys]
        if missing:
            raise MissError(f"{self._what} needs {', '.join(missing)} too")
        values = {name: _plain(value) for name, value in keys.items()}
        for name in self.nearest:
            value = values[name]
            if isinstance(value, bool) or not isinstance(value, int) or not -_BIAS <= value < _BIAS:
                raise MissError(f"{self._what}: {name} is {value!r:.40}, not a 64-bit integer")
        try:
            canonical_json(values)
        except (TypeError, ValueError):
            raise MissError(
                f"{self._what}: keys are plain numbers, text, booleans or lists, not {keys!r:.120}"
            ) from None
        return values

    def __repr__(self) -> str:
        return f"<Table of {self.kernel}: {', '.join(self.keys)}; {self.rows} rows>"


def _plain(value: Any) -> Any:
    """numpy's integers and the like as plain ones."""
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        return value
    return value.__index__()
