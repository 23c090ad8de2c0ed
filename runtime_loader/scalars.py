"""Turns Python numbers into the bit patterns of launcher scalars, or says why one does not fit."""

from __future__ import annotations

import struct
from _operator import index

from runtime_loader.element_types import ELEMENT_TYPES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

Pack: TypeAlias = "Callable[[object], int]"


def packer(type_name: str) -> Pack:
    """The function that packs a value of that scalar type into an unsigned bit pattern.

    It raises `TypeError`, `ValueError` or `OverflowError` for a value that is not such a number:
    integers are taken through `__index__` and range-checked, floats through `__float__` and
    rounded to nearest, ties to even (bf16: to f32, then cut off); a finite value that would become
    infinite is refused.
    """
    element = ELEMENT_TYPES[type_name]
    if element.kind == "bool":
        return _pack_bool
    if element.kind == "float":
        return _pack_bf16 if type_name == "bf16" else _float_packer(element.bits)
    return _int_packer(element.bits, signed=element.kind != "uint")


def _pack_bool(value: object) -> int:
    if value is True or value is False:
        return int(value)
    if str(getattr(value, "dtype", "")).endswith("bool"):  # numpy's has no __index__
        return int(bool(value))
    number = index(value)  # type: ignore[arg-type]
    if number not in (0, 1):
        raise OverflowError(f"{number} is neither True nor False")
    return number


def _int_packer(bits: int, *, signed: bool) -> Pack:
    low = -(1 << (bits - 1)) if signed else 0
    high = low + (1 << bits) - 1
    mask = (1 << bits) - 1

    def pack(value: object) -> int:
        number = index(value)  # type: ignore[arg-type]
        if not low <= number <= high:
            raise OverflowError(f"{number} is outside {low}..{high}")
        return number & mask

    return pack


def _float_packer(bits: int) -> Pack:
    to_bytes = struct.Struct({16: "<e", 32: "<f", 64: "<d"}[bits]).pack

    def pack(value: object) -> int:
        return int.from_bytes(to_bytes(_float(value)), "little")

    return pack


def _pack_bf16(value: object) -> int:
    """FlyDSL truncates here (`flydsl.expr.numeric.BFloat16`), and launches must be the same."""
    return int.from_bytes(struct.pack("<f", _float(value)), "little") >> 16


def _float(value: object) -> float:
    if isinstance(value, (str, bytes, bytearray)):
        raise TypeError(f"{type(value).__name__} is not a number")
    return float(value)  # type: ignore[arg-type]
