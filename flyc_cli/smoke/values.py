"""Made-up contents of tensors, by element type, and numbers of a command line as scalars."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from runtime_loader.element_types import ELEMENT_TYPES
from runtime_loader.errors import ArgumentError

_COUNT = 1024
_PACK = {"f16": "e", "f32": "f", "f64": "d"}
# A byte that is an ordinary number in each of the 8-bit formats and below.
_NARROW = 0x38


def element_size(dtype: str) -> int:
    """Bytes to reserve for one element; types below a byte get a whole one."""
    return max(1, ELEMENT_TYPES[dtype].bits // 8)


def pattern(dtype: str) -> bytes:
    """Elements of a type to repeat over a tensor.

    Floats are spread over [-1, 1), the same on every run; integers are zero, because kernels may
    take them for indices.
    """
    element = ELEMENT_TYPES[dtype]
    if element.kind != "float":
        return bytes(element_size(dtype))
    if element.bits <= 8:
        return bytes([_NARROW])
    random_numbers = random.Random(0)
    numbers = [random_numbers.uniform(-1, 1) for _ in range(_COUNT)]
    if dtype == "bf16":
        return b"".join(struct.pack("<f", number)[2:] for number in numbers)
    return struct.pack(f"<{_COUNT}{_PACK[dtype]}", *numbers)


def scalar(type_: str, text: str, name: str) -> int | float | bool:
    """The scalar that a text means. Raises `ArgumentError` naming the argument."""
    kind = ELEMENT_TYPES[type_].kind
    read: Callable[[str], int | float | bool] = _integer
    if kind == "bool":
        read = _boolean
    elif kind == "float":
        read = float
    try:
        return read(text)
    except ValueError:
        raise ArgumentError(f"argument {name}: {text!r} is not a value of type {type_}") from None


def _integer(text: str) -> int:
    return int(text, 0)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise ValueError(text)
    return text.lower() in ("true", "1")
