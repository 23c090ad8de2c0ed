"""Vector instructions that compute each lane's result from its operands alone.

One entry a mnemonic: the kind of the result, the kinds of the operands, the computation. Integer
arithmetic wraps, as numpy's does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.hip_device.interpreter import arithmetic as ar
from tests.hip_device.interpreter import small_floats
from tests.hip_device.interpreter import transcendental as tr
from tests.hip_device.interpreter.division import div_fixup
from tests.hip_device.interpreter.values import (
    BF16,
    F16,
    F32,
    F64,
    I16,
    I32,
    I64,
    U16,
    U32,
    U64,
    Array,
    Kind,
    decode_bf16,
    decode_f16,
    encode_bf16,
    encode_f16,
)

Compute = Callable[..., Array]


@dataclass(frozen=True)
class Operation:
    """`accumulates`: the last operand is the destination register itself."""

    result: Kind
    operands: tuple[Kind, ...]
    compute: Compute
    accumulates: bool = False


TABLE: dict[str, Operation] = {}


def _add(names: str, result: Kind, operands: tuple[Kind, ...], compute: Compute) -> None:
    for name in names.split():
        TABLE[name] = Operation(result, operands, compute)


def _accumulating(name: str, result: Kind, operands: tuple[Kind, ...], compute: Compute) -> None:
    TABLE[name] = Operation(result, operands, compute, accumulates=True)


def _u32(value: Array) -> Array:
    return value.astype(np.uint32)


def _shift_amount(value: Array, bits: int) -> Array:
    return value & value.dtype.type(bits - 1)


# Moves and bits

_add("v_mov_b32", U32, (U32,), lambda a: a)
_add("v_mov_b16", U16, (U16,), lambda a: a)
_add("v_mov_b64", U64, (U64,), lambda a: a)
_add("v_not_b32", U32, (U32,), np.invert)
_add("v_not_b16", U16, (U16,), np.invert)
for _bits, _kind in ((32, U32), (16, U16)):
    _add(f"v_and_b{_bits}", _kind, (_kind, _kind), np.bitwise_and)
    _add(f"v_or_b{_bits}", _kind, (_kind, _kind), np.bitwise_or)
    _add(f"v_xor_b{_bits}", _kind, (_kind, _kind), np.bitwise_xor)
_add("v_xnor_b32", U32, (U32, U32), lambda a, b: ~(a ^ b))
_add("v_and_or_b32", U32, (U32,) * 3, lambda a, b, c: (a & b) | c)
_add("v_or3_b32", U32, (U32,) * 3, lambda a, b, c: a | b | c)
_add("v_xor3_b32", U32, (U32,) * 3, lambda a, b, c: a ^ b ^ c)
_add("v_bfi_b32", U32, (U32,) * 3, lambda a, b, c: (a & b) | (~a & c))
_add("v_bfrev_b32", U32, (U32,), ar.reverse_bits)
_add("v_ffbh_u32 v_clz_i32_u32", U32, (U32,), ar.leading_zeros)
_add("v_ffbl_b32 v_ctz_i32_b32", U32, (U32,), ar.trailing_zeros)
_add("v_ffbh_i32 v_cls_i32", U32, (I32,), ar.sign_bits)
_add("v_bcnt_u32_b32", U32, (U32, U32), lambda a, b: ar.popcount(a) + b)


def _bfe_unsigned(a: Array, offset: Array, width: Array) -> Array:
    mask = (np.uint32(1) << _shift_amount(width, 32)) - np.uint32(1)
    return (a >> _shift_amount(offset, 32)) & mask


def _bfe_signed(a: Array, offset: Array, width: Array) -> Array:
    field = _bfe_unsigned(a.view(np.uint32), offset, width).view(np.int32)
    unused = (32 - (width & np.uint32(31)).astype(np.int32)) & 31
    return np.where((width & np.uint32(31)) == 0, np.int32(0), (field << unused) >> unused)


_add("v_bfe_u32", U32, (U32,) * 3, _bfe_unsigned)
_add("v_bfe_i32", I32, (I32, U32, U32), _bfe_signed)
_add(
    "v_bfm_b32", U32, (U32, U32),
    lambda a, b: ((np.uint32(1) << (a & np.uint32(31))) - np.uint32(1)) << (b & np.uint32(31)),
)  # fmt: skip


def _align(a: Array, b: Array, amount: Array) -> Array:
    both = a.astype(np.uint64) << np.uint64(32) | b
    return _u32(both >> amount.astype(np.uint64))


_add("v_alignbit_b32", U32, (U32,) * 3, lambda a, b, c: _align(a, b, c & np.uint32(31)))
_add(
    "v_alignbyte_b32",
    U32,
    (U32,) * 3,
    lambda a, b, c: _align(a, b, (c & np.uint32(3)) << np.uint32(3)),
)


def _perm(a: Array, b: Array, select: Array) -> Array:
    a, b, select = np.broadcast_arrays(a, b, select)
    both = a.astype(np.uint64) << np.uint64(32) | b
    result = np.zeros(both.shape, np.uint32)
    for k in range(4):
        chosen = (select >> np.uint32(8 * k) & np.uint32(0xFF)).astype(np.uint64)
        octet = both >> ((chosen & np.uint64(7)) << np.uint64(3)) & np.uint64(0xFF)
        word = (chosen - np.uint64(8)) & np.uint64(3)
        sign = both >> (word * np.uint64(16) + np.uint64(15)) & np.uint64(1)
        value = np.where(chosen < 8, octet, sign * np.uint64(0xFF))
        value = np.where(chosen == 12, 0, np.where(chosen >= 13, 0xFF, value))
        result |= value.astype(np.uint32) << np.uint32(8 * k)
    return result


_add("v_perm_b32", U32, (U32,) * 3, _perm)

# Shifts


def _shift_left(value: Array, amount: Array) -> Array:
    return value << (amount & amount.dtype.type(value.itemsize * 8 - 1)).astype(value.dtype)


def _shift_right(value: Array, amount: Array) -> Array:
    return value >> (amount & amount.dtype.type(value.itemsize * 8 - 1)).astype(value.dtype)


_add("v_lshlrev_b32", U32, (U32, U32), lambda a, b: _shift_left(b, a))
_add("v_lshrrev_b32", U32, (U32, U32), lambda a, b: _shift_right(b, a))
_add("v_ashrrev_i32", I32, (U32, I32), lambda a, b: _shift_right(b, a))
_add("v_lshlrev_b64", U64, (U32, U64), lambda a, b: _shift_left(b, a))
_add("v_lshrrev_b64", U64, (U32, U64), lambda a, b: _shift_right(b, a))
_add("v_ashrrev_i64", I64, (U32, I64), lambda a, b: _shift_right(b, a))
_add("v_lshlrev_b16", U16, (U16, U16), lambda a, b: b << (a & np.uint32(15)))
_add("v_lshrrev_b16", U16, (U16, U16), lambda a, b: b >> (a & np.uint32(15)))
_add("v_ashrrev_i16", I16, (U16, I16), lambda a, b: b >> (a & np.uint32(15)).astype(np.int32))
_add("v_lshl_add_u32", U32, (U32,) * 3, lambda a, b, c: _shift_left(a, b) + c)
_add(
    "v_lshl_add_u64",
    U64,
    (U64, U32, U64),
    lambda a, b, c: (a << (b & np.uint32(7)).astype(np.uint64)) + c,
)
_add("v_add_lshl_u32", U32, (U32,) * 3, lambda a, b, c: _shift_left(a + b, c))
_add("v_lshl_or_b32", U32, (U32,) * 3, lambda a, b, c: _shift_left(a, b) | c)
_add("v_xad_u32", U32, (U32,) * 3, lambda a, b, c: (a ^ b) + c)

# Integer arithmetic

_add("v_add_u32 v_add_nc_u32", U32, (U32, U32), np.add)
_add("v_sub_u32 v_sub_nc_u32", U32, (U32, U32), np.subtract)
_add("v_subrev_u32 v_subrev_nc_u32", U32, (U32, U32), lambda a, b: b - a)
_add("v_add_i32 v_add_nc_i32", I32, (I32, I32), np.add)
_add("v_sub_i32 v_sub_nc_i32", I32, (I32, I32), np.subtract)
_add("v_add3_u32", U32, (U32,) * 3, lambda a, b, c: a + b + c)
_add("v_add_u16 v_add_nc_u16", U16, (U16, U16), np.add)
_add("v_sub_u16 v_sub_nc_u16", U16, (U16, U16), np.subtract)
_add("v_subrev_u16", U16, (U16, U16), lambda a, b: b - a)
_add("v_add_i16 v_add_nc_i16", I16, (I16, I16), np.add)
_add("v_sub_i16 v_sub_nc_i16", I16, (I16, I16), np.subtract)
_add("v_mul_lo_u32", U32, (U32, U32), np.multiply)
_add("v_mul_lo_u16", U16, (U16, U16), np.multiply)
_add("v_mul_hi_u32", U32, (U32, U32), ar.high_product)
_add("v_mul_hi_i32", I32, (I32, I32), ar.high_product)
_add("v_mad_u16", U16, (U16,) * 3, lambda a, b, c: a * b + c)
_add("v_mad_i16", I16, (I16,) * 3, lambda a, b, c: a * b + c)
_add("v_mad_u32_u16", U32, (U16, U16, U32), lambda a, b, c: a * b + c)
_add("v_mad_i32_i16", I32, (I16, I16, I32), lambda a, b, c: a * b + c)


def _low24(value: Array) -> Array:
    return value & np.uint32(0xFFFFFF)


def _signed24(value: Array) -> Array:
    return (value << np.int32(8)) >> np.int32(8)


_add("v_mul_u32_u24", U32, (U32, U32), lambda a, b: _low24(a) * _low24(b))
_add("v_mul_i32_i24", I32, (I32, I32), lambda a, b: _signed24(a) * _signed24(b))
_add("v_mul_hi_u32_u24", U32, (U32, U32), lambda a, b: ar.high_product(_low24(a), _low24(b)))
_add("v_mul_hi_i32_i24", I32, (I32, I32), lambda a, b: ar.high_product(_signed24(a), _signed24(b)))
_add("v_mad_u32_u24", U32, (U32,) * 3, lambda a, b, c: _low24(a) * _low24(b) + c)
_add("v_mad_i32_i24", I32, (I32,) * 3, lambda a, b, c: _signed24(a) * _signed24(b) + c)

for _suffix, _kind in (("i32", I32), ("u32", U32), ("i16", I16), ("u16", U16)):
    _three = (_kind,) * 3
    _add(f"v_min_{_suffix}", _kind, (_kind, _kind), np.minimum)
    _add(f"v_max_{_suffix}", _kind, (_kind, _kind), np.maximum)
    _add(f"v_min3_{_suffix}", _kind, _three, lambda a, b, c: np.minimum(np.minimum(a, b), c))
    _add(f"v_max3_{_suffix}", _kind, _three, lambda a, b, c: np.maximum(np.maximum(a, b), c))
    _add(f"v_med3_{_suffix}", _kind, _three, ar.median_integer)
    _add(f"v_maxmin_{_suffix}", _kind, _three, lambda a, b, c: np.minimum(np.maximum(a, b), c))
    _add(f"v_minmax_{_suffix}", _kind, _three, lambda a, b, c: np.maximum(np.minimum(a, b), c))


def _octets(value: Array) -> list[Array]:
    return [value >> np.uint32(8 * k) & np.uint32(0xFF) for k in range(4)]


def _distance(a: Array, b: Array) -> Array:
    return np.maximum(a, b) - np.minimum(a, b)


def _sad_u8(a: Array, b: Array, c: Array) -> Array:
    for x, y in zip(_octets(a), _octets(b), strict=True):
        c = c + _distance(x, y)
    return c


def _msad_u8(a: Array, b: Array, c: Array) -> Array:
    for x, y in zip(_octets(a), _octets(b), strict=True):
        c = c + np.where(y == 0, np.uint32(0), _distance(x, y))
    return c


def _sad_u16(a: Array, b: Array, c: Array) -> Array:
    low, high = np.uint32(0xFFFF), np.uint32(16)
    return c + _distance(a & low, b & low) + _distance(a >> high, b >> high)


def _lerp_u8(a: Array, b: Array, c: Array) -> Array:
    result = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), np.uint32)
    parts = zip(_octets(a), _octets(b), _octets(c), strict=True)
    for k, (x, y, z) in enumerate(parts):
        result |= ((x + y + (z & np.uint32(1))) >> np.uint32(1)) << np.uint32(8 * k)
    return result


_add("v_sad_u8", U32, (U32,) * 3, _sad_u8)
_add("v_sad_hi_u8", U32, (U32,) * 3, lambda a, b, c: (_sad_u8(a, b, a * 0) << np.uint32(16)) + c)
_add("v_sad_u16", U32, (U32,) * 3, _sad_u16)
_add("v_sad_u32", U32, (U32,) * 3, lambda a, b, c: c + _distance(a, b))
_add("v_msad_u8", U32, (U32,) * 3, _msad_u8)
_add("v_lerp_u8", U32, (U32,) * 3, _lerp_u8)
_add(
    "v_prng_b32", U32, (U32,),
    lambda a: (a << np.uint32(1)) ^ np.where(a >> np.uint32(31) != 0, np.uint32(197), np.uint32(0)),
)  # fmt: skip

# Floating point


def _legacy_multiply(a: Array, b: Array) -> Array:
    """Zero times anything is zero."""
    return np.where((a == 0) | (b == 0), np.float32(0), a * b)


for _suffix, _kind, _fma in (
    ("f16", F16, ar.fma16),
    ("f32", F32, ar.fma32),
    ("f64", F64, ar.fma64),
):
    _two, _three = (_kind,) * 2, (_kind,) * 3
    _add(f"v_add_{_suffix}", _kind, _two, np.add)
    _add(f"v_sub_{_suffix}", _kind, _two, np.subtract)
    _add(f"v_subrev_{_suffix}", _kind, _two, lambda a, b: b - a)
    _add(f"v_mul_{_suffix}", _kind, _two, np.multiply)
    _add(f"v_min_{_suffix} v_min_num_{_suffix}", _kind, _two, ar.minimum)
    _add(f"v_max_{_suffix} v_max_num_{_suffix}", _kind, _two, ar.maximum)
    _add(f"v_minimum_{_suffix}", _kind, _two, ar.minimum_nan)
    _add(f"v_maximum_{_suffix}", _kind, _two, ar.maximum_nan)
    _add(f"v_fma_{_suffix}", _kind, _three, _fma)
    _accumulating(f"v_fmac_{_suffix}", _kind, _three, _fma)
    # fmamk: a * K + b, fmaak: a * b + K; the builder passes the literal where it belongs.
    _add(f"v_fmamk_{_suffix} v_fmaak_{_suffix}", _kind, _three, _fma)
    _add(
        f"v_min3_{_suffix} v_min3_num_{_suffix}", _kind, _three,
        lambda a, b, c: ar.minimum(ar.minimum(a, b), c),
    )  # fmt: skip
    _add(
        f"v_max3_{_suffix} v_max3_num_{_suffix}", _kind, _three,
        lambda a, b, c: ar.maximum(ar.maximum(a, b), c),
    )  # fmt: skip
    _add(f"v_med3_{_suffix} v_med3_num_{_suffix}", _kind, _three, ar.median)
    _add(
        f"v_minimum3_{_suffix}", _kind, _three,
        lambda a, b, c: ar.minimum_nan(ar.minimum_nan(a, b), c),
    )  # fmt: skip
    _add(
        f"v_maximum3_{_suffix}", _kind, _three,
        lambda a, b, c: ar.maximum_nan(ar.maximum_nan(a, b), c),
    )  # fmt: skip
    _add(
        f"v_maxmin_{_suffix} v_maxmin_num_{_suffix}", _kind, _three,
        lambda a, b, c: ar.minimum(ar.maximum(a, b), c),
    )  # fmt: skip
    _add(
        f"v_minmax_{_suffix} v_minmax_num_{_suffix}", _kind, _three,
        lambda a, b, c: ar.maximum(ar.minimum(a, b), c),
    )  # fmt: skip
    _add(f"v_trunc_{_suffix}", _kind, (_kind,), np.trunc)
    _add(f"v_ceil_{_suffix}", _kind, (_kind,), np.ceil)
    _add(f"v_floor_{_suffix}", _kind, (_kind,), np.floor)
    _add(f"v_rndne_{_suffix}", _kind, (_kind,), np.rint)
    _add(f"v_fract_{_suffix}", _kind, (_kind,), small_floats.fraction)
    _add(f"v_frexp_mant_{_suffix}", _kind, (_kind,), ar.frexp_mantissa)
    _add(f"v_div_fixup_{_suffix}", _kind, _three, div_fixup)
_add("v_mul_legacy_f32 v_mul_dx9_zero_f32", F32, (F32, F32), _legacy_multiply)
_add("v_frexp_exp_i32_f32", I32, (F32,), ar.frexp_exponent)
_add("v_frexp_exp_i32_f64", I32, (F64,), ar.frexp_exponent)
_add("v_frexp_exp_i16_f16", I16, (F16,), ar.frexp_exponent)
_add("v_ldexp_f32", F32, (F32, I32), ar.ldexp)
_add("v_ldexp_f64", F64, (F64, I32), ar.ldexp)
_add("v_ldexp_f16", F16, (F16, I16), lambda a, b: np.ldexp(a.astype(np.float64), b))

for _name, _function in (
    ("exp", np.exp2),
    ("log", np.log2),
    ("rcp", tr.reciprocal),
    ("rsq", tr.inverse_root),
    ("sqrt", np.sqrt),
    ("sin", tr.sine),
    ("cos", tr.cosine),
):
    _add(f"v_{_name}_f32 v_s_{_name}_f32", F32, (F32,), tr.single(_function))
    _add(f"v_{_name}_f16 v_s_{_name}_f16", F16, (F16,), tr.half(_function))
    if _name in ("rcp", "rsq", "sqrt"):
        _add(f"v_{_name}_f64", F64, (F64,), _function)
_add("v_rcp_iflag_f32", F32, (F32,), tr.single(tr.reciprocal))
_add("v_exp_legacy_f32", F32, (F32,), tr.single(np.exp2))
_add("v_log_legacy_f32", F32, (F32,), tr.single(np.log2))

# Conversions


def _numbers(dtype: Any) -> Compute:
    return lambda a: a.astype(dtype)


def _saturate(dtype: Any) -> Compute:
    return lambda a: ar.to_integer(a, dtype)


_add("v_cvt_f32_i32", F32, (I32,), _numbers(np.float32))
_add("v_cvt_f32_u32", F32, (U32,), _numbers(np.float32))
_add("v_cvt_f64_i32", F64, (I32,), _numbers(np.float64))
_add("v_cvt_f64_u32", F64, (U32,), _numbers(np.float64))
_add("v_cvt_f32_f64", F32, (F64,), _numbers(np.float32))
_add("v_cvt_f64_f32", F64, (F32,), _numbers(np.float64))
_add("v_cvt_f16_f32", F16, (F32,), lambda a: a)
_add("v_cvt_f32_f16", F32, (F16,), lambda a: a)
_add("v_cvt_f32_bf16", F32, (BF16,), lambda a: a)
_add("v_cvt_f16_i16", F16, (I16,), _numbers(np.float32))
_add("v_cvt_f16_u16", F16, (U16,), _numbers(np.float32))
for _source, _kind in (("f32", F32), ("f64", F64)):
    _add(f"v_cvt_i32_{_source}", I32, (_kind,), _saturate(np.int32))
    _add(f"v_cvt_u32_{_source}", U32, (_kind,), _saturate(np.uint32))
_add("v_cvt_i16_f16", I16, (F16,), _saturate(np.int16))
_add("v_cvt_u16_f16", U16, (F16,), _saturate(np.uint16))
_add("v_cvt_i32_i16", I32, (I16,), lambda a: a)
_add("v_cvt_u32_u16", U32, (U16,), lambda a: a)
_add(
    "v_cvt_rpi_i32_f32 v_cvt_nearest_i32_f32",
    I32,
    (F32,),
    lambda a: ar.to_integer(np.floor(a.astype(np.float64) + 0.5), np.int32),
)
_add(
    "v_cvt_flr_i32_f32 v_cvt_floor_i32_f32",
    I32,
    (F32,),
    lambda a: ar.to_integer(np.floor(a), np.int32),
)


def _octet_to_float(shift: int) -> Compute:
    return lambda a: (a >> np.uint32(shift) & np.uint32(0xFF)).astype(np.float32)


for _k in range(4):
    _add(f"v_cvt_f32_ubyte{_k}", F32, (U32,), _octet_to_float(8 * _k))
_add(
    "v_cvt_off_f32_i4",
    F32,
    (U32,),
    lambda a: (((a & np.uint32(15)) ^ np.uint32(8)).astype(np.float32) - 8) / 16,
)


def pack(low: Array, high: Array) -> Array:
    """Two 16-bit patterns as one register."""
    return (low & np.uint32(0xFFFF)) | high << np.uint32(16)


_add("v_pack_b32_f16", U32, (U16, U16), pack)
_add(
    "v_cvt_pkrtz_f16_f32 v_cvt_pk_rtz_f16_f32",
    U32,
    (F32, F32),
    lambda a, b: pack(ar.round_toward_zero_f16(a), ar.round_toward_zero_f16(b)),
)
_add("v_cvt_pk_f16_f32", U32, (F32, F32), lambda a, b: pack(encode_f16(a), encode_f16(b)))
_add("v_cvt_pk_bf16_f32", U32, (F32, F32), lambda a, b: pack(encode_bf16(a), encode_bf16(b)))
_add(
    "v_cvt_pk_u16_u32",
    U32,
    (U32, U32),
    lambda a, b: pack(np.minimum(a, 0xFFFF), np.minimum(b, 0xFFFF)),
)
_add(
    "v_cvt_pk_i16_i32",
    U32,
    (I32, I32),
    lambda a, b: pack(_u32(np.clip(a, -0x8000, 0x7FFF)), _u32(np.clip(b, -0x8000, 0x7FFF))),
)
_add(
    "v_cvt_pk_i16_f32",
    U32,
    (F32, F32),
    lambda a, b: pack(_u32(ar.to_integer(a, np.int16)), _u32(ar.to_integer(b, np.int16))),
)
_add(
    "v_cvt_pk_u16_f32",
    U32,
    (F32, F32),
    lambda a, b: pack(_u32(ar.to_integer(a, np.uint16)), _u32(ar.to_integer(b, np.uint16))),
)


def _normalised(scale: int, low: int) -> Compute:
    def convert(a: Array) -> Array:
        clipped = np.clip(np.nan_to_num(a, nan=0.0), np.float32(low), np.float32(1))
        return _u32(np.rint(clipped.astype(np.float64) * scale).astype(np.int32))

    return convert


for _names, _kind, _convert in (
    ("v_cvt_pknorm_i16_f32 v_cvt_pk_norm_i16_f32", F32, _normalised(32767, -1)),
    ("v_cvt_pknorm_u16_f32 v_cvt_pk_norm_u16_f32", F32, _normalised(65535, 0)),
    ("v_cvt_pknorm_i16_f16 v_cvt_pk_norm_i16_f16", F16, _normalised(32767, -1)),
    ("v_cvt_pknorm_u16_f16 v_cvt_pk_norm_u16_f16", F16, _normalised(65535, 0)),
):
    _add(_names, U32, (_kind, _kind), lambda a, b, to=_convert: pack(to(a), to(b)))
_add("v_cvt_norm_i16_f16", U16, (F16,), _normalised(32767, -1))
_add("v_cvt_norm_u16_f16", U16, (F16,), _normalised(65535, 0))


def _cvt_pk_u8(a: Array, position: Array, c: Array) -> Array:
    shift = (position & np.uint32(3)) << np.uint32(3)
    octet = ar.to_integer(np.rint(a), np.uint8).astype(np.uint32)
    return (c & ~(np.uint32(0xFF) << shift)) | octet << shift


_add("v_cvt_pk_u8_f32", U32, (F32, U32, U32), _cvt_pk_u8)
_add(
    "v_sat_pk_u8_i16", U16, (U32,),
    lambda a: _u32(np.clip(a.astype(np.uint16).view(np.int16), 0, 255))
    | _u32(np.clip((a >> np.uint32(16)).astype(np.uint16).view(np.int16), 0, 255)) << np.uint32(8),
)  # fmt: skip

# Dot products


def _halves(decode: Callable[[Array], Array]) -> Callable[[Array], tuple[Array, Array]]:
    return lambda a: (decode(a & np.uint32(0xFFFF)), decode(a >> np.uint32(16)))


def _dot2(decode: Callable[[Array], Array]) -> Compute:
    split = _halves(decode)

    def compute(a: Array, b: Array, c: Array) -> Array:
        (al, ah), (bl, bh) = split(a), split(b)
        wide = al.astype(np.float64) * bl + ah.astype(np.float64) * bh + c
        return wide.astype(np.float32)

    return compute


_accumulating("v_dot2c_f32_f16", F32, (U32, U32, F32), _dot2(decode_f16))
_accumulating("v_dot2acc_f32_f16", F32, (U32, U32, F32), _dot2(decode_f16))
_accumulating("v_dot2c_f32_bf16", F32, (U32, U32, F32), _dot2(decode_bf16))
