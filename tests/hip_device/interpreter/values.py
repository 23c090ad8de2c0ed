"""Value kinds: how an operand's bits become numbers to compute with, and back.

16-bit floats are computed in float32 and rounded once at the end, which is exact for one
addition, multiplication or division (float32 has more than twice their precision).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Convert = Callable[[Array], Array]


@dataclass(frozen=True)
class Kind:
    """A type of operand.

    `decode` turns raw bits (uint64 for 64-bit kinds, else uint32 with the value in the low bits)
    into numbers, `encode` turns results into such bits. `view` is set where the bits of a 32- or
    64-bit register are the number.
    """

    name: str
    bits: int
    floating: bool
    decode: Convert
    encode: Convert
    view: Any = None


def _identity(value: Array) -> Array:
    return value


def _to(dtype: Any) -> Convert:
    return lambda value: value.astype(dtype, copy=False)


def _view(dtype: Any) -> Convert:
    return lambda value: value.view(dtype)


def _bits_of(dtype: Any, bits: Any) -> Convert:
    """Results in `dtype`, seen as their bits."""
    return lambda value: value.astype(dtype, copy=False).view(bits)


def decode_f16(raw: Array) -> Array:
    return raw.astype(np.uint16).view(np.float16).astype(np.float32)


def encode_f16(value: Array) -> Array:
    return value.astype(np.float16).view(np.uint16).astype(np.uint32)


def decode_bf16(raw: Array) -> Array:
    return (raw.astype(np.uint32) << 16).view(np.float32)


def encode_bf16(value: Array) -> Array:
    """Round to nearest even; a NaN keeps its sign and stays a NaN."""
    bits = np.ascontiguousarray(value, dtype=np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(value), (bits >> 16) | 0x40, rounded).astype(np.uint32)


def _wrap32(value: Array) -> Array:
    return value if value.dtype == np.uint32 else value.astype(np.uint32)


def _low16(value: Array) -> Array:
    return value.astype(np.uint32) & np.uint32(0xFFFF)


U32 = Kind("u32", 32, False, _identity, _wrap32, np.uint32)
I32 = Kind("i32", 32, False, _view(np.int32), _wrap32, np.int32)
F32 = Kind("f32", 32, True, _view(np.float32), _bits_of(np.float32, np.uint32), np.float32)
U64 = Kind("u64", 64, False, _identity, _to(np.uint64), np.uint64)
I64 = Kind("i64", 64, False, _view(np.int64), _to(np.uint64), np.int64)
F64 = Kind("f64", 64, True, _view(np.float64), _bits_of(np.float64, np.uint64), np.float64)
U16 = Kind("u16", 16, False, _low16, _low16)
I16 = Kind(
    "i16", 16, False, lambda raw: raw.astype(np.uint16).view(np.int16).astype(np.int32), _low16
)
F16 = Kind("f16", 16, True, decode_f16, encode_f16)
BF16 = Kind("bf16", 16, True, decode_bf16, encode_bf16)

_FLOAT_CONSTANTS = {
    240: 0.5, 241: -0.5, 242: 1.0, 243: -1.0, 244: 2.0, 245: -2.0, 246: 4.0, 247: -4.0,
}  # fmt: skip
_INVERSE_2PI = {"f16": 0x3118, "bf16": 0x3E22, "f32": 0x3E22F983, "f64": 0x3FC45F306DC9C882}


def inline_constant(code: int, kind: Kind) -> int:
    """The bits of an inline constant (operand codes 128 to 248) for an operand of `kind`."""
    mask = (1 << kind.bits) - 1
    if 128 <= code <= 192:
        return code - 128
    if 193 <= code <= 208:
        return (192 - code) & mask
    name = kind.name if kind.floating else {16: "f16", 32: "f32", 64: "f64"}[kind.bits]
    if code == 248:
        return _INVERSE_2PI[name]
    value = _FLOAT_CONSTANTS[code]
    if name == "bf16":
        return int(np.float32(value).view(np.uint32)) >> 16
    dtype, bits = {
        "f16": (np.float16, np.uint16),
        "f32": (np.float32, np.uint32),
        "f64": (np.float64, np.uint64),
    }[name]
    return int(np.array(value, dtype).view(bits))


def literal_bits(literal: int, kind: Kind) -> int:
    """The bits of a 32-bit literal for an operand of `kind`."""
    if kind.bits != 64:
        return literal & ((1 << kind.bits) - 1)
    if kind.floating:
        return literal << 32
    if kind.name == "i64" and literal >> 31:
        return literal | 0xFFFFFFFF << 32
    return literal


def constant_array(bits: int, kind: Kind) -> Array:
    """A (1, 1) array of one number of `kind`, which broadcasts over waves and lanes."""
    raw = np.full((1, 1), bits, np.uint64 if kind.bits == 64 else np.uint32)
    return kind.decode(raw)
