"""Vector ALU instructions against models of single numbers, in Python's own arithmetic."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.hip_device.interpreter.assembled import (
    FLUSH_DENORMALS,
    execute,
    get_vector,
    half,
    opcode,
    waves,
)
from tests.hip_device.interpreter.decode import Instruction
from tests.hip_device.interpreter.errors import NotModelledError
from tests.hip_device.interpreter.program import build_step
from tests.hip_device.interpreter.state import Waves
from tests.hip_device.interpreter.targets import PROCESSORS

from tinygrad.renderer.amd.dsl import VCC, VCC_LO, s, v  # isort: skip

pytestmark = pytest.mark.device

U32 = 0xFFFFFFFF
_RANDOM = np.random.default_rng(20)
_INTEGERS = np.concatenate(
    [
        np.array([0, 1, 2, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFF00FF00], np.uint32),
        _RANDOM.integers(0, 1 << 32, 118, dtype=np.uint32),
    ]
)
_FLOATS = np.concatenate(
    [
        np.array([0.0, -0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan, 1e-40, -1e-45], np.float32),
        np.array([3.4e38, -3.4e38, 1.1754944e-38, 16777217.0, 2147483648.0], np.float32),
        _RANDOM.integers(0, 1 << 32, 49, dtype=np.uint32).view(np.float32),
        _RANDOM.standard_normal(64).astype(np.float32),
    ]
)


def _operands(pool: np.ndarray, count: int) -> list[np.ndarray]:
    """(2, 64) arrays; the pool in different orders, so that edges meet edges."""
    order = np.random.default_rng(7)
    return [order.permutation(pool).reshape(2, 64) for _ in range(count)]


def signed(value: int, bits: int = 32) -> int:
    value &= (1 << bits) - 1
    return value - (value >> (bits - 1) << bits)


def f32(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def _run(processor: str, name: str, operands: list[np.ndarray], lanes: int = 64) -> Waves:
    vector = {4 * (k + 1): operand for k, operand in enumerate(operands)}
    w = waves(processor, vector=vector, lanes=lanes)
    sources = [v[4 * (k + 1)] for k in range(len(operands))]
    return execute(processor, w, [opcode(processor, name)(v[0], *sources)])


# Integers

_INTEGER_MODELS: dict[str, Callable[..., int]] = {
    "v_and_b32_e32": lambda a, b: a & b,
    "v_or_b32_e32": lambda a, b: a | b,
    "v_xor_b32_e32": lambda a, b: a ^ b,
    "v_not_b32_e32": lambda a: ~a,
    "v_lshlrev_b32_e32": lambda a, b: b << (a & 31),
    "v_lshrrev_b32_e32": lambda a, b: b >> (a & 31),
    "v_ashrrev_i32_e32": lambda a, b: signed(b) >> (a & 31),
    "v_min_i32_e32": lambda a, b: min(signed(a), signed(b)),
    "v_max_u32_e32": max,
    "v_min3_u32": min,
    "v_max3_i32": lambda a, b, c: max(signed(a), signed(b), signed(c)),
    "v_med3_i32": lambda a, b, c: sorted(map(signed, (a, b, c)))[1],
    "v_med3_u32": lambda a, b, c: sorted((a, b, c))[1],
    "v_mul_lo_u32": lambda a, b: a * b,
    "v_mul_hi_u32": lambda a, b: a * b >> 32,
    "v_mul_hi_i32": lambda a, b: signed(a) * signed(b) >> 32,
    "v_mul_u32_u24_e32": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "v_mul_i32_i24_e32": lambda a, b: signed(a, 24) * signed(b, 24),
    "v_mad_u32_u24": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c,
    "v_mad_i32_i24": lambda a, b, c: signed(a, 24) * signed(b, 24) + c,
    "v_mul_hi_u32_u24_e32": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 32,
    "v_add3_u32": lambda a, b, c: a + b + c,
    "v_lshl_add_u32": lambda a, b, c: (a << (b & 31)) + c,
    "v_add_lshl_u32": lambda a, b, c: ((a + b) & U32) << (c & 31),
    "v_lshl_or_b32": lambda a, b, c: a << (b & 31) | c,
    "v_and_or_b32": lambda a, b, c: a & b | c,
    "v_or3_b32": lambda a, b, c: a | b | c,
    "v_xad_u32": lambda a, b, c: (a ^ b) + c,
    "v_bfe_u32": lambda a, b, c: a >> (b & 31) & ((1 << (c & 31)) - 1),
    "v_bfe_i32": lambda a, b, c: (
        signed(a >> (b & 31) & ((1 << (c & 31)) - 1), c & 31) if c & 31 else 0
    ),
    "v_bfi_b32": lambda a, b, c: a & b | ~a & c,
    "v_bfm_b32": lambda a, b: ((1 << (a & 31)) - 1) << (b & 31),
    "v_bfrev_b32_e32": lambda a: int(f"{a:032b}"[::-1], 2),
    "v_bcnt_u32_b32": lambda a, b: a.bit_count() + b,
    "v_alignbit_b32": lambda a, b, c: (a << 32 | b) >> (c & 31),
    "v_alignbyte_b32": lambda a, b, c: (a << 32 | b) >> 8 * (c & 3),
    "v_sad_u32": lambda a, b, c: abs(a - b) + c,
    "v_sad_u8": lambda a, b, c: (
        sum(abs((a >> k & 255) - (b >> k & 255)) for k in (0, 8, 16, 24)) + c
    ),
    "v_cvt_pk_u16_u32": lambda a, b: min(a, 0xFFFF) | min(b, 0xFFFF) << 16,
    "v_cvt_pk_i16_i32": lambda a, b: (
        (max(-0x8000, min(signed(a), 0x7FFF)) & 0xFFFF)
        | (max(-0x8000, min(signed(b), 0x7FFF)) & 0xFFFF) << 16
    ),
}
_RENAMED = {
    "v_add_u32_e32": "v_add_nc_u32_e32",
    "v_sub_u32_e32": "v_sub_nc_u32_e32",
    "v_ffbh_u32_e32": "v_clz_i32_u32_e32",
    "v_ffbl_b32_e32": "v_ctz_i32_b32_e32",
    "v_ffbh_i32_e32": "v_cls_i32_e32",
}
_CDNA_MODELS: dict[str, Callable[..., int]] = {
    "v_add_u32_e32": lambda a, b: a + b,
    "v_sub_u32_e32": lambda a, b: a - b,
    "v_ffbh_u32_e32": lambda a: 32 - a.bit_length() if a else -1,
    "v_ffbl_b32_e32": lambda a: (a & -a).bit_length() - 1 if a else -1,
    "v_ffbh_i32_e32": lambda a: (
        31 - (signed(a) ^ (signed(a) >> 31)).bit_length() + 1 if signed(a) not in (0, -1) else -1
    ),
}


@pytest.mark.parametrize("processor", ["gfx942", "gfx1100", "gfx1201"])
@pytest.mark.parametrize("name", [*_INTEGER_MODELS, *_CDNA_MODELS])
def test_integers(processor: str, name: str) -> None:
    model = _INTEGER_MODELS.get(name) or _CDNA_MODELS[name]
    if not PROCESSORS[processor].is_cdna:
        name = _RENAMED.get(name, name)
    count = {"v_min3_u32": 3}.get(name) or _arity(model)
    operands = _operands(_INTEGERS, count)
    w = _run(processor, name, operands)
    expected = [
        model(*(int(x) for x in each)) & U32 for each in zip(*map(np.ravel, operands), strict=True)
    ]
    np.testing.assert_array_equal(w.vgpr[0].ravel(), np.array(expected, np.uint32))


def _arity(model: Callable[..., Any]) -> int:
    return 2 if model is max else model.__code__.co_argcount


def _perm_octet(both: int, select: int) -> int:
    if select >= 13:
        return 0xFF
    if select == 12:
        return 0
    if select >= 8:
        return 0xFF * (both >> (16 * (select - 8) + 15) & 1)
    return both >> 8 * select & 0xFF


@pytest.mark.parametrize("processor", ["gfx90a", "gfx1201"])
def test_perm(processor: str) -> None:
    a, b, _ = _operands(_INTEGERS, 3)
    select = _RANDOM.integers(0, 16, (2, 64, 4), dtype=np.uint8).view(np.uint32)[:, :, 0]
    w = _run(processor, "v_perm_b32", [a, b, select])
    for x, y, chosen, found in zip(*map(np.ravel, (a, b, select, w.vgpr[0])), strict=True):
        both = int(x) << 32 | int(y)
        octets = [_perm_octet(both, int(chosen) >> 8 * k & 0xFF) for k in range(4)]
        assert int(found) == sum(octet << 8 * k for k, octet in enumerate(octets))


@pytest.mark.parametrize("processor", ["gfx942", "gfx1201"])
def test_wide_shifts_and_products(processor: str) -> None:
    lanes = 64 if processor == "gfx942" else 32
    wide = _RANDOM.integers(0, 1 << 64, (2, lanes), dtype=np.uint64)
    amount, factor = (x[:, :lanes] for x in _operands(_INTEGERS, 2))
    names = {"v_lshlrev_b64": np.left_shift, "v_lshrrev_b64": np.right_shift}
    for name, model in names.items():
        renamed = f"{name}_e32" if processor == "gfx1201" and name == "v_lshlrev_b64" else name
        w = waves(processor, vector={2: wide, 4: amount}, lanes=lanes)
        execute(processor, w, [opcode(processor, renamed)(v[0:1], v[4], v[2:3])])
        expected = model(wide, (amount & 63).astype(np.uint64))
        np.testing.assert_array_equal(get_vector(w, 0, np.uint64), expected)
    name = "v_mad_u64_u32" if processor == "gfx942" else "v_mad_co_u64_u32"
    w = waves(processor, vector={2: wide, 4: amount, 5: factor}, lanes=lanes)
    carry = s[10:11] if processor == "gfx942" else s[10]
    execute(processor, w, [opcode(processor, name)(v[0:1], carry, v[4], v[5], v[2:3])])
    exact = [
        int(x) * int(y) + int(z)
        for x, y, z in zip(*map(np.ravel, (amount, factor, wide)), strict=True)
    ]
    found = get_vector(w, 0, np.uint64).ravel()
    assert [int(x) for x in found] == [value & (1 << 64) - 1 for value in exact]
    assert w.mask(10).ravel().tolist() == [value >> 64 != 0 for value in exact]


@pytest.mark.parametrize("processor", ["gfx90a", "gfx1100"])
def test_carry_chains(processor: str) -> None:
    """A 64-bit addition and subtraction of halves is that of the whole."""
    a = _RANDOM.integers(0, 1 << 64, (2, 32), dtype=np.uint64)
    b = _RANDOM.integers(0, 1 << 64, (2, 32), dtype=np.uint64)
    a[:, :4], b[:, :4] = (1 << 64) - 1, [1, 0, (1 << 64) - 1, 1 << 32]
    cdna = PROCESSORS[processor].is_cdna
    if cdna:
        a, b = np.tile(a, 2), np.tile(b, 2)
    for verb, model in (("add", np.add), ("sub", np.subtract)):
        w = waves(processor, vector={2: a, 4: b})
        carry = f"v_{verb}c_co_u32_e32" if verb == "add" else "v_subb_co_u32_e32"
        first = opcode(processor, f"v_{verb}_co_u32{'_e32' if cdna else ''}")
        second = opcode(processor, carry if cdna else f"v_{verb}_co_ci_u32_e32")
        low = first(v[0], v[2], v[4]) if cdna else first(v[0], VCC_LO, v[2], v[4])
        execute(processor, w, [low, second(v[1], v[3], v[5])])
        np.testing.assert_array_equal(get_vector(w, 0, np.uint64), model(a, b))
        overflow = (a + b < a) if verb == "add" else a < b
        np.testing.assert_array_equal(w.mask(106), overflow)


# Floats


def _exact_fma(a: float, b: float, c: float) -> float:
    """a * b + c rounded once to float32."""
    if not all(map(math.isfinite, (a, b, c))):
        with np.errstate(all="ignore"):
            return float(np.float32(a) * np.float32(b) + np.float32(c))
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total == 0:
        return float(np.float32(a) * np.float32(b) + np.float32(c))
    return _round_f32(total)


def _round_f32(value: Fraction) -> float:
    magnitude = abs(value)
    exponent = max(math.frexp(float(magnitude))[1] if float(magnitude) else -200, -125)
    unit = Fraction(2) ** (exponent - 24)
    rounded = round(magnitude / unit) * unit
    sign = -1.0 if value < 0 else 1.0
    if rounded >= Fraction(2) ** 128:
        return sign * math.inf
    return sign * float(rounded)


@pytest.mark.parametrize("processor", ["gfx942", "gfx1100", "gfx1201"])
def test_fma_is_rounded_once(processor: str) -> None:
    a, b, c = _operands(_FLOATS, 3)
    # Near-cancelling and near-tie cases, which two roundings get wrong.
    a[0, :32] = 1 + 2.0**-23
    b[0, :32] = 1 - 2.0**-24 * np.arange(32)
    c[0, :32] = np.float32(2.0**-60) * (-1.0) ** np.arange(32)
    c[1, :32] = 1e-45
    w = _run(processor, "v_fma_f32", [a, b, c])
    expected = [
        _exact_fma(*map(float, each)) for each in zip(*map(np.ravel, (a, b, c)), strict=True)
    ]
    np.testing.assert_array_equal(w.f32[0].ravel(), np.array(expected, np.float32))


_FLOAT_MODELS: dict[str, Callable[..., Any]] = {
    "v_add_f32_e32": lambda a, b: a + b,
    "v_sub_f32_e32": lambda a, b: a - b,
    "v_subrev_f32_e32": lambda a, b: b - a,
    "v_mul_f32_e32": lambda a, b: a * b,
    "v_trunc_f32_e32": np.trunc,
    "v_floor_f32_e32": np.floor,
    "v_ceil_f32_e32": np.ceil,
    "v_rndne_f32_e32": np.rint,
}


@pytest.mark.parametrize("processor", ["gfx90a", "gfx950", "gfx1100", "gfx1201"])
@pytest.mark.parametrize("name", _FLOAT_MODELS)
def test_floats(processor: str, name: str) -> None:
    model = _FLOAT_MODELS[name]
    operands = _operands(_FLOATS, model.nin if isinstance(model, np.ufunc) else 2)
    w = _run(processor, name, operands)
    with np.errstate(all="ignore"):
        expected = model(*operands)
    np.testing.assert_array_equal(w.f32[0], expected)


def _min_num(a: float, b: float) -> float:
    if math.isnan(a):
        return b
    if math.isnan(b):
        return a
    if a == b == 0:
        return -0.0 if math.copysign(1, a) < 0 or math.copysign(1, b) < 0 else 0.0
    return min(a, b)


@pytest.mark.parametrize("processor", ["gfx942", "gfx1100", "gfx1201"])
def test_extremes_and_median(processor: str) -> None:
    a, b, c = _operands(_FLOATS, 3)
    a[0, :2], b[0, :2] = [0.0, -0.0], [-0.0, 0.0]
    infix = "_num" if processor == "gfx1201" else ""
    each = list(zip(*(map(float, x.ravel()) for x in (a, b, c)), strict=True))
    least = [_min_num(x, y) for x, y, _ in each]
    greatest = [-_min_num(-x, -y) for x, y, _ in each]
    middle = []
    for x, y, z in each:
        if any(map(math.isnan, (x, y, z))):
            middle.append(_min_num(_min_num(x, y), z))
        else:
            middle.append(sorted((x, y, z))[1])
    for name, expected in (
        (f"v_min{infix}_f32_e32", least),
        (f"v_max{infix}_f32_e32", greatest),
        (f"v_med3{infix}_f32", middle),
    ):
        count = 3 if "med3" in name else 2
        w = _run(processor, name, [a, b, c][:count])
        model = np.array(expected, np.float32)
        np.testing.assert_array_equal(w.f32[0].ravel(), model)
        if count == 2:
            np.testing.assert_array_equal(np.signbit(w.f32[0].ravel()), np.signbit(model))


_TRANSCENDENTAL: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "v_exp_f32_e32": np.exp2,
    "v_log_f32_e32": np.log2,
    "v_rcp_f32_e32": lambda x: 1 / x,
    "v_rsq_f32_e32": lambda x: 1 / np.sqrt(x),
    "v_sqrt_f32_e32": np.sqrt,
}


@pytest.mark.parametrize("processor", ["gfx942", "gfx1201"])
@pytest.mark.parametrize("name", _TRANSCENDENTAL)
def test_transcendentals_within_one_ulp(processor: str, name: str) -> None:
    """The documented error is 1 ulp; denormal operands and results count as zero."""
    (x,) = _operands(_FLOATS, 1)
    w = _run(processor, name, [x])
    with np.errstate(all="ignore"):
        flushed = np.where(np.abs(x) < 2.0**-126, np.copysign(0, x), x).astype(np.float64)
        exact = _TRANSCENDENTAL[name](flushed)
        expected = exact.astype(np.float32)
        expected[np.abs(exact) < 2.0**-126] = 0
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(w.f32[0][~finite], expected[~finite])
    error = np.abs(w.f32[0][finite].astype(np.float64) - expected[finite])
    assert (error <= np.spacing(np.abs(expected[finite]))).all()


@pytest.mark.parametrize("processor", ["gfx942", "gfx1100"])
def test_sine_and_cosine_of_turns(processor: str) -> None:
    x = np.linspace(-256, 256, 128, dtype=np.float32).reshape(2, 64)
    for name, model in (("v_sin_f32_e32", np.sin), ("v_cos_f32_e32", np.cos)):
        w = _run(processor, name, [x])
        expected = model(2 * np.pi * x.astype(np.float64))
        np.testing.assert_allclose(w.f32[0], expected, atol=2e-7)


@pytest.mark.parametrize("processor", ["gfx90a", "gfx1201"])
def test_denormals_follow_the_mode(processor: str) -> None:
    tiny = np.full((2, 64), 1e-40, np.float32)
    name = opcode(processor, "v_add_f32_e32")
    for mode, expected in ((None, 2 * tiny[0, 0]), (FLUSH_DENORMALS, np.float32(0))):
        extra = {} if mode is None else {"mode": mode}
        w = waves(processor, vector={1: tiny, 2: tiny}, lanes=64, **extra)
        execute(processor, w, [name(v[0], v[1], v[2])])
        assert (w.f32[0] == expected).all()


@pytest.mark.parametrize("processor", ["gfx942", "gfx1100"])
def test_float_modifiers(processor: str) -> None:
    a, b = _operands(_FLOATS, 2)
    add = opcode(processor, "v_add_f32_e64")
    w = waves(processor, vector={1: a, 2: b}, lanes=64)
    execute(
        processor,
        w,
        [
            add(v[3], -v[1], abs(v[2])),
            add(v[4], v[1], v[2], clmp=1),
            add(v[5], v[1], v[2], omod=1),
        ],
    )
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(w.f32[3], -a + np.abs(b))
        total = a + b
        clamped = np.where(np.isnan(total), 0, np.clip(total, 0, 1))
        np.testing.assert_array_equal(w.f32[4], clamped.astype(np.float32))
        np.testing.assert_array_equal(w.f32[5], total * 2)


def _halves(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).view(np.uint16).astype(np.uint32)


@pytest.mark.parametrize("processor", ["gfx90a", "gfx942", "gfx1100", "gfx1201"])
def test_half_precision_results_and_the_other_half(processor: str) -> None:
    """CDNA clears the upper half of the register, RDNA keeps it."""
    a = _RANDOM.standard_normal((2, 64)).astype(np.float16)
    b = _RANDOM.standard_normal((2, 64)).astype(np.float16)
    old = np.full((2, 64), 0xABCD0000, np.uint32)
    w = waves(processor, vector={0: old, 1: _halves(a), 2: _halves(b)}, lanes=64)
    execute(processor, w, [opcode(processor, "v_add_f16_e32")(v[0], v[1], v[2])])
    np.testing.assert_array_equal(half(w, 0), a + b)
    upper = 0 if PROCESSORS[processor].is_cdna else 0xABCD
    assert (half(w, 0, high=True, dtype=np.uint16) == upper).all()


@pytest.mark.parametrize("processor", ["gfx1100", "gfx1201"])
def test_upper_halves_on_rdna(processor: str) -> None:
    """v[n].h in short encodings is register n + 128; in VOP3 it is op_sel."""
    low, high = (_RANDOM.standard_normal((2, 64)).astype(np.float16) for _ in range(2))
    both = _halves(low) | _halves(high) << 16
    w = waves(processor, vector={0: both * 0, 1: both, 2: both}, lanes=64)
    execute(
        processor,
        w,
        [
            opcode(processor, "v_mul_f16_e32")(v[0].h, v[129], v[2]),
            opcode(processor, "v_mul_f16_e64")(v[0], v[1].h, v[2].h),
        ],
    )
    np.testing.assert_array_equal(half(w, 0, high=True), high * low)
    np.testing.assert_array_equal(half(w, 0), high * high)


# Conversions


@pytest.mark.parametrize("processor", ["gfx942", "gfx1100", "gfx1201"])
def test_float_to_integer_saturates(processor: str) -> None:
    (x,) = _operands(_FLOATS, 1)
    wide = np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=1e30, neginf=-1e30)
    for name, low, high in (
        ("v_cvt_i32_f32_e32", -(2**31), 2**31 - 1),
        ("v_cvt_u32_f32_e32", 0, 2**32 - 1),
    ):
        w = _run(processor, name, [x])
        expected = [max(low, min(int(value), high)) & U32 for value in wide.ravel()]
        assert w.vgpr[0].ravel().tolist() == expected


@pytest.mark.parametrize("processor", ["gfx942", "gfx1201"])
def test_conversions_between_floats(processor: str) -> None:
    (x,) = _operands(_FLOATS, 1)
    with np.errstate(all="ignore"):
        w = _run(processor, "v_cvt_f16_f32_e32", [x])
        np.testing.assert_array_equal(half(w, 0), x.astype(np.float16))
        halves = np.arange(0, 1 << 16, 512, dtype=np.uint32).reshape(2, 64)
        w = _run(processor, "v_cvt_f32_f16_e32", [halves])
        model = halves.astype(np.uint16).view(np.float16).astype(np.float32)
        np.testing.assert_array_equal(w.f32[0], model)
        w = waves(processor, vector={2: x}, lanes=64)
        execute(processor, w, [opcode(processor, "v_cvt_f64_f32_e32")(v[0:1], v[2])])
        np.testing.assert_array_equal(get_vector(w, 0, np.float64), x.astype(np.float64))


def test_round_toward_zero_pack() -> None:
    x = _RANDOM.standard_normal((2, 64)).astype(np.float32) * 1000
    w = _run("gfx942", "v_cvt_pkrtz_f16_f32", [x, -x])
    found = half(w, 0).astype(np.float64)
    nearest = x.astype(np.float16)
    toward_zero = np.where(
        np.abs(nearest.astype(np.float64)) > np.abs(x),
        np.nextafter(nearest, np.float16(0)),
        nearest,
    )
    np.testing.assert_array_equal(found, toward_zero)
    np.testing.assert_array_equal(half(w, 0, high=True), -toward_zero)


def test_bf16_pack_rounds_to_even() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F800000, 0x7F7FFFFF], np.uint32)
    x = np.resize(bits, (2, 64)).view(np.float32)
    w = _run("gfx950", "v_cvt_pk_bf16_f32", [x, x])
    expected = np.resize(np.array([0x3F80, 0x3F82, 0x3F81, 0x7F80, 0x7F80], np.uint16), (2, 64))
    np.testing.assert_array_equal(half(w, 0, dtype=np.uint16), expected)


@pytest.mark.parametrize(
    ("processor", "largest"), [("gfx942", 240.0), ("gfx950", 448.0), ("gfx1201", 448.0)]
)
def test_fp8_round_trip(processor: str, largest: float) -> None:
    """Every finite number survives; what lies between goes to the nearer one, ties to even."""
    codes = np.arange(256, dtype=np.uint32)
    w = waves(processor, vector={1: np.resize(codes, (2, 64))}, lanes=64)
    w.vgpr[1] = codes[:128].reshape(2, 64)
    from_fp8 = opcode(processor, "v_cvt_f32_fp8_e32")
    to_fp8 = opcode(processor, "v_cvt_pk_fp8_f32")
    execute(processor, w, [from_fp8(v[2], v[1]), to_fp8(v[3], v[2], v[2])])
    numbers = w.f32[2].ravel()
    assert float(np.nanmax(numbers)) == largest
    finite = np.isfinite(numbers)
    found = (w.vgpr[3] & 0xFF).ravel()
    np.testing.assert_array_equal(found[finite], codes[:128][finite])
    between = (numbers[:100] + numbers[1:101]) / 2
    w = waves(processor, vector={2: np.resize(between, (2, 64))}, lanes=64)
    execute(processor, w, [to_fp8(v[3], v[2], v[2])])
    even = [k + (k & 1) for k in range(100)]
    assert (w.vgpr[3] & 0xFF).ravel()[:100].tolist() == even


# Division


@pytest.mark.parametrize("processor", ["gfx90a", "gfx1100", "gfx1201"])
def test_the_compilers_division_is_correctly_rounded(processor: str) -> None:
    """LLVM's f32 division: scale, reciprocal, two Newton steps, fmas, fixup; on any bits."""
    n = _RANDOM.integers(0, 1 << 32, (40, 64), dtype=np.uint32).view(np.float32)
    d = _RANDOM.integers(0, 1 << 32, (40, 64), dtype=np.uint32).view(np.float32)
    n[:2], d[:2] = _FLOATS.reshape(2, 64), _FLOATS[::-1].reshape(2, 64)
    w = waves(processor, vector={1: n, 2: d}, lanes=64, count=40)
    scale, fma = opcode(processor, "v_div_scale_f32"), opcode(processor, "v_fma_f32")
    carry = VCC if PROCESSORS[processor].is_cdna else VCC_LO
    other = s[10:11] if PROCESSORS[processor].is_cdna else s[10]
    one = 1.0
    execute(
        processor,
        w,
        [
            scale(v[3], other, v[2], v[2], v[1]),
            scale(v[4], carry, v[1], v[2], v[1]),
            opcode(processor, "v_rcp_f32_e32")(v[5], v[3]),
            fma(v[6], -v[3], v[5], one),
            fma(v[5], v[6], v[5], v[5]),
            opcode(processor, "v_mul_f32_e32")(v[7], v[4], v[5]),
            fma(v[6], -v[3], v[7], v[4]),
            fma(v[7], v[6], v[5], v[7]),
            fma(v[6], -v[3], v[7], v[4]),
            opcode(processor, "v_div_fmas_f32")(v[7], v[6], v[5], v[7]),
            opcode(processor, "v_div_fixup_f32")(v[0], v[7], v[2], v[1]),
        ],
    )
    with np.errstate(all="ignore"):
        expected = n / d
    np.testing.assert_array_equal(w.f32[0], expected)


