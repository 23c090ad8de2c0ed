"""Compiled conversions with a scale (gfx950), against the formats' definitions.

The expected values come from the OCP Microscaling Formats specification: every code of a format is
listed with its value, and a number becomes the nearest of them, of two the one with an even code.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tests.hip_device.compile_mlir import compile_mlir
from tests.hip_device.interpreter.harness import fresh, launch_kernel
from tests.hip_device.interpreter.launch import CodeObjectProgram

pytestmark = [pytest.mark.compile, pytest.mark.device]

_LANES = 256
# Exponent bits, mantissa bits, bias, and the codes of positive numbers that are no numbers.
_SMALL = {"fp8": (4, 3, 7, {127}), "bf8": (5, 2, 15, {124, 125, 126, 127}), "fp4": (2, 1, 1, set())}
_LARGE = ("f32", "f16", "bf16")
_TYPES = {"f32": "f32", "f16": "vector<2xf16>", "bf16": "vector<2xbf16>"}

# Lane n reads the words n, n + 256, … and writes so: the old destination, the sources, the scale.
_KERNEL = """
    llvm.func @{name}(%in: !llvm.ptr<1>, %out: !llvm.ptr<1>)
        attributes {{gpu.kernel, rocdl.kernel, rocdl.flat_work_group_size = "256,256"}} {{
      %lane = rocdl.workitem.id.x : i32
      %lanes = llvm.mlir.constant(256 : i32) : i32
      %select = llvm.mlir.constant({select}) : {select_type}
      %false = llvm.mlir.constant(false) : i1
      %at0 = llvm.getelementptr %in[%lane] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, i32
      %at1 = llvm.getelementptr %at0[%lanes] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, i32
      %at2 = llvm.getelementptr %at1[%lanes] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, i32
      %at3 = llvm.getelementptr %at2[%lanes] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, i32
      %old = llvm.load %at0 : !llvm.ptr<1> -> {old}
      %a = llvm.load %at1 : !llvm.ptr<1> -> {source}
      %b = llvm.load %at2 : !llvm.ptr<1> -> {source}
      %scale = llvm.load %at3 : !llvm.ptr<1> -> f32
      %result = llvm.call_intrinsic "llvm.amdgcn.cvt.scalef32.{intrinsic}"({operands})
          : ({types}) -> {result}
      %size = llvm.mlir.constant(2 : i32) : i32
      %start = llvm.mul %lane, %size : i32
      %to = llvm.getelementptr %out[%start] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, i32
      llvm.store %result, %to : {result}, !llvm.ptr<1>
      llvm.return
    }}
