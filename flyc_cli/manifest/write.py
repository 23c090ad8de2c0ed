"""Python values to the text of a manifest file, such that reading it gives the same values."""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import yaml

from flyc_cli.manifest.model import (
    ConstantArg,
    EnumValue,
    ExampleArg,
    ListValue,
    ObjectValue,
    PointerArg,
    ScalarArg,
    StructArg,
    TensorArg,
    TupleValue,
    TypeValue,
)
from runtime_loader.errors import FlycError

# Text that no version of YAML takes for anything else; all other text is quoted.
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]*[A-Za-z0-9_]")
_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "null"))


class _Dumper(yaml.SafeDumper):
    """Quotes text unless it can only be text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _text)


def manifest_yaml(document: Mapping[str, Any]) -> str:
    """The YAML text of a document of plain values."""
    text: str = yaml.dump(
        dict(document), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100
    )
    return text


def parameter(value: Any, where: str) -> Any:
    """The values of a parameter: a list is swept, everything else is one value."""
    if isinstance(value, list):
        return [single(item, where) for item in value]
    return single(value, where)


def single(value: Any, where: str) -> Any:
    """One value of a parameter, tagged where YAML needs it."""
    if isinstance(value, (tuple, TupleValue)):
        items = value.items if isinstance(value, TupleValue) else value
        return {"tuple": [single(item, where) for item in items]}
    if isinstance(value, ListValue):
        return {"list": [single(item, where) for item in value.items]}
    if isinstance(value, TypeValue):
        return {"type": value.name}
    if isinstance(value, ObjectValue):
        return {"object": f"{value.module}:{value.qualname}"}
    if isinstance(value, EnumValue):
        return {"enum": f"{value.module}:{value.qualname}"}
    if isinstance(value, enum.Enum):
        return {"enum": f"{type(value).__module__}:{type(value).__qualname__}.{value.name}"}
    if callable(value) and hasattr(value, "__qualname__"):
        return {"object": f"{value.__module__}:{value.__qualname__}"}
    return plain(value, where)


def plain(value: Any, where: str) -> Any:
    """Anything else of a manifest: nested mappings and lists of plain values and arguments."""
    if isinstance(value, Mapping):
        return {str(name): plain(item, f"{where}.{name}") for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, where) for item in value]
    if isinstance(value, ScalarArg):
        return value.type
    if isinstance(value, PointerArg):
        return {"pointer": value.dtype, **({} if value.align is None else {"align": value.align})}
    if isinstance(value, StructArg):
        return {"struct": plain(value.fields, where)}
    if isinstance(value, ConstantArg):
        return {"constexpr": single(value.value, where)}
    if isinstance(value, ExampleArg):
        return value.value
    if isinstance(value, TensorArg):
        said = {entry.name: getattr(value, entry.name) for entry in fields(value)}
        return {name: plain(item, where) for name, item in said.items() if item is not None}
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)  # numpy's numbers are subclasses of Python's
    if hasattr(type(value), "__index__"):
        return value.__index__()
    raise FlycError(
        f"{where}: a manifest cannot hold {value!r:.60} ({type(value).__name__}); name an object "
        'with {"object": "module:attribute"}, or let a factory make it from plain values'
    )
