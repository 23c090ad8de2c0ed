"""The division helpers v_div_scale, v_div_fmas and v_div_fixup.

As the ISA documents define them, but for three places where following their text would make the
compiler's division sequence wrong: a huge denominator is scaled down (not up), v_div_fmas undoes
the scaling in the direction that the size of the quotient tells, and v_div_fixup overflows where
the exponents of the operands do (not where that of the denominator is all ones).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.hip_device.interpreter.arithmetic import fma32, fma64, ldexp
from tests.hip_device.interpreter.values import Array


@dataclass(frozen=True)
class _Format:
    dtype: Any
    bits: Any
    mantissa: int
    exponent_mask: int
    scale: int  # by how many powers of two operands are scaled
    near: int  # exponent distance from which the quotient may leave the normal range
    small: int  # numerators with a smaller exponent are scaled up


_FORMATS = {
    np.dtype(np.float32): _Format(np.float32, np.uint32, 23, 0xFF, 64, 96, 23),
    np.dtype(np.float64): _Format(np.float64, np.uint64, 52, 0x7FF, 128, 768, 53),
}


def _exponent(value: Array, form: _Format) -> Array:
    bits = np.ascontiguousarray(value).view(form.bits)
    return (bits >> form.bits(form.mantissa) & form.bits(form.exponent_mask)).astype(np.int64)


def _is_denormal(value: Array, form: _Format) -> Array:
    return (_exponent(value, form) == 0) & (value != 0)


def div_scale(operand: Array, denominator: Array, numerator: Array) -> tuple[Array, Array]:
    """The scaled operand, and whether v_div_fmas must scale the quotient (the VCC result)."""
    operand, denominator, numerator = np.broadcast_arrays(operand, denominator, numerator)
    form = _FORMATS[operand.dtype]
    distance = _exponent(numerator, form) - _exponent(denominator, form)
    up, down = ldexp(operand, form.scale), ldexp(operand, -form.scale)
    of_denominator = _bits(operand, form) == _bits(denominator, form)
    of_numerator = _bits(operand, form) == _bits(numerator, form)
    wide = denominator.astype(np.float64)
    reciprocal_tiny = _is_denormal((1.0 / wide).astype(form.dtype), form)
    quotient_tiny = _is_denormal((numerator.astype(np.float64) / wide).astype(form.dtype), form)
    invalid = (numerator == 0) | (denominator == 0)
    nan = np.full_like(operand, np.nan)
    false = np.zeros(operand.shape, bool)
    cases = [
        (invalid, nan, false),
        (distance >= form.near, np.where(of_denominator, up, operand), ~false),
        (_is_denormal(denominator, form), up, false),
        (reciprocal_tiny & quotient_tiny, np.where(of_denominator, down, operand), ~false),
        (reciprocal_tiny, down, false),
        (quotient_tiny, np.where(of_numerator, up, operand), ~false),
        (_exponent(numerator, form) <= form.small, up, false),
    ]
    conditions = [case[0] for case in cases]
    scaled = np.select(conditions, [case[1] for case in cases], operand)
    flag = np.select(conditions, [case[2] for case in cases], false)
    return scaled.astype(form.dtype), flag


def div_fmas(a: Array, b: Array, c: Array, scaled: Array) -> Array:
    """a * b + c, scaled back where `scaled` (VCC) says that v_div_scale scaled."""
    form = _FORMATS[a.dtype]
    single = form.dtype is np.float32
    total = (fma32 if single else fma64)(a, b, c)
    if not scaled.any():
        return total
    power = np.where(_exponent(c, form) > form.exponent_mask >> 1, form.scale, -form.scale)
    # The scaled result is rounded once: from float64, which holds more than float32 needs.
    wide = a.astype(np.float64) * b + c if single else total
    return np.where(scaled, ldexp(wide, power).astype(form.dtype), total)


def _bits(value: Array, form: _Format) -> Array:
    return np.ascontiguousarray(value).view(form.bits)


def div_fixup(quotient: Array, denominator: Array, numerator: Array) -> Array:
    """Replace a computed quotient where the division is special."""
    quotient, denominator, numerator = np.broadcast_arrays(quotient, denominator, numerator)
    negative = np.signbit(denominator) != np.signbit(numerator)

    def signed(value: float) -> Array:
        return np.where(negative, -value, value)

    nan = float("nan")
    conditions = [
        np.isnan(numerator),
        np.isnan(denominator),
        (denominator == 0) & (numerator == 0),
        np.isinf(denominator) & np.isinf(numerator),
        (denominator == 0) | np.isinf(numerator),
        np.isinf(denominator) | (numerator == 0),
    ]
    choices: list[Any] = [numerator, denominator, nan, nan, signed(float("inf")), signed(0.0)]
    form = _FORMATS[quotient.dtype]
    single = form.dtype is np.float32
    distance = _exponent(numerator, form) - _exponent(denominator, form)
    conditions += [distance < (-150 if single else -1075), distance > (128 if single else 1024)]
    choices += [signed(0.0), signed(float("inf"))]
    fixed = np.copysign(np.abs(quotient), np.where(negative, -1.0, 1.0))
    return np.select(conditions, choices, fixed).astype(quotient.dtype)
