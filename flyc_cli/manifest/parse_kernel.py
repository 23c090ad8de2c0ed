"""One entry of a manifest's `kernels`, checked for form.

What depends on the parameters (dtypes, extents, hints, ...) is checked by `expand`.
"""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from typing import Any

from flyc_cli.manifest.csv_file import TYPES
from flyc_cli.manifest.cursor import IDENTIFIER, Cursor, check_templates, identifier, python_name
from flyc_cli.manifest.expressions import has_template
from flyc_cli.manifest.messages import choices, nearest, shown
from flyc_cli.manifest.model import (
    NO_BUDGETS,
    NO_LIMITS,
    Arg,
    Defaults,
    ExampleArg,
    Exclusion,
    Kernel,
    Row,
    TableKeys,
    Value,
    covers,
)
from flyc_cli.manifest.parse_budgets import read_budgets
from flyc_cli.manifest.parse_settings import (
    read_env,
    read_hints,
    read_limits,
    read_python_path,
    read_targets,
)
from flyc_cli.manifest.parse_values import read_arg, read_value
from flyc_cli.manifest.raw import RAW
from flyc_cli.manifest.rows import Column, RawRows, RowsSpec, read_rows_file, table_rows, yaml_rows
from flyc_cli.manifest.source import Spot
from flyc_cli.manifest.tuned import Choice, read_choices
from runtime_loader.target import Target, TargetError

_KERNEL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,99}")
_RESERVED = ("targets", "when", "min", "max", "device")

# What a kernel comes from, with an example, and the keys that only some of them have.
_SOURCES = {
    "launcher": "norms:rmsnorm",
    "factory": "gemms:compile_gemm",
    "capture": "attention:forward",
}
_ONLY_FOR = {
    "kwargs": ("factory", "capture"),
    "select": ("factory",),
    "constexpr": ("launcher", "factory"),
    "tensors": ("capture",),
    "launch": ("code_object",),
    "hints": (*_SOURCES, "mlir"),
    "env": tuple(_SOURCES),
    "python_path": tuple(_SOURCES),
}


