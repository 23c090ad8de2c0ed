"""Floats of 8 bits (OCP and fnuz), 6 and 4 bits."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from tests.hip_device.interpreter.values import Array


@dataclass(frozen=True)
class SmallFloat:
    """A float of up to 8 bits: `mantissa` bits, exponent bias.

    `fnuz` has no infinities and no -0; formats of less than 8 bits have neither infinity nor NaN.
    """

    name: str
    mantissa: int
    bias: int
    fnuz: bool = False
    has_infinity: bool = False
    bits: int = 8

    def table(self) -> Array:
        return _table(self)

    def decode(self, octets: Array) -> Array:
        """Numbers (float32) of codes in the low bits of integers."""
        return self.table()[(octets & (1 << self.bits) - 1).astype(np.intp)]

    def encode(self, value: Array) -> Array:
        """Round to nearest even; too large gives infinity, or NaN where there is none, or the
        largest number where there is neither, as NaN does."""
        finite = _finite(self)
        magnitude = np.abs(value.astype(np.float64))
        upper = np.searchsorted(finite, magnitude)
        upper = np.clip(upper, 1, len(finite) - 1)
        low, high = finite[upper - 1], finite[upper]
        to_low, to_high = magnitude - low, high - magnitude
        nearer_high = (to_high < to_low) | ((to_high == to_low) & (upper % 2 == 0))
        code = np.where(nearer_high, upper, upper - 1).astype(np.uint32)
        limit = finite[-1] + (finite[-1] - finite[-2]) / 2
        code = np.where(magnitude >= limit, self._overflow(), code)
        sign = np.signbit(value).astype(np.uint32) << self.bits - 1
        if self.fnuz:
            sign = np.where(code == 0, 0, sign)
        nan = self._overflow() if self.bits < 8 or self.fnuz else 0x7F
        result = np.where(np.isnan(value), nan, code | sign)
        return result.astype(np.uint32)

    def _overflow(self) -> int:
        if self.bits < 8:
            return (1 << self.bits - 1) - 1
        if self.fnuz:
            return 0x80
        return 0x7C if self.has_infinity else 0x7F


@functools.cache
def _table(form: SmallFloat) -> Array:
    code = np.arange(1 << form.bits)
    sign = 1 << form.bits - 1
    exponent = (code & sign - 1) >> form.mantissa
    fraction = (code & ((1 << form.mantissa) - 1)) / (1 << form.mantissa)
    value = np.where(
        exponent == 0,
        np.ldexp(fraction, 1 - form.bias),
        np.ldexp(1 + fraction, exponent - form.bias),
    )
    value = np.where(code & sign, -value, value)
    if form.bits < 8:
        return value.astype(np.float32)
    if form.fnuz:
        value[0x80] = np.nan
    elif form.has_infinity:
        top = exponent == exponent.max()
        value[top & (fraction != 0)] = np.nan
        value[0x7C], value[0xFC] = np.inf, -np.inf
    else:
        value[0x7F] = value[0xFF] = np.nan
    return value.astype(np.float32)


@functools.cache
def _finite(form: SmallFloat) -> Array:
    positive = form.table()[: 1 << form.bits - 1].astype(np.float64)
    return positive[np.isfinite(positive)]


FP8_OCP = SmallFloat("fp8", 3, 7)
BF8_OCP = SmallFloat("bf8", 2, 15, has_infinity=True)
FP8_FNUZ = SmallFloat("fp8", 3, 8, fnuz=True)
BF8_FNUZ = SmallFloat("bf8", 2, 16, fnuz=True)
FP6 = SmallFloat("fp6", 3, 1, bits=6)
BF6 = SmallFloat("bf6", 2, 3, bits=6)
FP4 = SmallFloat("fp4", 1, 1, bits=4)
# How CBSZ and BLGP of the F8F6F4 instructions name the formats.
FLOATS_BY_CODE = (FP8_OCP, BF8_OCP, FP6, BF6, FP4)


def small_float(name: str, ocp: bool) -> SmallFloat:
    """The format that a mnemonic calls "fp8" or "bf8"."""
    if name == "fp8":
        return FP8_OCP if ocp else FP8_FNUZ
    return BF8_OCP if ocp else BF8_FNUZ


def fraction(value: Array) -> Array:
    """v_fract: value - floor(value), kept below one."""
    below_one = np.nextafter(value.dtype.type(1), value.dtype.type(0))
    return np.minimum(value - np.floor(value), below_one)