# Comparisons and selection


@pytest.mark.parametrize("processor", ["gfx942", "gfx1100", "gfx1201"])
@pytest.mark.parametrize("lanes", [32, 64])
def test_comparisons_write_masks(processor: str, lanes: int) -> None:
    if PROCESSORS[processor].is_cdna and lanes == 32:
        pytest.skip("CDNA has waves of 64 lanes only")
    a = _FLOATS.reshape(-1, lanes)[:2]
    b = _FLOATS[::-1].reshape(-1, lanes)[:2]
    active = _RANDOM.integers(0, 2, (2, lanes)).astype(bool)
    conditions = {
        "v_cmp_lt_f32_e32": a < b,
        "v_cmp_nlt_f32_e32": ~(a < b),
        "v_cmp_u_f32_e32": np.isnan(a) | np.isnan(b),
        "v_cmp_lg_f32_e32": (a < b) | (a > b),
        "v_cmp_ne_u32_e32": a.view(np.uint32) != b.view(np.uint32),
        "v_cmp_gt_i32_e32": a.view(np.int32) > b.view(np.int32),
    }
    for name, expected in conditions.items():
        w = waves(processor, vector={1: a, 2: b}, exec_mask=active, lanes=lanes)
        execute(processor, w, [opcode(processor, name)(v[1], v[2])])
        np.testing.assert_array_equal(w.mask(106), expected & active)
        np.testing.assert_array_equal(w.exec, active)


