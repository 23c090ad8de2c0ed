"""How manifest errors word things: values shortened, lists of choices, the nearest valid name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_KINDS = {dict: "a mapping", list: "a list", str: "text", bool: "true or false", type(None): "null"}


def shown(value: object) -> str:
    """`value` as people write it in a manifest, cut to a readable length."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (dict, list)):
        return f"{_KINDS[type(value)]} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def kind_of(value: object) -> str:
    return _KINDS.get(type(value), "a number")


def choices(names: Iterable[str]) -> str:
    """`a, b or c`"""
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


def nearest(name: object, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing when no known name is near."""
    text = str(name)[:100]
    names = list(known)
    close = difflib.get_close_matches(text, names, n=1, cutoff=0.6)
    if not close:
        plain = {re.sub(r"[^a-z0-9]", "", known_name.lower()): known_name for known_name in names}
        close = difflib.get_close_matches(re.sub(r"[^a-z0-9]", "", text.lower()), plain, n=1)
        close = [plain[match] for match in close]
    return f"; did you mean {close[0]!r}?" if close else ""
