"""Wording that several commands share: counts, sizes, lists."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(|B|[kKMGT]i?B)")
_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{unit}b": 1000**power for power, unit in enumerate("kmgt", 1)}
_UNITS |= {f"{unit}ib": 1024**power for power, unit in enumerate("kmgt", 1)}


def counted(number: int, noun: str) -> str:
    """`1 kernel`, `2 kernels`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def byte_size(size: int) -> str:
    """A size in bytes in decimal units: `512 B`, `96.1 kB`, `3.4 MB`."""
    if size < 1000:
        return f"{size} B"
    number = size / 1000
    for unit in ("kB", "MB"):
        if number < 999.95:
            return f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} GB"


def parse_byte_size(text: str) -> int | None:
    """Bytes for `512`, `700MB`, `1.5 GB` or `2GiB`; None if it is none of these."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    size = int(float(match[1]) * _UNITS[match[2].lower()])
    return size if size > 0 else None


def first_few(items: Iterable[object], count: int = 8) -> str:
    """The first `count` items and how many more there are."""
    texts = [str(item) for item in items]
    rest = len(texts) - count
    return ", ".join(texts[:count]) + (f" and {rest:,} more" if rest > 0 else "")


def assignments(values: Mapping[str, Any]) -> str:
    """`N=4096 dtype=bf16`, in the mapping's order: as `flyc inspect` takes parameters."""
    return " ".join(f"{name}={shown_value(value)}" for name, value in values.items())


def shown_value(value: Any) -> str:
    """One parameter value as `flyc inspect NAME=VALUE` takes it."""
    import json

    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