@pytest.mark.parametrize("processor", ["gfx942", "gfx1100"])
def test_compare_and_write_exec(processor: str) -> None:
    lanes = 64 if PROCESSORS[processor].is_cdna else 32
    a, b = (x[:, :lanes] for x in _operands(_INTEGERS, 2))
    active = _RANDOM.integers(0, 2, (2, lanes)).astype(bool)
    w = waves(processor, vector={1: a, 2: b}, exec_mask=active)
    execute(processor, w, [opcode(processor, "v_cmpx_lt_u32_e32")(v[1], v[2])])
    np.testing.assert_array_equal(w.exec, (a < b) & active)
    wrote_vcc = PROCESSORS[processor].is_cdna
    assert (np.array_equal(w.mask(106), w.exec)) == wrote_vcc


@pytest.mark.parametrize("processor", ["gfx942", "gfx1201"])
def test_classes(processor: str) -> None:
    x = np.resize(
        np.array([0x7F800001, 0x7FC00000, 0xFF800000, 0xBF800000, 0x80000001], np.uint32), (2, 64)
    )
    for bit in range(5):
        mask = np.full((2, 64), 1 << bit, np.uint32)
        w = waves(processor, vector={1: x, 2: mask}, lanes=64)
        execute(processor, w, [opcode(processor, "v_cmp_class_f32_e32")(v[1], v[2])])
        np.testing.assert_array_equal(w.mask(106), np.arange(128).reshape(2, 64) % 5 == bit)


