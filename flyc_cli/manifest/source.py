"""YAML with places: plain values, and the line and column of every key and value.

The YAML here is smaller than YAML 1.1 (docs/manifest.md, "The YAML it reads"): keys are text, only
true and false are booleans, no tags and no merge keys; aliases are expanded within a budget.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import yaml

from flyc_cli.manifest.messages import shown
from runtime_loader.errors import FlycError

MAX_BYTES = 16 << 20
MAX_VALUES = 1_000_000
MAX_DEPTH = 40

# From the top of the document: mapping keys and list positions.
KeyPath: TypeAlias = "tuple[str | int, ...]"


@dataclass(frozen=True, order=True)
class Place:
    """A place in a manifest: file as it was given, line and column from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class ManifestError(FlycError):
    """The manifest is wrong at `place`. The text is `file:line:column: message`."""

    def __init__(self, place: Place, message: str) -> None:
        self.place = place
        self.message = message
        super().__init__(f"{place}: {message}")

    def __reduce__(self) -> tuple[type[ManifestError], tuple[Place, str]]:
        return type(self), (self.place, self.message)


@dataclass(frozen=True)
class Spot:
    """One value's path in a document, and how to raise an error there.

    `values` and `keys` hold the places of the whole document; both are empty for a manifest that
    was not read from a file, and then errors give the path instead of line and column.
    """

    file: str
    values: Mapping[KeyPath, Place] = field(default_factory=dict, repr=False)
    keys: Mapping[KeyPath, Place] = field(default_factory=dict, repr=False)
    path: KeyPath = ()

    def at(self, *more: str | int) -> Spot:
        return Spot(self.file, self.values, self.keys, self.path + more)

    @property
    def place(self) -> Place:
        """Where the value is, or else the nearest value around it."""
        for length in range(len(self.path), -1, -1):
            if self.path[:length] in self.values:
                return self.values[self.path[:length]]
        return Place(self.file, 1, 1)

    @property
    def name(self) -> str:
        """The path as people write it: `kernels[2].args.x`."""
        steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path]
        return "".join(steps).removeprefix(".") or "the manifest"

    def fail(self, message: str) -> NoReturn:
        raise ManifestError(self.place, f"{self.name}: {message}")

    def fail_at_key(self, message: str) -> NoReturn:
        """Raise at the key that names this value."""
        raise ManifestError(self.keys.get(self.path, self.place), f"{self.name}: {message}")


@dataclass(frozen=True)
class Document:
    """A parsed file: its value, the spot of its top, and the SHA-256 (hex) of its bytes."""

    value: Any
    spot: Spot
    sha256: str


