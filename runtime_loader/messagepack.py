"""A bounded reader of MessagePack, for the metadata note of code objects.

The encoding is that of the MessagePack specification; extension types do not occur in the note
and are refused.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MAX_DEPTH = 16
# First byte of the sized scalars: struct format of what follows.
_NUMBERS = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
# First byte of the sized containers: (kind, struct format of the length).
_SIZED = {
    0xC4: ("bytes", ">B"),
    0xC5: ("bytes", ">H"),
    0xC6: ("bytes", ">I"),
    0xD9: ("text", ">B"),
    0xDA: ("text", ">H"),
    0xDB: ("text", ">I"),
    0xDC: ("list", ">H"),
    0xDD: ("list", ">I"),
    0xDE: ("map", ">H"),
    0xDF: ("map", ">I"),
}


def unpack(data: bytes) -> Any:
    """Decode the one value that `data` starts with. Raises ValueError if it is malformed."""
    value, _ = _read(data, 0, 0)
    return value


def _read(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    if at >= len(data) or depth > _MAX_DEPTH:
        raise ValueError("the MessagePack data is cut short or nested too deep")
    first = data[at]
    at += 1
    if first < 0x80:
        return first, at
    if first >= 0xE0:
        return first - 0x100, at
    if first in _CONSTANTS:
        return _CONSTANTS[first], at
    if first in _NUMBERS:
        return _number(data, at, _NUMBERS[first])
    if first < 0x90:
        return _container(data, at, "map", first & 0x0F, depth)
    if first < 0xA0:
        return _container(data, at, "list", first & 0x0F, depth)
    if first < 0xC0:
        return _container(data, at, "text", first & 0x1F, depth)
    if first not in _SIZED:
        raise ValueError(f"MessagePack type 0x{first:02x} does not occur in code objects")
    kind, format_ = _SIZED[first]
    length, at = _number(data, at, format_)
    return _container(data, at, kind, length, depth)


def _number(data: bytes, at: int, format_: str) -> tuple[Any, int]:
    end = at + struct.calcsize(format_)
    if end > len(data):
        raise ValueError("the MessagePack data is cut short")
    return struct.unpack_from(format_, data, at)[0], end


def _container(data: bytes, at: int, kind: str, length: int, depth: int) -> tuple[Any, int]:
    if length > len(data) - at:  # every element takes at least a byte
        raise ValueError("the MessagePack data is cut short")
    if kind in ("bytes", "text"):
        raw = data[at : at + length]
        return (raw.decode() if kind == "text" else raw), at + length
    if kind == "list":
        items = []
        for _ in range(length):
            item, at = _read(data, at, depth + 1)
            items.append(item)
        return items, at
    mapping = {}
    for _ in range(length):
        key, at = _read(data, at, depth + 1)
        if not isinstance(key, str):
            raise ValueError("a MessagePack map key is not text")
        mapping[key], at = _read(data, at, depth + 1)
    return mapping, at
