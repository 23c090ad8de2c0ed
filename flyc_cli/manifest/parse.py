"""A manifest file to the model: keys, kinds of value, names and templates are checked here.

What depends on the parameters (dtypes, extents, hints, ...) is checked by `expand`.
"""

from __future__ import annotations

import hashlib
import keyword
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from flyc_cli.manifest.csv_file import TYPES
from flyc_cli.manifest.expressions import ExpressionError, has_template, parse_template
from flyc_cli.manifest.forms import MAX_ALIGN
from flyc_cli.manifest.messages import choices, kind_of, nearest, shown
from flyc_cli.manifest.model import (
    NO_LIMITS,
    Arg,
    ArgDefaults,
    Defaults,
    EnumValue,
    ExampleArg,
    Exclusion,
    Extent,
    Kernel,
    Limits,
    ListValue,
    Manifest,
    ObjectValue,
    PointerArg,
    Row,
    ScalarArg,
    StructArg,
    TableKeys,
    TensorArg,
    Toolchain,
    TupleValue,
    TypeValue,
    Value,
    covers,
)
from flyc_cli.manifest.raw import RAW
from flyc_cli.manifest.rows import (
    Column,
    RawRows,
    RowsSpec,
    read_rows_file,
    table_rows,
    yaml_rows,
)
from flyc_cli.manifest.source import Document, Spot, parse_document, read_document
from flyc_cli.manifest.tuned import Choice, read_choices
from flyc_cli.text import parse_byte_size
from runtime_loader.target import SUPPORTED, Target, TargetError

T = TypeVar("T")

HINTS = ("fast_fp_math", "unsafe_fp_math", "waves_per_eu", "llvm_options")

# Variables that flyc sets for a compile, and what a manifest says instead.
_OWN_VARIABLES = {
    "FLYDSL_GPU_ARCH": "targets",
    "ARCH": "targets",
    "HSA_OVERRIDE_GFX_VERSION": "targets",
    "COMPILE_ONLY": "nothing: flyc always compiles only",
    "FLYDSL_COMPILE_BACKEND": "nothing: it is always rocm",
    "FLYDSL_COMPILE_LLVM_DIR": "toolchain",
    "FLYDSL_RUNTIME_KIND": "nothing: it is always rocm",
    "FLYDSL_RUNTIME_ENABLE_CACHE": "nothing: flyc has its own cache",
    "FLYDSL_RUNTIME_CACHE_DIR": "nothing: flyc has its own cache",
    "FLYDSL_RUNTIME_RUN_ONLY": "nothing: building compiles",
    "LLD_VERSION": "nothing: it makes code objects reproducible",
    "ROCM_PATH": "toolchain",
    "PYTHONHASHSEED": "nothing: it makes builds reproducible",
    "PYTHONPATH": "python_path",
}

_BUNDLE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_KERNEL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,99}")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = ("targets", "when", "min", "max", "device")


def load_manifest(path: Path | str) -> Manifest:
    """Read the manifest at `path`; raise `ManifestError` at the first thing that is wrong."""
    path = Path(path)
    return _manifest(read_document(path), path.parent)


def parse_manifest(data: bytes, file: str, directory: Path) -> Manifest:
    """Read a manifest from bytes; `directory` is what its relative paths start from."""
    return _manifest(parse_document(data, file), directory)


