"""The sample kernels of manifests/: inputs, numpy references and tolerances.

References are computed in float64 from the rounded inputs. Tolerances are relative to the largest
expected magnitude: some units in the last place of the output type, as the kernels accumulate in
float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.hip_device.interpreter.harness import fresh
from tests.hip_device.interpreter.values import decode_bf16, encode_bf16

Array = np.ndarray

STORED = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}
TOLERANCE = {"f32": 2e-6, "f16": 1.5e-3, "bf16": 1.2e-2}


def stored(values: Array, dtype: str) -> Array:
    """Numbers as an array of the element type; bf16 as its bits."""
    if dtype == "bf16":
        return encode_bf16(values.astype(np.float32)).astype(np.uint16)
    return values.astype(STORED[dtype])


def numbers(array: Array, dtype: str) -> Array:
    """An array of an element type as float64."""
    if dtype == "bf16":
        return decode_bf16(array).astype(np.float64)
    return array.astype(np.float64)


@dataclass(frozen=True)
class Case:
    """One call of a sample: its arguments, which of them is the output, and what it should be."""

    arguments: dict[str, Any]
    output: str
    dtype: str
    expected: Array

    def error(self) -> float:
        """The largest error of the output, relative to the largest expected magnitude."""
        found = numbers(self.arguments[self.output], self.dtype)[: len(self.expected)]
        if not self.expected.size:
            return 0.0
        scale = max(float(np.abs(self.expected).max()), 1e-30)
        difference = np.abs(found - self.expected)
        return float(np.where(np.isnan(difference), np.inf, difference).max()) / scale

    def check(self) -> None:
        """Raise `AssertionError` if the output is not the expected one within the tolerance."""
        error = self.error()
        limit = TOLERANCE[self.dtype]
        if not error <= limit:
            raise AssertionError(f"{self.output} is off by {error:.3g}, allowed is {limit:.3g}")


def _random(seed: int, shape: tuple[int, ...], dtype: str, scale: float = 1.0) -> Array:
    return stored(np.random.default_rng(seed).standard_normal(shape) * scale, dtype)


def vector_add(params: Mapping[str, Any], n: int) -> Case:
    dtype = params["dtype"]
    x, y = _random(1, (n,), dtype), _random(2, (n,), dtype)
    out = fresh((n,), STORED[dtype])
    expected = numbers(x, dtype) + numbers(y, dtype)
    return Case({"x": x, "y": y, "out": out, "n": n}, "out", dtype, expected)


def gelu(params: Mapping[str, Any], n: int) -> Case:
    dtype = params["dtype"]
    x = _random(3, (n,), dtype, 2.0)
    wide = numbers(x, dtype)
    inner = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    out = fresh((n,), STORED[dtype])
    return Case({"x": x, "out": out}, "out", dtype, 0.5 * wide * (1 + np.tanh(inner)))


def softmax(params: Mapping[str, Any], rows: int) -> Case:
    dtype, n = params["dtype"], params["N"]
    x = _random(4, (rows, n), dtype, 3.0)
    wide = numbers(x, dtype)
    powers = np.exp(wide - wide.max(axis=1, keepdims=True, initial=-np.inf))
    expected = powers / powers.sum(axis=1, keepdims=True)
    out = fresh((rows, n), STORED[dtype])
    return Case({"x": x, "out": out, "rows": rows}, "out", dtype, expected)


def rmsnorm(params: Mapping[str, Any], rows: int) -> Case:
    dtype, n, eps = params["dtype"], params["N"], 1e-5
    x, weight = _random(5, (rows, n), dtype), _random(6, (n,), dtype)
    wide = numbers(x, dtype)
    scale = 1 / np.sqrt((wide**2).mean(axis=1, keepdims=True) + eps)
    arguments = {"x": x, "weight": weight, "rows": rows, "eps": eps}
    arguments["out"] = fresh((rows, n), STORED[dtype])
    return Case(arguments, "out", dtype, wide * scale * numbers(weight, dtype))


def layernorm(params: Mapping[str, Any], rows: int) -> Case:
    dtype, n, eps = params["dtype"], params["N"], 1e-5
    x = stored(np.random.default_rng(7).standard_normal((rows, n)) + 4, dtype)
    weight, bias = _random(8, (n,), dtype), _random(9, (n,), dtype)
    wide = numbers(x, dtype)
    centred = wide - wide.mean(axis=1, keepdims=True)
    scale = 1 / np.sqrt((centred**2).mean(axis=1, keepdims=True) + eps)
    arguments = {"x": x, "weight": weight, "bias": bias, "rows": rows, "eps": eps}
    arguments["out"] = fresh((rows, n), STORED[dtype])
    expected = centred * scale * numbers(weight, dtype) + numbers(bias, dtype)
    return Case(arguments, "out", dtype, expected)


def gemm(params: Mapping[str, Any], m: int, n: int, k: int) -> Case:
    dtype = params["in_dtype"]
    a, b = _random(10, (m, k), dtype), _random(11, (n, k), dtype)
    c = fresh((m, n), STORED[dtype])
    return Case({"c": c, "a": a, "b": b}, "c", dtype, numbers(a, dtype) @ numbers(b, dtype).T)


def tuned_gemm(params: Mapping[str, Any], m: int, n: int, k: int) -> Case:
    case = gemm(params, m, n, k)
    arguments = {**case.arguments, "scale": 0.25}
    return Case(arguments, "c", case.dtype, case.expected * 0.25)


def splitk_gemm(params: Mapping[str, Any], m: int, n: int, k: int, splits: int = 3) -> Case:
    case = gemm(params, m, n, k)
    workspace = fresh((splits, m, n), np.float32)
    arguments = {**case.arguments, "workspace": workspace, "splits": splits}
    return Case(arguments, "c", case.dtype, case.expected)


# For each sample: how to make a case, and the sizes to try. The first size is the smallest that
# is not a multiple of anything; the others are the edges.
SAMPLES: dict[str, tuple[Callable[..., Case], tuple[tuple[int, ...], ...]]] = {
    "vector_add": (vector_add, ((1003,), (1,), (0,), (4096,), (40_001,))),
    "vector_add_pointers": (vector_add, ((1003,), (1,), (4096,))),
    "gelu": (gelu, ((2051,), (1,), (0,), (8192,))),
    "softmax": (softmax, ((3,), (1,), (0,), (17,))),
    "rmsnorm": (rmsnorm, ((3,), (1,), (0,), (17,))),
    "layernorm": (layernorm, ((3,), (1,), (0,), (17,))),
    "gemm": (gemm, ((33, 70, 130), (1, 1, 1), (64, 128, 256))),
    "splitk_gemm": (splitk_gemm, ((33, 70, 130), (1, 65, 200), (64, 128, 192))),
    "tuned_gemm": (tuned_gemm, ((33, 70, 130), (1, 1, 1), (130, 192, 128))),
}
