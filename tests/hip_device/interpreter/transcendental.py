"""Transcendental instructions: correctly rounded from float64, with the hardware's special cases.

The ISA documents allow 1 ulp (rcp, rsq, exp, log) and absolute errors (sin, cos); the float32
forms flush denormals whatever the MODE register says.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.hip_device.interpreter.values import Array

_TINY32 = np.float32(2.0**-126)


def _flush(value: Array) -> Array:
    return np.where(np.abs(value) < _TINY32, np.copysign(np.float32(0), value), value)


def single(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A float32 instruction from a float64 function: denormal inputs and results are flushed."""

    def compute(value: Array) -> Array:
        wide = function(_flush(value).astype(np.float64))
        return _flush(wide.astype(np.float32))

    return compute


def half(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A float16 instruction (its operand arrives as float32); the result is rounded once."""
    return lambda value: function(value.astype(np.float64))


def reciprocal(x: Array) -> Array:
    return 1.0 / x


def inverse_root(x: Array) -> Array:
    return 1.0 / np.sqrt(x)


def sine(x: Array) -> Array:
    """sin(2 pi x); reduced first, so that large arguments lose nothing."""
    return np.where(np.isinf(x), np.nan, np.sin(2 * np.pi * np.remainder(x, 1.0)))


def cosine(x: Array) -> Array:
    return np.where(np.isinf(x), np.nan, np.cos(2 * np.pi * np.remainder(x, 1.0)))