"""


def _down(small: str, large: str, select: int) -> str:
    """From two large numbers to a part of the destination."""
    byte = small == "fp4"
    old, select_type = ("i32", "i32") if byte else ("vector<2xi16>", "i1")
    sources = ["%a", "%b"] if large == "f32" else ["%a"]
    types = [old, *[_TYPES[large]] * len(sources), "f32", select_type]
    return _KERNEL.format(
        name=f"pk_{small}_{large}_{select}", intrinsic=f"pk.{small}.{large}", old=old,
        select=f"{select} : i32" if byte else ("true" if select else "false"),
        select_type=select_type, source=_TYPES[large], result=old, types=", ".join(types),
        operands=", ".join(["%old", *sources, "%scale", "%select"]),
    )  # fmt: skip


def _up(small: str, large: str, select: int) -> str:
    """From a part of a register to two large numbers."""
    byte = small == "fp4"
    select_type = "i32" if byte else "i1"
    return _KERNEL.format(
        name=f"pk_{large}_{small}_{select}", intrinsic=f"pk.{large}.{small}", old="i32",
        select=f"{select} : i32" if byte else ("true" if select else "false"),
        select_type=select_type, source="i32", operands="%a, %scale, %select",
        types=f"i32, f32, {select_type}",
        result="vector<2xf32>" if large == "f32" else _TYPES[large],
    )  # fmt: skip


def _one(small: str, select: int) -> str:
    """From a byte to one number."""
    return _KERNEL.format(
        name=f"f32_{small}_{select}", intrinsic=f"f32.{small}", old="i32", select_type="i32",
        select=f"{select} : i32", source="i32", operands="%a, %scale, %select",
        types="i32, f32, i32", result="f32",
    )  # fmt: skip


_SELECTIONS = {"fp8": (0, 1), "bf8": (0, 1), "fp4": (0, 1, 2, 3)}
_PAIRS = [(small, large, n) for small in _SMALL for large in _LARGE for n in _SELECTIONS[small]]
_ONES = [(small, n) for small in ("fp8", "bf8") for n in range(4)]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> CodeObjectProgram:
    kernels = [make(*pair) for make in (_down, _up) for pair in _PAIRS]
    kernels += [_one(*one) for one in _ONES]
    made = compile_mlir("".join(kernels), ["gfx950"], tmp_path_factory.mktemp("scaled"))
    return CodeObjectProgram(made["gfx950"])


def _launch(program: CodeObjectProgram, kernel: str, words: np.ndarray) -> np.ndarray:
    """Two words of each lane."""
    out = fresh((_LANES, 2), np.uint32)
    launch_kernel(program, kernel, (1, 1, 1), (_LANES, 1, 1), [words, out])
    return out


def _value(small: str, code: int) -> Fraction | None:
    """Of a code's magnitude; None for what is no number."""
    _, mantissa_bits, bias, special = _SMALL[small]
    if code in special:
        return None
    exponent, mantissa = code >> mantissa_bits, code & (1 << mantissa_bits) - 1
    whole = 0 if exponent == 0 else 1 << mantissa_bits
    power = max(exponent, 1) - bias - mantissa_bits
    return Fraction(whole + mantissa) * Fraction(2) ** power


def _nearest(small: str, number: Fraction) -> int:
    """The code of a magnitude that is within the format's range."""
    bits = sum(_SMALL[small][:2])
    values = [(code, _value(small, code)) for code in range(1 << bits)]
    found = [(abs(value - number), code & 1, code) for code, value in values if value is not None]
    return min(found)[2]


def _scales(rng: np.random.Generator) -> np.ndarray:
    """Of which the exponent counts alone; none that a half cannot follow."""
    return np.ldexp(1.0, rng.integers(-4, 1, _LANES)) * rng.choice([1.0, 1.75], _LANES)