class KernelParser:
    """One entry of `kernels`."""

    _KEYS = (
        *("name", "launcher", "factory", "select", "kwargs", "constexpr", "params", "matrix"),
        *("rows", "include", "exclude", "targets", "args", "hints", "env", "python_path"),
        *("capture", "device", "tensors", "tuned", *RAW, "launch", "limits", "budgets"),
    )

    def __init__(
        self,
        cursor: Cursor,
        targets: tuple[Target, ...],
        defaults: Defaults,
        directory: Path,
    ) -> None:
        self._cursor = cursor
        self._fields = cursor.fields("a kernel", self._KEYS, ("name",))
        self._targets = targets
        self._defaults = defaults
        self.hashes: list[str] = []
        self._table: TableKeys | None = None
        self._directory = directory
        self._sections: dict[str, str] = {}
        self._columns: set[str] = set()

    def kernel(self) -> Kernel:
        fields = self._fields
        name = fields["name"].matching(
            _KERNEL_NAME, "a name of letters, digits, dots, dashes and underscores"
        )
        self._source()
        own: tuple[Target, ...] = fields.get(
            "targets", lambda c: read_targets(c, self._targets), ()
        )
        matrix = self._tuned(own) if "rows" in fields else self._matrix()
        swept = {key: self._swept(key) for key in ("kwargs", "constexpr", "params")}
        for key in self._table.names if self._table else ():
            if key in self._sections and key not in self._columns:
                fields["rows"].fail(
                    f"the key {key!r} is a parameter under {self._sections[key]} too"
                )
        params = self._columns | set(self._sections)
        for key in ("kwargs", "constexpr", "params", "matrix", "include", "exclude"):
            if key in fields:
                check_templates(fields[key], params)
        args: dict[str, Arg] = fields.get("args", lambda c: self._args(c, params), {})
        return Kernel(
            name=name,
            launcher=fields.get("launcher", lambda c: str(c.value), None),
            factory=fields.get("factory", lambda c: str(c.value), None),
            capture=fields.get("capture", lambda c: str(c.value), None),
            mlir=fields.get("mlir", lambda c: _file(c, params), None),
            code_object=fields.get("code_object", lambda c: _file(c, params), None),
            launch=fields.get("launch", lambda c: _launches(c, params), ()),
            select=fields.get("select", _selection, None),
            device=fields.get("device", lambda c: _device(c, params), {}),
            tensors=fields.get("tensors", _example_kind, "fake"),
            kwargs=swept["kwargs"],
            constexpr=swept["constexpr"],
            params=swept["params"],
            matrix=matrix,
            table=self._table,
            tuned=fields.get("tuned", self._choices, ()),
            include=fields.get("include", lambda c: self._rows(c, params), ()),
            exclude=fields.get("exclude", lambda c: self._exclusions(c, params), ()),
            targets=own,
            args=args,
            hints=fields.get("hints", lambda c: read_hints(c, params), {}),
            env=fields.get("env", lambda c: read_env(c, params), {}),
            limits=fields.get("limits", read_limits, NO_LIMITS),
            budgets=fields.get("budgets", lambda c: read_budgets(c, self._targets), NO_BUDGETS),
            python_path=fields.get(
                "python_path", lambda c: read_python_path(c, self._directory), ()
            ),
        )

    def _source(self) -> None:
        fields = self._fields
        given = [key for key in (*_SOURCES, *RAW) if key in fields]
        if len(given) != 1:
            self._cursor.fail(
                f"a kernel has one of {', '.join(_SOURCES)}, as module:name, or {choices(RAW)}, as "
                f"a file; this one has {choices(given) if given else 'none'}"
            )
        (kind,) = given
        if kind in _SOURCES:
            python_name(fields[kind], _SOURCES[kind])
        elif kind == "code_object" and "launch" not in fields:
            self._cursor.fail("a code object needs launch: what its launcher does")
        for key, kinds in _ONLY_FOR.items():
            if key in fields and kind not in kinds:
                fields[key].spot.fail_at_key(f"{key} is for a {choices(kinds)}, not for a {kind}")

    def _parameter(self, name: str, section: str, spot: Spot) -> None:
        identifier(name, "a parameter", spot)
        if name in _RESERVED:
            spot.fail_at_key(f"{name!r} cannot be a parameter's name: manifests use that word")
        if name in self._sections:
            spot.fail_at_key(f"the parameter {name!r} is already under {self._sections[name]}")
        self._sections[name] = section

    def _swept(self, section: str) -> dict[str, tuple[Value, ...]]:
        if section not in self._fields:
            return {}
        swept: dict[str, tuple[Value, ...]] = {}
        for name, cursor in self._fields[section].entries(f"values by name ({section})"):
            self._parameter(name, section, cursor.spot)
            if name in self._columns and cursor.value != f"${name}":
                cursor.spot.fail_at_key(
                    f"the parameter {name!r} is a column of the matrix too; write {name}: ${name} "
                    f"to pass that column under {section}"
                )
            if not isinstance(cursor.value, list):
                swept[name] = (read_value(cursor),)
                continue
            values: dict[tuple[type, Value], Value] = {}  # 1 and true are equal, and two values
            for item in cursor.items("values"):
                value = read_value(item)
                if (type(value), value) in values:
                    item.fail(f"the value {shown(item.value)} is listed twice")
                values[type(value), value] = value
            swept[name] = tuple(values.values())
        return swept

    def _matrix(self) -> tuple[Row, ...]:
        if "matrix" not in self._fields:
            return ()
        cursor = self._fields["matrix"]
        items = cursor.items("rows")
        first = [name for name, _ in items[0].entries("a row of values by name")]
        self._columns = {name for name in first if name != "targets"}
        for name in first:
            if name != "targets":
                identifier(name, "a parameter", items[0].spot.at(name))
                if name in _RESERVED:
                    items[0].spot.at(name).fail_at_key(f"{name!r} cannot be a parameter's name")
        if not self._columns:
            items[0].fail("a row needs at least one value")
        rows = self._rows(cursor, self._columns)
        for row, item in zip(rows, items, strict=True):
            for name in first:
                if name in self._columns and name not in row.values:
                    item.fail(f"the row has no {name!r}, which the first row has")
        return rows

    def _tuned(self, own: tuple[Target, ...]) -> tuple[Row, ...]:
        """The rows of a table, as rows of the matrix."""
        cursor = self._fields["rows"]
        if "matrix" in self._fields:
            cursor.spot.fail_at_key("a kernel has either rows or a matrix")
        raw, spec = self._rows_spec(cursor)
        restricted = own or self._defaults.targets
        targets = [
            target
            for target in self._targets or restricted
            if not restricted or any(covers(restriction, target) for restriction in restricted)
        ]
        for name in raw.columns if spec.params is None else ():
            if name in _RESERVED or not IDENTIFIER.fullmatch(name) or keyword.iskeyword(name):
                cursor.fail(
                    f"the column {shown(name)} of {raw.name} cannot be a parameter's name; choose "
                    "columns with params, as in {file: ..., params: {tile: $tile}}"
                )
        rows = table_rows(raw, spec, targets)
        self._columns = set(rows[0].values)
        if spec.keys:
            self._table = TableKeys(
                tuple(name for name in spec.keys if name not in spec.nearest), spec.nearest
            )
        return rows

    def _choices(self, cursor: Cursor) -> tuple[Choice, ...]:
        if "rows" in self._fields:
            cursor.spot.fail_at_key("a kernel has either rows or what a tuner chose")
        pattern = cursor.text("a pattern of files, such as configs/rmsnorm-*.json")
        choices, digest = read_choices(self._directory, pattern, cursor.spot)
        self.hashes.append(digest)
        return choices

    def _rows_spec(self, cursor: Cursor) -> tuple[RawRows, RowsSpec]:
        if isinstance(cursor.value, list):
            return yaml_rows(cursor.value, cursor.spot), RowsSpec(cursor.spot)
        if isinstance(cursor.value, str):
            spec = RowsSpec(cursor.spot)
            return self._rows_file(cursor, spec), spec
        fields = cursor.fields(
            "a table of rows",
            (
                *("file", "values", "columns", "params", "keys", "nearest", "where", "targets"),
                "best",
            ),
        )
        if ("file" in fields) == ("values" in fields):
            cursor.fail("rows come either from a file or from values")
        keys: dict[str, Any] = fields.get("keys", lambda c: self._row_names(c, "a key", True), {})
        params = fields.get("params", lambda c: self._row_names(c, "a parameter", False), None)
        if params is not None and not params:
            fields["params"].fail("the rows have no parameters")
        if keys and params is None:
            cursor.fail("rows with keys need params: which columns the kernel is compiled with")
        spec = RowsSpec(
            spot=cursor.spot,
            columns=fields.get("columns", _columns, {}),
            params=params,
            keys=keys,
            nearest=fields.get("nearest", lambda c: _nearest_keys(c, keys), ()),
            where=fields.get("where", lambda c: _template(c, '"${M > 16}"'), None),
            targets=fields.get("targets", lambda c: _template(c, "$gfx"), None),
            best=fields.get("best", lambda c: _template(c, "$time"), None),
        )
        if spec.best is not None and not keys:
            fields["best"].spot.fail_at_key("best chooses among rows with the same keys: add keys")
        if "file" in fields:
            return self._rows_file(fields["file"], spec), spec
        if spec.columns:
            fields["columns"].spot.fail_at_key("columns are for a CSV file")
        return yaml_rows(fields["values"].value, fields["values"].spot), spec

    def _rows_file(self, cursor: Cursor, spec: RowsSpec) -> RawRows:
        name = cursor.text("the name of a CSV or YAML file, relative to the manifest")
        path = self._directory / name
        if not path.is_file():
            cursor.fail(f"no file {name!r} beside the manifest")
        if spec.columns and path.suffix in (".yaml", ".yml"):
            spec.spot.at("columns").fail_at_key("columns are for a CSV file")
        raw = read_rows_file(path, str(path), spec)
        self.hashes.append(raw.sha256)
        return raw

    @staticmethod
    def _row_names(cursor: Cursor, what: str, plain: bool) -> dict[str, Any]:
        """Values by name, or a list of the columns that are passed as they are."""
        if isinstance(cursor.value, list):
            items = cursor.items("columns")
            names = [(item.text("the name of a column"), item) for item in items]
            found = {name: Cursor(f"${name}", item.spot) for name, item in names}
        else:
            found = dict(cursor.entries("values by name"))
        for name, item in found.items():
            if not IDENTIFIER.fullmatch(name) or keyword.iskeyword(name) or name in _RESERVED:
                item.fail(f"{shown(name)} is not a name for {what} (a Python identifier)")
            if plain and isinstance(item.value, (dict, list)):
                item.expected("a column such as $M, an expression or a plain value")
        return {name: read_value(item) for name, item in found.items()}

    def _rows(self, cursor: Cursor, params: set[str]) -> tuple[Row, ...]:
        return tuple(
            Row(self._row_values(item, params, ("targets",)), self._row_targets(item))
            for item in cursor.items("rows")
        )

    def _exclusions(self, cursor: Cursor, params: set[str]) -> tuple[Exclusion, ...]:
        exclusions = []
        for item in cursor.items("exclusions"):
            values = self._row_values(item, params, ("targets", "when"))
            if not item.value:
                item.fail("an exclusion needs a value, targets or when")
            when = None
            if "when" in item.value:
                condition = Cursor(item.value["when"], item.spot.at("when"))
                when = condition.text('a condition such as "${N > 4096}"')
            exclusions.append(Exclusion(values, self._row_targets(item), when))
        return tuple(exclusions)

    def _row_targets(self, row: Cursor) -> tuple[Target, ...]:
        if "targets" not in row.value:
            return ()
        return read_targets(Cursor(row.value["targets"], row.spot.at("targets")), self._targets)

    @staticmethod
    def _row_values(row: Cursor, params: set[str], other: tuple[str, ...]) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for name, cursor in row.entries("a row of values by name"):
            if name in other:
                continue
            if name not in params:
                known = sorted(params)
                cursor.spot.fail_at_key(
                    f"{shown(name)} is not a parameter{nearest(name, known)}"
                    f"; expected {choices(known) if known else 'none: this kernel has none'}"
                )
            values[name] = read_value(cursor)
        return values

    def _args(self, cursor: Cursor, params: set[str]) -> dict[str, Arg]:
        args: dict[str, Arg] = {}
        in_matrix = dict.fromkeys(self._columns, "matrix") if "launcher" in self._fields else {}
        captured = "capture" in self._fields
        for name, spec in cursor.entries("arguments by name"):
            identifier(name, "an argument", spec.spot)
            section = {**in_matrix, **self._sections}.get(name)
            if section in ("constexpr", "matrix"):
                spec.spot.fail_at_key(
                    f"{name!r} is already a compile-time value of the launcher ({section})"
                )
            if captured and section in ("kwargs", "matrix"):
                spec.spot.fail_at_key(f"{name!r} is already passed under kwargs")
            check_templates(spec, params)
            plain = captured and not isinstance(spec.value, (str, dict, list))
            args[name] = ExampleArg(spec.value) if plain else read_arg(spec)
        return args