@pytest.mark.parametrize("processor", ["gfx942", "gfx1201"])
def test_selection_and_inactive_lanes(processor: str) -> None:
    a, b, old = _operands(_INTEGERS, 3)
    active = _RANDOM.integers(0, 2, (2, 64)).astype(bool)
    chosen = _RANDOM.integers(0, 2, (2, 64)).astype(bool)
    w = waves(processor, vector={0: old, 1: a, 2: b}, exec_mask=active, lanes=64)
    w.set_mask(106, chosen)
    execute(processor, w, [opcode(processor, "v_cndmask_b32_e32")(v[0], v[1], v[2])])
    np.testing.assert_array_equal(w.vgpr[0], np.where(active, np.where(chosen, b, a), old))


def test_constants_and_literals() -> None:
    """Inline constants have the bits that the operand's type gives them."""
    w = waves("gfx942", vector={2: np.zeros((2, 64), np.uint32)})
    add32, add16 = opcode("gfx942", "v_add_f32_e32"), opcode("gfx942", "v_add_f16_e32")
    move = opcode("gfx942", "v_mov_b32_e32")
    execute(
        "gfx942",
        w,
        [
            add32(v[0], 0.5, v[2]),
            add16(v[1], 0.5, v[2]),
            move(v[3], -7),
            move(v[4], 0x12345678),
            move(v[5], 1.0),
        ],
    )
    assert w.f32[0][0, 0] == 0.5
    assert half(w, 1)[0, 0] == 0.5
    assert [int(w.vgpr[k][1, 5]) for k in (3, 4, 5)] == [0xFFFFFFF9, 0x12345678, 0x3F800000]