class _Cursor:
    """A value of the document, and where it is."""

    def __init__(self, value: Any, spot: Spot) -> None:
        self.value = value
        self.spot = spot

    def fail(self, message: str) -> NoReturn:
        self.spot.fail(message)

    def expected(self, what: str) -> NoReturn:
        self.fail(f"expected {what}, found {kind_of(self.value)}{self._shown()}")

    def _shown(self) -> str:
        scalar = self.value is not None and not isinstance(self.value, (dict, list))
        return f" ({shown(self.value)})" if scalar else ""

    def entries(self, what: str) -> Iterator[tuple[str, _Cursor]]:
        """The keys and values of a mapping."""
        if not isinstance(self.value, dict):
            self.expected(what)
        for key, value in self.value.items():
            yield key, _Cursor(value, self.spot.at(key))

    def fields(self, what: str, known: Iterable[str], required: Iterable[str] = ()) -> _Fields:
        """A mapping whose keys are fixed."""
        known = list(known)
        found = dict(self.entries(what))
        for key, cursor in found.items():
            if key not in known:
                cursor.spot.fail_at_key(
                    f"unknown key {shown(key)}{nearest(key, known)} ({what} has {choices(known)})"
                )
        for key in required:
            if key not in found:
                self.fail(f"{what} needs the key {key!r}")
        return _Fields(found)

    def items(self, what: str) -> list[_Cursor]:
        """The items of a list, which has at least one."""
        if not isinstance(self.value, list):
            self.expected(f"a list of {what}")
        if not self.value:
            self.fail(f"the list of {what} is empty; leave the key out or add one")
        return [_Cursor(value, self.spot.at(i)) for i, value in enumerate(self.value)]

    def text(self, what: str) -> str:
        if not isinstance(self.value, str):
            self.expected(what)
        return self.value

    def one_of(self, what: str, known: Iterable[Any]) -> Any:
        known = list(known)
        if isinstance(self.value, bool) or self.value not in known:
            self.fail(
                f"{shown(self.value)} is not {what}; expected {choices(map(str, known))}"
                f"{nearest(self.value, map(str, known))}"
            )
        return self.value

    def matching(self, pattern: re.Pattern[str], what: str) -> str:
        if not isinstance(self.value, str) or not pattern.fullmatch(self.value):
            self.expected(what)
        return self.value


class _Fields:
    """The values of a mapping with fixed keys; a key that is absent gives the default."""

    def __init__(self, found: dict[str, _Cursor]) -> None:
        self._found = found

    def __contains__(self, key: str) -> bool:
        return key in self._found

    def __getitem__(self, key: str) -> _Cursor:
        return self._found[key]

    def get(self, key: str, read: Callable[[_Cursor], T], default: T) -> T:
        return read(self._found[key]) if key in self._found else default


def _manifest(document: Document, directory: Path) -> Manifest:
    top = _Cursor(document.value, document.spot)
    fields = top.fields(
        "a manifest",
        ("flyc", "name", "targets", "python_path", "defaults", "toolchain", "kernels"),
        ("flyc", "name", "kernels"),
    )
    version = fields["flyc"]
    if type(version.value) is not int or version.value != 1:
        version.fail(f"manifest version {shown(version.value)}; this flyc reads version 1")
    targets: tuple[Target, ...] = fields.get("targets", lambda c: _targets(c), ())
    defaults = fields.get("defaults", lambda cursor: _defaults(cursor, targets), Defaults())
    parsers = [
        _KernelParser(cursor, targets, defaults, directory)
        for cursor in fields["kernels"].items("kernels")
    ]
    kernels = tuple(parser.kernel() for parser in parsers)
    _check_unique(kernels, fields["kernels"].spot)
    if not targets and not defaults.targets:
        for i, kernel in enumerate(kernels):
            if not kernel.targets:
                fields["kernels"].spot.at(i).fail(
                    "no targets: add targets: at the top of the manifest, e.g. [gfx942]"
                )
    return Manifest(
        name=fields["name"].matching(
            _BUNDLE_NAME, "a name of letters, digits, dots, dashes and underscores"
        ),
        kernels=kernels,
        targets=targets,
        directory=directory,
        python_path=fields.get("python_path", lambda c: _python_path(c, directory), (".",)),
        defaults=defaults,
        toolchain=fields.get("toolchain", lambda c: _toolchain(c, directory), Toolchain()),
        sha256=_combined([document.sha256, *(h for p in parsers for h in p.hashes)]),
        spot=document.spot,
    )


def _combined(hashes: list[str]) -> str:
    """One SHA-256 for a manifest and the files that it names; a manifest alone keeps its own."""
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


def _check_unique(kernels: tuple[Kernel, ...], spot: Spot) -> None:
    first: dict[str, int] = {}
    for i, kernel in enumerate(kernels):
        if kernel.name in first:
            line = spot.at(first[kernel.name], "name").place.line
            spot.at(i, "name").fail(f"the kernel {kernel.name!r} is already at line {line}")
        first[kernel.name] = i


