"""What is special about `mlir` and `code_object`: files, and launches that a manifest describes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flyc_cli.manifest.expressions import ExpressionError
from flyc_cli.manifest.launch_expressions import parse_launch_expression
from flyc_cli.manifest.messages import kind_of, nearest, shown
from flyc_cli.manifest.model import Kernel, LaunchSpec, Request, Value, covers
from flyc_cli.manifest.source import Spot
from runtime_loader.plan import TYPE_BITS
from runtime_loader.signature import Form, StreamForm, StructForm

Resolve = Callable[[Any, Spot], Any]

RAW = ("mlir", "code_object")

# The most that any AMD GPU takes in one launch, checked where it is written as a number.
_MAX_GRID = 2**32 - 1
_INTEGERS = tuple(name for name in TYPE_BITS if name[0] == "i" and name != "i1")


def with_file(
    request: Request, kernel: Kernel, resolve: Resolve, spot: Spot, base: Path
) -> Request:
    """The request of a raw kernel for its target: the file, and its SHA-256 (hex)."""
    kind = "mlir" if kernel.mlir is not None else "code_object"
    said = kernel.mlir if kernel.mlir is not None else kernel.code_object
    at = spot.at(kind)
    if isinstance(said, Mapping):
        fitting = [name for name in said if covers(name, request.target)]
        if len(fitting) != 1:
            at.fail(
                f"{'no file' if not fitting else 'several files'} for {request.target}; files are "
                f"for {', '.join(map(str, said))}"
            )
        at = at.at(str(fitting[0]))
        said = said[fitting[0]]
    name = resolve(said, at)
    if not isinstance(name, str):
        at.fail(f"{shown(name)} is not the name of a file")
    path = base / name
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        at.fail(f"cannot read {name!r} beside the manifest: {error.strerror}")
    source = replace(
        request.source, kind=kind, module=name, file=str(path.resolve()), file_sha256=digest
    )
    return replace(request, source=source)


def launch_specs(
    raw: tuple[Any, ...],
    forms: tuple[Form, ...],
    params: Mapping[str, Any],
    resolve: Resolve,
    spot: Spot,
) -> tuple[LaunchSpec, ...]:
    """Check the described launches of a code object for one set of parameters."""
    reader = _Launches({form.name: form for form in forms}, params, resolve)
    return tuple(reader.launch(item, spot.at(i)) for i, item in enumerate(raw))


class _Launches:
    def __init__(
        self, forms: Mapping[str, Form], params: Mapping[str, Any], resolve: Resolve
    ) -> None:
        self._forms = forms
        self._params = {name: value for name, value in params.items() if name not in forms}
        self._resolve = resolve

    def launch(self, raw: Mapping[str, Any], spot: Spot) -> LaunchSpec:
        symbol = self._resolve(raw["kernel"], spot.at("kernel"))
        if not isinstance(symbol, str) or not symbol:
            spot.at("kernel").fail(f"{shown(symbol)} is not the symbol of a kernel")
        cluster = raw.get("cluster")
        lds = raw.get("lds")
        args = raw.get("args")
        return LaunchSpec(
            symbol=symbol,
            grid=self._dimensions(raw["grid"], spot.at("grid")),
            block=self._dimensions(raw["block"], spot.at("block")),
            args=None
            if args is None
            else tuple(self._argument(v, spot.at("args", i)) for i, v in enumerate(args)),
            lds=None if lds is None else self._expression(lds, spot.at("lds")),
            cluster=None if cluster is None else self._dimensions(cluster, spot.at("cluster")),
            cooperative=bool(raw.get("cooperative", False)),
        )

    def _dimensions(self, raw: list[Any], spot: Spot) -> tuple[str | int, ...]:
        return tuple(self._expression(value, spot.at(i)) for i, value in enumerate(raw))

    def _expression(self, raw: Any, spot: Spot) -> str | int:
        value: Value = self._resolve(raw, spot)
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            spot.fail(f"{shown(value)} is not an integer or an expression of arguments")
        if isinstance(value, int) and not 0 <= value <= _MAX_GRID:
            spot.fail(f"{value} is not within 0 and {_MAX_GRID}")
        try:
            parse_launch_expression(value, self._forms, self._params)
        except ExpressionError as error:
            spot.fail(str(error))
        return value

    def _argument(self, raw: Any, spot: Spot) -> Any:
        value = self._resolve(raw, spot)
        if isinstance(value, list):
            if not value:
                spot.fail("an argument of nothing")
            return tuple(self._member(item, spot.at(i)) for i, item in enumerate(value))
        return self._single(value, spot)

    def _member(self, raw: Any, spot: Spot) -> Any:
        value = self._resolve(raw, spot)
        if not isinstance(value, dict) and not (isinstance(value, str) and value in self._forms):
            spot.fail(
                f"{shown(value)} has no size of its own; within a list write an argument's name, "
                "or the type, as in {i32: n * 2}"
            )
        return self._single(value, spot)

    def _single(self, value: Any, spot: Spot) -> Any:
        if isinstance(value, dict):
            if len(value) != 1 or next(iter(value)) not in _INTEGERS:
                spot.fail(
                    f"expected a type and an expression, as in {{i32: n * 2}}; types are "
                    f"{', '.join(_INTEGERS)}{nearest(next(iter(value), ''), _INTEGERS)}"
                )
            ((name, text),) = value.items()
            return {name: self._expression(text, spot.at(name))}
        form = self._forms.get(value) if isinstance(value, str) else None
        if isinstance(form, (StreamForm, StructForm)):
            kind = "stream" if isinstance(form, StreamForm) else "struct"
            spot.fail(f"{value} is a {kind}, which no kernel takes as it is")
        if form is not None:
            return value
        if value is None or isinstance(value, (bool, float, list)):
            spot.fail(f"expected an argument or an expression, found {kind_of(value)}")
        return self._expression(value, spot)