def _selection(cursor: Cursor) -> str | int | tuple[str | int, ...]:
    if isinstance(cursor.value, list):
        return tuple(_selected(item) for item in cursor.items("indices or keys"))
    return _selected(cursor)


def _selected(cursor: Cursor) -> str | int:
    value: Any = cursor.value
    if isinstance(value, bool) or not isinstance(value, (int, str)) or value == "":
        cursor.expected("the index (a number) or the key (text) of the launcher")
    return value


def _device(cursor: Cursor, params: set[str]) -> dict[str, Any]:
    fields = cursor.fields("a device", ("name", "units", "memory"))
    check_templates(cursor, params)
    return {key: fields[key].value for key in ("name", "units", "memory") if key in fields}


def _example_kind(cursor: Cursor) -> str:
    return str(cursor.one_of("a kind of example tensors", ("fake", "cpu")))


def _file(cursor: Cursor, params: set[str]) -> str | dict[Target, str]:
    """The name of a file, or one for each target."""
    check_templates(cursor, params)
    what = "a file, relative to the manifest"
    if not isinstance(cursor.value, dict):
        return cursor.text(what)
    files: dict[Target, str] = {}
    for name, item in cursor.entries("files by target"):
        try:
            target = Target.parse(name).check_supported()
        except TargetError as error:
            item.spot.fail_at_key(str(error))
        files[target] = item.text(what)
    return files