def _targets(cursor: _Cursor, among: tuple[Target, ...] = ()) -> tuple[Target, ...]:
    """Target IDs; with `among`, each must cover at least one of those."""
    targets: list[Target] = []
    for item in cursor.items("targets"):
        text = item.text("a target such as gfx942")
        try:
            target = Target.parse(text).check_supported()
        except TargetError as error:
            processor = text.partition(":")[0]
            item.fail(f"{error}{'' if processor in SUPPORTED else nearest(processor, SUPPORTED)}")
        if target in targets:
            item.fail(f"the target {text} is listed twice")
        if among and not any(covers(target, other) for other in among):
            item.fail(
                f"{text} is not among the targets of the manifest ({', '.join(map(str, among))})"
            )
        targets.append(target)
    return tuple(targets)


def _python_path(cursor: _Cursor, directory: Path) -> tuple[str, ...]:
    roots = []
    for item in cursor.items("directories"):
        root = item.text("a directory, relative to the manifest")
        if not (directory / root).is_dir():
            item.fail(f"no directory {root!r} beside the manifest")
        roots.append(root)
    return tuple(roots)


def _toolchain(cursor: _Cursor, directory: Path) -> Toolchain:
    fields = cursor.fields("a toolchain", ("rocm", "llvm"))
    if not cursor.value:
        cursor.fail("a toolchain has rocm, llvm or both")

    def installation(item: _Cursor) -> Path:
        path = directory / item.text("the directory of an installation")
        if not path.is_dir():
            item.fail(f"no directory {shown(item.value)}")
        return path.resolve()

    return Toolchain(fields.get("rocm", installation, None), fields.get("llvm", installation, None))


def _defaults(cursor: _Cursor, targets: tuple[Target, ...]) -> Defaults:
    fields = cursor.fields("defaults", ("targets", "args", "hints", "env", "limits"))
    return Defaults(
        targets=fields.get("targets", lambda c: _targets(c, targets), ()),
        args=fields.get("args", _arg_defaults, ArgDefaults()),
        hints=fields.get("hints", lambda c: _hints(c, None), {}),
        env=fields.get("env", lambda c: _env(c, None), {}),
        limits=fields.get("limits", _limits, NO_LIMITS),
    )


def _limits(cursor: _Cursor) -> Limits:
    fields = cursor.fields("limits", ("timeout", "memory"))
    return Limits(
        timeout=fields.get("timeout", _seconds, None),
        memory=fields.get("memory", _memory_size, None),
    )


def _seconds(cursor: _Cursor) -> float:
    value = cursor.value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        cursor.expected("a number of seconds above 0")
    return float(value)


def _memory_size(cursor: _Cursor) -> int:
    size = parse_byte_size(cursor.text("a size such as 2GB or 700MB"))
    if size is None:
        cursor.expected("a size such as 2GB or 700MB")
    return size


def _arg_defaults(cursor: _Cursor) -> ArgDefaults:
    fields = cursor.fields("argument defaults", ("align", "stride_bits"))
    return ArgDefaults(
        align=fields.get("align", _plain_align, None),
        stride_bits=fields.get("stride_bits", _stride_bits, None),
    )


def _plain_align(cursor: _Cursor) -> int:
    value = cursor.value
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or not 1 <= value <= MAX_ALIGN
        or value & (value - 1)
    ):
        cursor.expected(f"a power of two from 1 to {MAX_ALIGN} (bytes)")
    return value


def _stride_bits(cursor: _Cursor) -> int:
    return int(cursor.one_of("a width of strides", (32, 64)))


def _hints(cursor: _Cursor, params: set[str] | None) -> dict[str, Any]:
    hints: dict[str, Any] = {}
    for key, value in cursor.entries("compile hints"):
        if key not in HINTS:
            value.spot.fail_at_key(
                f"unknown hint {shown(key)}; expected {choices(HINTS)}{nearest(key, HINTS)}"
            )
        _check_templates(value, params)
        hints[key] = value.value
    return hints


def _env(cursor: _Cursor, params: set[str] | None) -> dict[str, str | None]:
    env: dict[str, str | None] = {}
    for key, value in cursor.entries("environment variables"):
        if not _VARIABLE.fullmatch(key):
            value.spot.fail_at_key(
                f"{shown(key)} is not a variable name (capital letters, digits and underscores)"
            )
        if key in _OWN_VARIABLES:
            value.spot.fail_at_key(f"flyc sets {key} itself; use {_OWN_VARIABLES[key]}")
        if value.value is not None and not isinstance(value.value, str):
            value.expected('text (numbers in quotes, as in "1"), or null to drop a default')
        _check_templates(value, params)
        env[key] = value.value
    return env


