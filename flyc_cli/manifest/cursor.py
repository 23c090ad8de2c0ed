"""A place in a manifest's document: the value there, and errors that point at it."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, TypeVar

from flyc_cli.manifest.expressions import ExpressionError, has_template, parse_template
from flyc_cli.manifest.messages import choices, kind_of, nearest, shown
from flyc_cli.manifest.source import Spot

T = TypeVar("T")

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Cursor:
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

    def entries(self, what: str) -> Iterator[tuple[str, Cursor]]:
        """The keys and values of a mapping."""
        if not isinstance(self.value, dict):
            self.expected(what)
        for key, value in self.value.items():
            yield key, Cursor(value, self.spot.at(key))

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

    def items(self, what: str) -> list[Cursor]:
        """The items of a list, which has at least one."""
        if not isinstance(self.value, list):
            self.expected(f"a list of {what}")
        if not self.value:
            self.fail(f"the list of {what} is empty; leave the key out or add one")
        return [Cursor(value, self.spot.at(i)) for i, value in enumerate(self.value)]

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

    def __init__(self, found: dict[str, Cursor]) -> None:
        self._found = found

    def __contains__(self, key: str) -> bool:
        return key in self._found

    def __getitem__(self, key: str) -> Cursor:
        return self._found[key]

    def get(self, key: str, read: Callable[[Cursor], T], default: T) -> T:
        return read(self._found[key]) if key in self._found else default


def check_templates(cursor: Cursor, params: set[str] | None) -> None:
    """Check every template in a value; `params` are the known names, or None in `defaults`."""
    if isinstance(cursor.value, dict):
        for _, value in cursor.entries(""):
            check_templates(value, params)
    elif isinstance(cursor.value, list):
        for i, value in enumerate(cursor.value):
            check_templates(Cursor(value, cursor.spot.at(i)), params)
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


def identifier(name: str, what: str, spot: Spot) -> str:
    if not IDENTIFIER.fullmatch(name) or keyword.iskeyword(name):
        spot.fail_at_key(f"{shown(name)} is not a name for {what} (a Python identifier)")
    return name


def python_name(cursor: Cursor, example: str) -> tuple[str, str]:
    """`package.module:name.attribute`, split."""
    text = cursor.text(f"a name such as {example}")
    module, colon, qualname = text.partition(":")
    parts = [*module.split("."), *qualname.split(".")]
    if not colon or not all(IDENTIFIER.fullmatch(p) and not keyword.iskeyword(p) for p in parts):
        cursor.fail(f"{shown(text)} is not package.module:name, such as {example}")
    return module, qualname