@pytest.mark.parametrize("processor", ["gfx1100", "gfx1201"])
def test_dual_issue_reads_before_it_writes(processor: str) -> None:
    a, b = (x[:, :32] for x in _operands(_FLOATS, 2))
    w = waves(processor, vector={0: a, 1: b})
    dual = opcode(processor, "VOPD")
    enum = dict(dual._fields)["opx"]._enum
    swap = dual(
        opx=enum.V_DUAL_MOV_B32, opy=enum.V_DUAL_MOV_B32,
        vdstx=v[0], vdsty=v[1], srcx0=v[1], srcy0=v[0], vsrcx1=v[0], vsrcy1=v[0],
    )  # fmt: skip
    execute(processor, w, [swap])
    np.testing.assert_array_equal(w.f32[0], b)
    np.testing.assert_array_equal(w.f32[1], a)


def test_what_is_not_implemented_is_named() -> None:
    move = opcode("gfx942", "v_mov_b32_e32")(v[0], v[1])
    inst = Instruction(0x40, 4, "v_cubeid_f32", "VOP3", "", {}, type(move), move._raw)
    with pytest.raises(NotModelledError, match=r"v_cubeid_f32 \(VOP3\) is not implemented"):
        build_step(inst, PROCESSORS["gfx942"])
    clamped = opcode("gfx942", "v_mul_lo_u32")(v[0], v[1], v[2], clmp=1)
    with pytest.raises(NotModelledError, match="integer clamp"):
        execute("gfx942", waves("gfx942"), [clamped])