def _check_templates(cursor: _Cursor, params: set[str] | None) -> None:
    """Check every template in a value; `params` are the known names, or None in `defaults`."""
    if isinstance(cursor.value, dict):
        for _, value in cursor.entries(""):
            _check_templates(value, params)
    elif isinstance(cursor.value, list):
        for i, value in enumerate(cursor.value):
            _check_templates(_Cursor(value, cursor.spot.at(i)), params)
    elif has_template(cursor.value):
        try:
            template = parse_template(cursor.value)
        except ExpressionError as error:
            cursor.fail(str(error))
        for name in sorted(template.names if params is not None else ()):
            assert params is not None
            if name not in params:
                found = f"; this kernel has {', '.join(sorted(params))}" if params else ""
                cursor.fail(f"${name} is not a parameter{nearest(name, params)}{found}")


def _identifier(name: str, what: str, spot: Spot) -> str:
    if not _IDENTIFIER.fullmatch(name) or keyword.iskeyword(name):
        spot.fail_at_key(f"{shown(name)} is not a name for {what} (a Python identifier)")
    return name


def _python_name(cursor: _Cursor, example: str) -> tuple[str, str]:
    """`package.module:name.attribute`, split."""
    text = cursor.text(f"a name such as {example}")
    module, colon, qualname = text.partition(":")
    parts = [*module.split("."), *qualname.split(".")]
    if not colon or not all(_IDENTIFIER.fullmatch(p) and not keyword.iskeyword(p) for p in parts):
        cursor.fail(f"{shown(text)} is not package.module:name, such as {example}")
    return module, qualname


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