def _launches(cursor: Cursor, params: set[str]) -> tuple[dict[str, Any], ...]:
    """The launches of a code object, in order; `expand` checks what they compute."""
    items = cursor.items("launches") if isinstance(cursor.value, list) else [cursor]
    for item in items:
        fields = item.fields(
            "a launch",
            ("kernel", "grid", "block", "args", "lds", "cluster", "cooperative"),
            ("kernel", "grid", "block"),
        )
        fields["kernel"].text("the symbol of a kernel in the code object")
        for key in ("grid", "block", "cluster"):
            if key in fields and not 1 <= len(fields[key].items("sizes")) <= 3:
                fields[key].fail("a launch has one to three dimensions")
        if "args" in fields and not isinstance(fields["args"].value, list):
            fields["args"].expected("a list of arguments and expressions")
        if "cooperative" in fields and not isinstance(fields["cooperative"].value, bool):
            fields["cooperative"].expected("true or false")
        check_templates(item, params)
    return tuple(item.value for item in items)


def _columns(cursor: Cursor) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    for name, item in cursor.entries("columns by name"):
        identifier(name, "a column", item.spot)
        if isinstance(item.value, str):
            columns[name] = Column(item.value)
            continue
        fields = item.fields("a column", ("header", "type"))
        columns[name] = Column(
            header=fields.get("header", lambda c: c.text("a header of the CSV file"), name),
            type=fields.get("type", lambda c: c.one_of("a type of column", TYPES), None),
        )
    return columns


def _nearest_keys(cursor: Cursor, keys: dict[str, Any]) -> tuple[str, ...]:
    if not keys:
        cursor.spot.fail_at_key("nearest says which of the keys need not match: add keys")
    names = tuple(item.one_of("a key of these rows", keys) for item in cursor.items("keys"))
    for i, name in enumerate(names):
        if name in names[:i]:
            cursor.spot.at(i).fail(f"the key {name!r} is listed twice")
    return names


def _template(cursor: Cursor, example: str) -> str:
    if not has_template(cursor.value):
        cursor.expected(f"text with columns, such as {example}")
    return str(cursor.value)