def read_document(path: Path) -> Document:
    """Read the YAML file at `path`; raise `ManifestError` if it cannot be read or is not YAML."""
    start = Place(str(path), 1, 1)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ManifestError(start, f"cannot read the manifest: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ManifestError(start, f"the manifest is larger than {MAX_BYTES >> 20} MiB")
    return parse_document(data, str(path))


def parse_document(data: bytes, file: str) -> Document:
    """Parse the bytes of a YAML file; `file` is what messages call it."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ManifestError(Place(file, line, 1), "the manifest is not UTF-8 text") from None
    try:
        node = _Composer(text, file).document()
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = Place(file, before.count("\n") + 1, error.position - (before.rfind("\n") + 1) + 1)
        raise ManifestError(
            place, f"not YAML: the character {chr(error.character)!r} is not allowed"
        ) from None
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text, file) from None
    flattener = _Flattener()
    value = flattener.value(node, ())
    spot = Spot(file, flattener.values, flattener.keys)
    return Document(value, spot, hashlib.sha256(data).hexdigest())


def _syntax_error(error: yaml.MarkedYAMLError, text: str, file: str) -> ManifestError:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line, mark.column) if mark else (0, 0)
    lines = text.splitlines()
    hint = ""
    if line < len(lines) and "${" in lines[line]:
        hint = '; inside [...] and {...}, write "${...}" in quotes'
    elif line < len(lines) and "\t" in lines[line]:
        hint = "; indent with spaces, not tabs"
    context = f"{error.context}, " if error.context else ""
    return ManifestError(
        Place(file, line + 1, column + 1), f"not YAML: {context}{error.problem}{hint}"
    )


@dataclass
class _Node:
    """A YAML node; `content` is a scalar, a list of nodes, or nodes by key."""

    place: Place
    content: Any
    key_places: dict[str, Place] = field(default_factory=dict)


class _Composer:
    """Builds nodes from PyYAML's events; an alias is the anchored node itself."""

    def __init__(self, text: str, file: str) -> None:
        self._file = file
        self._events: Iterator[Any] = iter(yaml.parse(text, Loader=yaml.SafeLoader))
        self._anchors: dict[str, _Node] = {}

    def document(self) -> _Node:
        next(self._events)
        event = next(self._events)
        if isinstance(event, yaml.StreamEndEvent):
            raise ManifestError(Place(self._file, 1, 1), "the manifest is empty")
        root = self._node(next(self._events), 0)
        next(self._events)
        event = next(self._events)
        if not isinstance(event, yaml.StreamEndEvent):
            raise ManifestError(self._place(event), "a manifest is one YAML document, not several")
        return root

    def _place(self, event: Any) -> Place:
        return Place(self._file, event.start_mark.line + 1, event.start_mark.column + 1)

    def _node(self, event: Any, depth: int) -> _Node:
        place = self._place(event)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise ManifestError(place, f"no anchor &{event.anchor} before this alias")
            return self._anchors[event.anchor]
        if depth > MAX_DEPTH:
            raise ManifestError(place, f"nested deeper than {MAX_DEPTH} levels")
        if event.tag is not None:
            raise ManifestError(place, f"YAML tags ({event.tag:.40}) are not supported")
        if isinstance(event, yaml.ScalarEvent):
            node = _Node(place, _scalar(event, place))
        elif isinstance(event, yaml.SequenceStartEvent):
            node = _Node(place, [])
            while not isinstance(item := next(self._events), yaml.SequenceEndEvent):
                node.content.append(self._node(item, depth + 1))
        else:
            node = _Node(place, {})
            while not isinstance(key := next(self._events), yaml.MappingEndEvent):
                self._entry(node, key, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _entry(self, node: _Node, event: Any, depth: int) -> None:
        place = self._place(event)
        if not isinstance(event, yaml.ScalarEvent) or event.tag is not None:
            raise ManifestError(place, "a key is plain text")
        key = event.value
        if key == "<<" and event.implicit[0]:
            raise ManifestError(place, "merge keys (<<) are not supported; repeat the entries")
        if key in node.key_places:
            raise ManifestError(
                place, f"the key {shown(key)} is already at line {node.key_places[key].line}"
            )
        node.key_places[key] = place
        node.content[key] = self._node(next(self._events), depth + 1)


class _Flattener:
    """Turns nodes into plain values and records the place of each; aliases count every time."""

    def __init__(self) -> None:
        self.values: dict[KeyPath, Place] = {}
        self.keys: dict[KeyPath, Place] = {}
        self._left = MAX_VALUES

    def value(self, node: _Node, path: KeyPath) -> Any:
        self._left -= 1
        if self._left < 0:
            raise ManifestError(
                node.place, f"more than {MAX_VALUES:,} values (aliases count each time)"
            )
        if len(path) > MAX_DEPTH:
            raise ManifestError(node.place, f"nested deeper than {MAX_DEPTH} levels")
        self.values[path] = node.place
        if isinstance(node.content, list):
            return [self.value(item, (*path, i)) for i, item in enumerate(node.content)]
        if isinstance(node.content, dict):
            for key, place in node.key_places.items():
                self.keys[(*path, key)] = place
            return {key: self.value(item, (*path, key)) for key, item in node.content.items()}
        return node.content


_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_BASED = re.compile(r"[-+]?(0x[0-9a-fA-F]+|0o[0-7]+|0b[01]+)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_PADDED = re.compile(r"[-+]?0[0-9_]+(\.[0-9_]*)?|[-+]?[0-9][0-9_]*_[0-9_]*(\.[0-9_]*)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF|nan|NaN|NAN)")
_OLD_BOOLEANS = {"yes": "true", "on": "true", "true": "true"}
_OLD_BOOLEANS |= {"no": "false", "off": "false", "false": "false"}


def _scalar(event: Any, place: Place) -> str | int | float | bool | None:
    """The value of a scalar; text that YAML versions read differently is an error."""
    text: str = event.value
    if not event.implicit[0]:
        return text
    if text in ("", "~", "null"):
        return None
    if text in ("true", "false"):
        return text == "true"
    if text.lower() in _OLD_BOOLEANS:
        meant = _OLD_BOOLEANS[text.lower()]
        raise ManifestError(place, f"{text} is unclear: write {meant}, or '{text}' for the text")
    if _NOT_FINITE.fullmatch(text):
        raise ManifestError(place, f"{text} is not a finite number")
    if _PADDED.fullmatch(text):
        raise ManifestError(
            place,
            f"{text} is unclear: write a number without leading zeros or underscores "
            f"(octal is 0o17), or '{text}' for the text",
        )
    if _INTEGER.fullmatch(text) or _BASED.fullmatch(text):
        value = int(text, 0 if _BASED.fullmatch(text) else 10) if len(text) <= 80 else 2**64
        if not -(2**63) <= value < 2**64:
            raise ManifestError(place, f"{text:.40} does not fit 64 bits")
        return value
    if _FLOAT.fullmatch(text):
        number = float(text)
        if number in (float("inf"), float("-inf")):
            raise ManifestError(place, f"{text:.40} is too large for a 64-bit float")
        return number
    return text