class _KernelParser:
    """One entry of `kernels`."""

    _KEYS = (
        *("name", "launcher", "factory", "select", "kwargs", "constexpr", "params", "matrix"),
        *("rows", "include", "exclude", "targets", "args", "hints", "env", "python_path"),
        *("capture", "device", "tensors", "tuned", *RAW, "launch", "limits"),
    )

    def __init__(
        self,
        cursor: _Cursor,
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
        own: tuple[Target, ...] = fields.get("targets", lambda c: _targets(c, self._targets), ())
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
                _check_templates(fields[key], params)
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
            hints=fields.get("hints", lambda c: _hints(c, params), {}),
            env=fields.get("env", lambda c: _env(c, params), {}),
            limits=fields.get("limits", _limits, NO_LIMITS),
            python_path=fields.get("python_path", lambda c: _python_path(c, self._directory), ()),
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
            _python_name(fields[kind], _SOURCES[kind])
        elif kind == "code_object" and "launch" not in fields:
            self._cursor.fail("a code object needs launch: what its launcher does")
        for key, kinds in _ONLY_FOR.items():
            if key in fields and kind not in kinds:
                fields[key].spot.fail_at_key(f"{key} is for a {choices(kinds)}, not for a {kind}")

    def _parameter(self, name: str, section: str, spot: Spot) -> None:
        _identifier(name, "a parameter", spot)
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
                swept[name] = (_value(cursor),)
                continue
            values: list[Value] = []
            for item in cursor.items("values"):
                value = _value(item)
                if any(value == old and type(value) is type(old) for old in values):
                    item.fail(f"the value {shown(item.value)} is listed twice")
                values.append(value)
            swept[name] = tuple(values)
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
                _identifier(name, "a parameter", items[0].spot.at(name))
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
            if name in _RESERVED or not _IDENTIFIER.fullmatch(name) or keyword.iskeyword(name):
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

    def _choices(self, cursor: _Cursor) -> tuple[Choice, ...]:
        if "rows" in self._fields:
            cursor.spot.fail_at_key("a kernel has either rows or what a tuner chose")
        pattern = cursor.text("a pattern of files, such as configs/rmsnorm-*.json")
        choices, digest = read_choices(self._directory, pattern, cursor.spot)
        self.hashes.append(digest)
        return choices

    def _rows_spec(self, cursor: _Cursor) -> tuple[RawRows, RowsSpec]:
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

    def _rows_file(self, cursor: _Cursor, spec: RowsSpec) -> RawRows:
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
    def _row_names(cursor: _Cursor, what: str, plain: bool) -> dict[str, Any]:
        """Values by name, or a list of the columns that are passed as they are."""
        if isinstance(cursor.value, list):
            items = cursor.items("columns")
            names = [(item.text("the name of a column"), item) for item in items]
            found = {name: _Cursor(f"${name}", item.spot) for name, item in names}
        else:
            found = dict(cursor.entries("values by name"))
        for name, item in found.items():
            if not _IDENTIFIER.fullmatch(name) or keyword.iskeyword(name) or name in _RESERVED:
                item.fail(f"{shown(name)} is not a name for {what} (a Python identifier)")
            if plain and isinstance(item.value, (dict, list)):
                item.expected("a column such as $M, an expression or a plain value")
        return {name: _value(item) for name, item in found.items()}

    def _rows(self, cursor: _Cursor, params: set[str]) -> tuple[Row, ...]:
        return tuple(
            Row(self._row_values(item, params, ("targets",)), self._row_targets(item))
            for item in cursor.items("rows")
        )

    def _exclusions(self, cursor: _Cursor, params: set[str]) -> tuple[Exclusion, ...]:
        exclusions = []
        for item in cursor.items("exclusions"):
            values = self._row_values(item, params, ("targets", "when"))
            if not item.value:
                item.fail("an exclusion needs a value, targets or when")
            when = None
            if "when" in item.value:
                condition = _Cursor(item.value["when"], item.spot.at("when"))
                when = condition.text('a condition such as "${N > 4096}"')
            exclusions.append(Exclusion(values, self._row_targets(item), when))
        return tuple(exclusions)

    def _row_targets(self, row: _Cursor) -> tuple[Target, ...]:
        if "targets" not in row.value:
            return ()
        return _targets(_Cursor(row.value["targets"], row.spot.at("targets")), self._targets)

    @staticmethod
    def _row_values(row: _Cursor, params: set[str], other: tuple[str, ...]) -> dict[str, Value]:
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
            values[name] = _value(cursor)
        return values

    def _args(self, cursor: _Cursor, params: set[str]) -> dict[str, Arg]:
        args: dict[str, Arg] = {}
        in_matrix = dict.fromkeys(self._columns, "matrix") if "launcher" in self._fields else {}
        captured = "capture" in self._fields
        for name, spec in cursor.entries("arguments by name"):
            _identifier(name, "an argument", spec.spot)
            section = {**in_matrix, **self._sections}.get(name)
            if section in ("constexpr", "matrix"):
                spec.spot.fail_at_key(
                    f"{name!r} is already a compile-time value of the launcher ({section})"
                )
            if captured and section in ("kwargs", "matrix"):
                spec.spot.fail_at_key(f"{name!r} is already passed under kwargs")
            _check_templates(spec, params)
            plain = captured and not isinstance(spec.value, (str, dict, list))
            args[name] = ExampleArg(spec.value) if plain else _arg(spec)
        return args


def _selection(cursor: _Cursor) -> str | int | tuple[str | int, ...]:
    if isinstance(cursor.value, list):
        return tuple(_selected(item) for item in cursor.items("indices or keys"))
    return _selected(cursor)


def _selected(cursor: _Cursor) -> str | int:
    value: Any = cursor.value
    if isinstance(value, bool) or not isinstance(value, (int, str)) or value == "":
        cursor.expected("the index (a number) or the key (text) of the launcher")
    return value


def _device(cursor: _Cursor, params: set[str]) -> dict[str, Any]:
    fields = cursor.fields("a device", ("name", "units", "memory"))
    _check_templates(cursor, params)
    return {key: fields[key].value for key in ("name", "units", "memory") if key in fields}


def _example_kind(cursor: _Cursor) -> str:
    return str(cursor.one_of("a kind of example tensors", ("fake", "cpu")))


def _file(cursor: _Cursor, params: set[str]) -> str | dict[Target, str]:
    """The name of a file, or one for each target."""
    _check_templates(cursor, params)
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


def _launches(cursor: _Cursor, params: set[str]) -> tuple[dict[str, Any], ...]:
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
        _check_templates(item, params)
    return tuple(item.value for item in items)


def _columns(cursor: _Cursor) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    for name, item in cursor.entries("columns by name"):
        _identifier(name, "a column", item.spot)
        if isinstance(item.value, str):
            columns[name] = Column(item.value)
            continue
        fields = item.fields("a column", ("header", "type"))
        columns[name] = Column(
            header=fields.get("header", lambda c: c.text("a header of the CSV file"), name),
            type=fields.get("type", lambda c: c.one_of("a type of column", TYPES), None),
        )
    return columns


def _nearest_keys(cursor: _Cursor, keys: dict[str, Any]) -> tuple[str, ...]:
    if not keys:
        cursor.spot.fail_at_key("nearest says which of the keys need not match: add keys")
    names = tuple(item.one_of("a key of these rows", keys) for item in cursor.items("keys"))
    for i, name in enumerate(names):
        if name in names[:i]:
            cursor.spot.at(i).fail(f"the key {name!r} is listed twice")
    return names


def _template(cursor: _Cursor, example: str) -> str:
    if not has_template(cursor.value):
        cursor.expected(f"text with columns, such as {example}")
    return str(cursor.value)


_TAGS = ("type", "enum", "object", "tuple", "list")


def _value(cursor: _Cursor) -> Value:
    """A parameter's value: a scalar, or a mapping with one tag."""
    if isinstance(cursor.value, list):
        cursor.fail(
            "a list here is not swept; write {list: [...]} or {tuple: [...]} to pass one list"
        )
    if not isinstance(cursor.value, dict):
        scalar: Value = cursor.value
        return scalar
    fields = cursor.fields("a typed value", _TAGS)
    if len(cursor.value) != 1:
        cursor.fail(f"a typed value has one key: {choices(_TAGS)}")
    (tag,) = cursor.value
    inner = fields[tag]
    if tag == "type":
        return TypeValue(inner.text("a type such as bf16"))
    if tag == "enum":
        module, qualname = _python_name(inner, "modes:Mode.FAST")
        if "." not in qualname:
            inner.fail(f"{shown(inner.value)} names no member, such as modes:Mode.FAST")
        return EnumValue(module, qualname)
    if tag == "object":
        return ObjectValue(*_python_name(inner, "layouts:ROW_MAJOR"))
    if not isinstance(inner.value, list):
        inner.expected("a list of values")
    items = tuple(_value(_Cursor(v, inner.spot.at(i))) for i, v in enumerate(inner.value))
    return TupleValue(items) if tag == "tuple" else ListValue(items)


def _arg(cursor: _Cursor) -> Arg:
    if isinstance(cursor.value, str):
        return ScalarArg(cursor.value)
    kinds = "a tensor ({dtype, shape}), a pointer ({pointer}), a struct ({struct}) or a type"
    if not isinstance(cursor.value, dict):
        cursor.expected(kinds)
    if "pointer" in cursor.value:
        fields = cursor.fields("a pointer", ("pointer", "align"))
        dtype = fields["pointer"].text("an element type such as f32")
        return PointerArg(dtype, fields.get("align", _extent, None))
    if "struct" in cursor.value:
        inner = cursor.fields("a struct", ("struct",))["struct"]
        members: dict[str, Arg] = {}
        for name, spec in inner.entries("fields by name"):
            members[_identifier(name, "a field", spec.spot)] = _arg(spec)
        if not members:
            inner.fail("the struct has no fields")
        return StructArg(members)
    if not {"dtype", "shape"} & set(cursor.value):
        cursor.fail(f"expected {kinds}")
    fields = cursor.fields(
        "a tensor",
        (
            *("dtype", "shape", "strides", "leading_dim", "align", "divisible_by", "layout"),
            "stride_bits",
        ),
        ("dtype", "shape"),
    )
    return TensorArg(
        dtype=fields["dtype"].text("an element type such as bf16"),
        shape=_extents(fields["shape"]),
        strides=fields.get("strides", _extents, None),
        leading_dim=fields.get("leading_dim", _extent, None),
        align=fields.get("align", _extent, None),
        divisible_by=fields.get("divisible_by", _extent, None),
        layout=fields.get("layout", lambda c: c.one_of("a layout", ("static", "dynamic")), None),
        stride_bits=fields.get("stride_bits", _stride_bits, None),
    )


def _extents(cursor: _Cursor) -> tuple[Extent, ...]:
    if not isinstance(cursor.value, list):
        cursor.expected('a list such as ["?", $N]')
    return tuple(_extent(_Cursor(value, cursor.spot.at(i))) for i, value in enumerate(cursor.value))


def _extent(cursor: _Cursor) -> Extent:
    value: Any = cursor.value
    if isinstance(value, dict) and None in value.values():
        cursor.fail('write a dynamic extent in quotes: "?"')
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        cursor.expected('a number, $name, "${expression}" or "?"')
    return value
