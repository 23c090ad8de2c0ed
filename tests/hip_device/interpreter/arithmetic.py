"""Number crunching that numpy does not offer: fused multiply-add, IEEE min/max, bit counting."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.hip_device.interpreter.values import Array

_LIBM = ctypes.CDLL(ctypes.util.find_library("m"))
_TIE_OR_EXACT = np.uint64(0x0FFFFFFF)


@functools.cache
def _scalar_fma(name: str, scalar: Any) -> Any:
    function = _LIBM[name]
    function.argtypes, function.restype = (scalar,) * 3, scalar
    return np.frompyfunc(lambda a, b, c: function(a, b, c), 3, 1)


def fma32(a: Array, b: Array, c: Array) -> Array:
    """a * b + c in float32, rounded once.

    float64 holds the product exactly. Rounding the sum to float64 and then to float32 errs only
    where the float64 sum looks like a tie (or is in the denormal range): there libm decides.
    """
    total = a.astype(np.float64) * b + c
    result = total.astype(np.float32)
    suspect = (total.view(np.uint64) & _TIE_OR_EXACT) == 0
    if suspect.any():
        # An exact sum has no error to lose: only inexact ones can have been rounded twice.
        suspect &= _sum_is_inexact(a, b, c, total)
        if suspect.any():
            a, b, c = (np.broadcast_to(x, total.shape)[suspect] for x in (a, b, c))
            result[suspect] = _scalar_fma("fmaf", ctypes.c_float)(a, b, c).astype(np.float32)
    return result


def _sum_is_inexact(a: Array, b: Array, c: Array, total: Array) -> Array:
    product = a.astype(np.float64) * b
    back = total - product
    return ((total - back) != product) | (back != c)


def fma64(a: Array, b: Array, c: Array) -> Array:
    a, b, c = np.broadcast_arrays(a, b, c)
    return np.asarray(_scalar_fma("fma", ctypes.c_double)(a, b, c)).astype(np.float64)


def fma16(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of float16 values; float64 holds enough for the one rounding that follows."""
    return a.astype(np.float64) * b + c


def minimum(a: Array, b: Array) -> Array:
    """IEEE minNum: the number if the other is a NaN; -0 is less than +0."""
    result = np.fmin(a, b)
    return _fix_zero(result, a, b, np.bitwise_or) if (result == 0).any() else result


def maximum(a: Array, b: Array) -> Array:
    result = np.fmax(a, b)
    return _fix_zero(result, a, b, np.bitwise_and) if (result == 0).any() else result


def _fix_zero(result: Array, a: Array, b: Array, combine: Callable[..., Array]) -> Array:
    bits = {4: np.uint32, 8: np.uint64}[result.itemsize]
    both = combine(np.ascontiguousarray(a).view(bits), np.ascontiguousarray(b).view(bits))
    zeros = (a == 0) & (b == 0)
    return np.where(zeros, both.view(result.dtype), result)


def minimum_nan(a: Array, b: Array) -> Array:
    """IEEE-754-2019 minimum: a NaN wins."""
    return np.where(np.isnan(a) | np.isnan(b), a + b, minimum(a, b))


def maximum_nan(a: Array, b: Array) -> Array:
    return np.where(np.isnan(a) | np.isnan(b), a + b, maximum(a, b))


def median(a: Array, b: Array, c: Array) -> Array:
    """v_med3 of floats: with a NaN, the least of the three."""
    low, high = minimum(a, b), maximum(a, b)
    middle = maximum(low, minimum(high, c))
    unordered = np.isnan(a) | np.isnan(b) | np.isnan(c)
    return np.where(unordered, minimum(low, c), middle)


def median_integer(a: Array, b: Array, c: Array) -> Array:
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


def popcount(value: Array) -> Array:
    return np.bitwise_count(value).astype(np.uint32)


def reverse_bits(value: Array) -> Array:
    """Reverse the bits of uint32 or uint64 values."""
    bits = value.itemsize * 8
    octets = np.ascontiguousarray(value).view(np.uint8)
    flipped = np.packbits(
        np.unpackbits(octets.reshape(-1, bits // 8), axis=1), axis=1, bitorder="little"
    )
    return flipped[:, ::-1].copy().view(value.dtype).reshape(value.shape)


def leading_zeros(value: Array) -> Array:
    """Leading zeros of uint32 or uint64 values; all ones (-1) for zero."""
    spread = value.copy()
    for shift in (1, 2, 4, 8, 16, 32):
        if shift < value.itemsize * 8:
            spread |= spread >> value.dtype.type(shift)
    count = (value.itemsize * 8 - np.bitwise_count(spread)).astype(np.uint32)
    return np.where(value == 0, np.uint32(0xFFFFFFFF), count)


def trailing_zeros(value: Array) -> Array:
    below = (value & (~value + value.dtype.type(1))) - value.dtype.type(1)
    return np.where(value == 0, np.uint32(0xFFFFFFFF), np.bitwise_count(below).astype(np.uint32))


def sign_bits(value: Array) -> Array:
    """Leading bits equal to the sign of int32 or int64 values; -1 if all are."""
    unsigned = {4: np.uint32, 8: np.uint64}[value.itemsize]
    return leading_zeros(
        (value ^ (value >> value.dtype.type(value.itemsize * 8 - 1))).view(unsigned)
    )


def to_integer(value: Array, dtype: Any) -> Array:
    """Truncate towards zero, saturating; NaN gives 0."""
    info = np.iinfo(dtype)
    clipped = np.clip(np.trunc(value.astype(np.float64)), float(info.min), float(info.max))
    return np.where(np.isnan(value), 0.0, clipped).astype(dtype)


def high_product(a: Array, b: Array) -> Array:
    """The upper 32 bits of a 32 x 32 bit product; signedness as the operands'."""
    wide = np.int64 if a.dtype == np.int32 else np.uint64
    return (a.astype(wide) * b.astype(wide) >> wide(32)).astype(a.dtype)


def round_toward_zero_f16(value: Array) -> Array:
    """float32 to float16 bits, rounded toward zero: overflow gives the largest number."""
    nearest = value.astype(np.float16)
    bits = nearest.view(np.uint16).astype(np.uint32)
    over = np.abs(nearest.astype(np.float32)) > np.abs(value)
    return np.where(over & ~np.isnan(value), bits - np.uint32(1), bits)


def frexp_mantissa(value: Array) -> Array:
    mantissa, _ = np.frexp(value)
    return np.where(np.isfinite(value), mantissa, value).astype(value.dtype)


def frexp_exponent(value: Array) -> Array:
    _, exponent = np.frexp(value)
    return np.where(np.isfinite(value), exponent, 0).astype(np.int32)


def ldexp(value: Array, exponent: Array | int) -> Array:
    """value * 2**exponent, rounded once."""
    limited = np.clip(exponent, -5000, 5000).astype(np.int32)
    if value.dtype == np.float32:
        # float64 reaches every result, so that denormal ones are rounded only once.
        return np.ldexp(value.astype(np.float64), np.clip(limited, -400, 400)).astype(np.float32)
    return np.ldexp(value, limited)