def _sources(small: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Numbers (two a lane) and scales (one a lane): quotients all over the range, and midpoints."""
    exponent_bits, mantissa_bits, _, special = _SMALL[small]
    codes = (1 << exponent_bits + mantissa_bits) - len(special)
    values = np.array([float(_value(small, code) or 0) for code in range(codes)])
    chosen = values[rng.integers(0, codes - 1, (_LANES, 2))]
    above = values[np.searchsorted(values, chosen) + 1]
    part = rng.choice([0.0, 0.25, 0.5, 0.75], (_LANES, 2))
    scales = _scales(rng)
    signs = rng.choice([-1.0, 1.0], (_LANES, 2))
    by = np.ldexp(1.0, np.frexp(scales)[1] - 1)
    return signs * (chosen + (above - chosen) * part) * by[:, None], scales


def _words(kind: str, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The two source registers for two numbers a lane, and the numbers that they hold."""
    if kind == "f32":
        held = numbers.astype(np.float32)
        return held[:, 0].copy().view(np.uint32), held[:, 1].copy().view(np.uint32), held
    if kind == "f16":
        halves = numbers.astype(np.float16)
        held = halves.astype(np.float32)
        bits = halves.view(np.uint16)
    else:
        bits = (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        held = (bits.astype(np.uint32) << 16).view(np.float32)
    both = np.ascontiguousarray(bits).view(np.uint32)[:, 0]
    return both, both, held


@pytest.mark.parametrize(("small", "large", "select"), _PAIRS)
def test_scaled_down(program: CodeObjectProgram, small: str, large: str, select: int) -> None:
    rng = np.random.default_rng(11)
    numbers, scales = _sources(small, rng)
    a, b, held = _words(large, numbers)
    old = rng.integers(0, 1 << 32, _LANES, np.uint32)
    words = np.stack([old, a, b, scales.astype(np.float32).view(np.uint32)])
    found = _launch(program, f"pk_{small}_{large}_{select}", words)[:, 0]
    bits = 4 if small == "fp4" else 8
    shift = select * 2 * bits
    for lane in range(_LANES):
        by = Fraction(2) ** int(np.frexp(scales[lane])[1] - 1)
        codes = [
            _nearest(small, abs(Fraction(float(number))) / by) | int(np.signbit(number)) << bits - 1
            for number in held[lane]
        ]
        mask = (1 << 2 * bits) - 1 << shift
        wanted = int(old[lane]) & ~mask | (codes[0] | codes[1] << bits) << shift
        assert found[lane] == wanted, (lane, held[lane], scales[lane])


@pytest.mark.parametrize(("small", "large", "select"), _PAIRS)
def test_scaled_up(program: CodeObjectProgram, small: str, large: str, select: int) -> None:
    rng = np.random.default_rng(12)
    words = rng.integers(0, 1 << 32, (4, _LANES), np.uint32)
    scales = _scales(rng)
    words[3] = scales.astype(np.float32).view(np.uint32)
    out = _launch(program, f"pk_{large}_{small}_{select}", words)
    if large == "f32":
        found = out.view(np.float32).astype(np.float64)
    elif large == "f16":
        found = out[:, :1].copy().view(np.float16).astype(np.float64)
    else:
        halves = out[:, :1].copy().view(np.uint16).astype(np.uint32) << 16
        found = halves.view(np.float32).astype(np.float64)
    bits = 4 if small == "fp4" else 8
    for lane in range(_LANES):
        part = int(words[1, lane]) >> select * 2 * bits
        by = 2.0 ** int(np.frexp(scales[lane])[1] - 1)
        for n in range(2):
            _same(small, part >> n * bits & (1 << bits) - 1, by, found[lane, n])


@pytest.mark.parametrize(("small", "select"), _ONES)
def test_one_byte_scaled_up(program: CodeObjectProgram, small: str, select: int) -> None:
    rng = np.random.default_rng(13)
    words = rng.integers(0, 1 << 32, (4, _LANES), np.uint32)
    words[3] = np.float32(0.25).view(np.uint32)
    found = _launch(program, f"f32_{small}_{select}", words)[:, 0].copy().view(np.float32)
    for lane in range(_LANES):
        _same(small, int(words[1, lane]) >> 8 * select & 0xFF, 0.25, float(found[lane]))


def _same(small: str, code: int, by: float, found: float) -> None:
    bits = 4 if small == "fp4" else 8
    magnitude, sign = code & (1 << bits - 1) - 1, -1 if code >> bits - 1 else 1
    value = _value(small, magnitude)
    if value is not None:
        assert found == sign * float(value) * by
    elif small == "bf8" and magnitude == 124:
        assert found == sign * np.inf
    else:
        assert np.isnan(found)


def test_what_is_no_number_or_too_large(program: CodeObjectProgram) -> None:
    """fp4 has neither infinity nor NaN: its largest number stands for both."""
    words = np.zeros((4, _LANES), np.uint32)
    words[1] = np.float32(np.inf).view(np.uint32)
    words[2] = np.float32(-1e9).view(np.uint32)
    words[3] = np.float32(1).view(np.uint32)
    words[1, 1] = np.float32(np.nan).view(np.uint32)
    found = _launch(program, "pk_fp4_f32_0", words)[:, 0]
    assert (found[0], found[1]) == (0xF7, 0xF7)
    found = _launch(program, "pk_fp8_f32_0", words)[:, 0]
    assert [found[0] & 0x7F7F, found[1] & 0x7F7F] == [0x7F7F, 0x7F7F]
    words[3] = np.float32(np.nan).view(np.uint32)
    words[1:3] = np.float32(1).view(np.uint32)
    assert _launch(program, "pk_fp8_f32_0", words)[0, 0] & 0x7F7F == 0x7F7F
