"""JSON through the C functions that `json` runs on, without `json`.

`json` compiles regular expressions when it is imported: a fifth of a server's time to its first
launch. Where an interpreter lacks the C functions, `json` itself serves.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

try:
    from _json import encode_basestring_ascii, make_scanner
except ImportError:  # not CPython
    from json import JSONDecoder
    from json.encoder import encode_basestring_ascii

    _decoder: Any = JSONDecoder()
    _scan = _decoder.scan_once
else:

    def _refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    class _Context:
        """What `json.JSONDecoder` would tell the scanner."""

        strict = True
        object_hook = None
        object_pairs_hook = None
        parse_float = float
        parse_int = int
        parse_constant = staticmethod(_refuse)

    _context: Any = _Context
    _scan = make_scanner(_context)


def loads(text: str) -> Any:
    """Decode one JSON value with nothing around it. Raises ValueError, RecursionError."""
    try:
        value, end = _scan(text, 0)
    except StopIteration as error:
        raise ValueError(f"no value at character {error.value}") from None
    if end != len(text):
        raise ValueError(f"something after the value, at character {end}")
    return value


def dumps(value: object) -> str:
    """The canonical text: sorted keys, no white space, ASCII; what `json.dumps` would give.

    Raises TypeError for what is not JSON and ValueError for a float that is not finite.
    """
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return str(encode_basestring_ascii(value))
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        if value - value != 0:
            raise ValueError(f"{value} is not JSON")
        return float.__repr__(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(dumps, value))}]"
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("a key is not text")
        return f"{{{','.join(f'{dumps(key)}:{dumps(value[key])}' for key in sorted(value))}}}"
    raise TypeError(f"{type(value).__name__} is not JSON")
