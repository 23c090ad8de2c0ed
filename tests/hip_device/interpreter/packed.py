"""Packed instructions (VOP3P): several numbers to a register."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.hip_device.interpreter.operands import (
    VECTOR,
    Form,
    Read,
    register_source,
    source_codes,
    store_half,
    store_register,
)
from tests.hip_device.interpreter.state import Step, Waves
from tests.hip_device.interpreter.values import (
    BF16,
    F16,
    F32,
    U32,
    Array,
    Kind,
    constant_array,
    decode_bf16,
    decode_f16,
    inline_constant,
)
from tests.hip_device.interpreter.vector import saturate
from tests.hip_device.interpreter.vector_table import TABLE, pack


def build(form: Form) -> Step | None:
    """The step of a packed VOP3P instruction; None if it is not known."""
    name = form.inst.name
    if form.inst.variant in ("DPP16", "DPP8"):
        raise form.unsupported("DPP of a packed instruction")
    if name in _BUILDERS:
        return _BUILDERS[name](form)
    operation = TABLE.get(name.replace("v_pk_", "v_"))
    if not name.startswith("v_pk_") or operation is None:
        return None
    if operation.result.bits == 16:
        return _packed16(form)
    return _packed32(form) if operation.result is F32 else None


class _Selection:
    """Per operand: which half feeds the low and the high result, and their negations."""

    def __init__(self, form: Form, index: int) -> None:
        inst = form.inst
        self.low = inst.get("opsel") >> index & 1
        self.high = inst.get("opsel_hi2") if index == 2 else inst.get("opsel_hi") >> index & 1
        self.negate_low = bool(inst.get("neg") >> index & 1)
        self.negate_high = bool(inst.get("neg_hi") >> index & 1)


def _packed_bits(form: Form, code: int, kind: Kind) -> Read:
    """The 32 bits of an operand of packed 16-bit numbers.

    An inline float is a 16-bit number in the low half; an inline integer fills the register.
    """
    if 240 <= code <= 248:
        value = constant_array(inline_constant(code, kind if kind.floating else F16), U32)
        return lambda w: value
    return register_source(form, code, U32)


def _packed16(form: Form) -> Step:
    name = form.inst.name
    operation = TABLE[name.replace("v_pk_", "v_")]
    halves = []
    for index, (code, kind) in enumerate(zip(source_codes(form), operation.operands, strict=False)):
        selection = _Selection(form, index)
        bits = _packed_bits(form, code, kind)
        halves.append(
            (
                _half(bits, kind, selection.low, selection.negate_low),
                _half(bits, kind, selection.high, selection.negate_high),
            )
        )
    lows, highs = [half[0] for half in halves], [half[1] for half in halves]
    register, compute, result = form.inst.get("vdst"), operation.compute, operation.result
    finish = _clamp(form, result)

    def step(w: Waves) -> None:
        low = finish(compute(*(read(w) for read in lows)))
        high = finish(compute(*(read(w) for read in highs)))
        store_register(w, register, pack(result.encode(low), result.encode(high)))

    if form.inst.get("clmp") and not result.floating:
        return _saturating16(form, name, lows, highs, result)
    return step


def _half(bits: Read, kind: Kind, high: int, negate: bool) -> Read:
    shift, sign, decode = np.uint32(16 * high), np.uint32(0x8000 if negate else 0), kind.decode
    if negate and not kind.floating:
        sign = np.uint32(0)
    return lambda w: decode((bits(w) >> shift & np.uint32(0xFFFF)) ^ sign)


def _clamp(form: Form, kind: Kind) -> Callable[[Array], Array]:
    if form.inst.get("clmp") and kind.floating:
        return lambda value: np.fmin(np.fmax(value, value.dtype.type(0)), value.dtype.type(1))
    return lambda value: value


_WIDE = {"add": np.add, "sub": np.subtract}


def _saturating16(form: Form, name: str, lows: list[Read], highs: list[Read], kind: Kind) -> Step:
    verb = name.split("_")[2]
    register = form.inst.get("vdst")
    if verb not in (*_WIDE, "mad"):
        raise form.unsupported("integer clamp")

    def wide(w: Waves, reads: list[Read]) -> Array:
        values = [read(w).astype(np.int64) for read in reads]
        total = values[0] * values[1] + values[2] if verb == "mad" else _WIDE[verb](*values)
        return saturate(kind, total)

    def step(w: Waves) -> None:
        low, high = kind.encode(wide(w, lows)), kind.encode(wide(w, highs))
        store_register(w, register, pack(low, high))

    return step


# Two 32-bit numbers to a pair of registers


def _dword(form: Form, code: int, high: int) -> Read:
    """One half of a 64-bit operand, as a 32-bit operand code."""
    if code >= VECTOR or code < 108:
        return register_source(form, code + high, U32)
    if high:
        raise form.unsupported("the high half of a constant")
    return register_source(form, code, F32) if code >= 240 else register_source(form, code, U32)


def _packed32(form: Form) -> Step:
    operation = TABLE[form.inst.name.replace("v_pk_", "v_")]
    lows, highs = [], []
    for index, code in enumerate(source_codes(form)[: len(operation.operands)]):
        selection = _Selection(form, index)
        lows.append(_negated32(_dword(form, code, selection.low), selection.negate_low))
        highs.append(_negated32(_dword(form, code, selection.high), selection.negate_high))
    register, compute = form.inst.get("vdst"), operation.compute
    finish = _clamp(form, F32)

    def step(w: Waves) -> None:
        low = finish(compute(*(read(w) for read in lows)))
        high = finish(compute(*(read(w) for read in highs)))
        store_register(w, register, low)
        store_register(w, register + 1, high)

    return step


def _negated32(read: Read, negate: bool) -> Read:
    if negate:
        return lambda w: -read(w).view(np.float32)
    return lambda w: read(w).view(np.float32)


def _packed_move(form: Form) -> Step:
    """v_pk_mov_b32: the low result from source 0, the high one from source 1."""
    codes = source_codes(form)
    reads = [_dword(form, codes[i], form.inst.get("opsel") >> i & 1) for i in range(2)]
    register = form.inst.get("vdst")

    def step(w: Waves) -> None:
        low, high = reads[0](w).view(np.uint32).copy(), reads[1](w).view(np.uint32)
        high = high.copy()
        store_register(w, register, low)
        store_register(w, register + 1, high)

    return step


# Mixed precision


def _mix_source(form: Form, index: int, code: int) -> Read:
    """A float32, or the half of a register as float16; neg_hi means the absolute value."""
    selection = _Selection(form, index)
    if selection.high:
        half: Kind = BF16 if "bf16" in form.inst.name else F16
        if 240 <= code <= 248:
            read = register_source(form, code, half)
        else:
            bits, decode = register_source(form, code, U32), half.decode
            shift = np.uint32(16 * selection.low)
            read = lambda w: decode(bits(w) >> shift & np.uint32(0xFFFF))  # noqa: E731
    else:
        read = register_source(form, code, F32)
    if selection.negate_high:
        absolute = read
        read = lambda w: np.abs(absolute(w))  # noqa: E731
    if selection.negate_low:
        positive = read
        return lambda w: -positive(w)
    return read


def _fma_mix(form: Form) -> Step:
    codes = source_codes(form)
    a, b, c = (_mix_source(form, i, code) for i, code in enumerate(codes))
    register, name = form.inst.get("vdst"), form.inst.name
    fma, finish = TABLE["v_fma_f32"].compute, _clamp(form, F32)
    if name == "v_fma_mix_f32":
        return lambda w: store_register(w, register, finish(fma(a(w), b(w), c(w))))
    half = int(name == "v_fma_mixhi_f16")

    def step(w: Waves) -> None:
        # One rounding: float64 holds a product of two float32 numbers exactly.
        total = finish(a(w).astype(np.float64) * b(w) + c(w))
        store_half(w, register, half, F16.encode(total))

    return step


# Dot products


def _fields(value: Array, bits: int, signed: bool) -> list[Array]:
    """The numbers of `bits` bits in a register, as int64."""
    parts = []
    for k in range(32 // bits):
        part = (value >> np.uint32(k * bits) & np.uint32((1 << bits) - 1)).astype(np.int64)
        parts.append(part - (part >> (bits - 1) << bits) if signed else part)
    return parts


def _dot_integer(form: Form) -> Step:
    """v_dot2, v_dot4, v_dot8 of integers, accumulated in 32 bits."""
    inst = form.inst
    _, count, _, suffix = inst.name.split("_")
    bits = {"dot2": 16, "dot4": 8, "dot8": 4}[count]
    if suffix.startswith("iu"):
        signs = [bool(inst.get("neg") >> i & 1) for i in range(2)]
    else:
        signs = [suffix[0] == "i"] * 2
    a, b, c = (register_source(form, code, U32) for code in source_codes(form))
    register, clamp = inst.get("vdst"), inst.get("clmp")
    signed_result = "_i32_" in inst.name
    low, high = (-(1 << 31), (1 << 31) - 1) if signed_result else (0, (1 << 32) - 1)

    def step(w: Waves) -> None:
        addend = c(w)
        total = (addend.view(np.int32) if signed_result else addend).astype(np.int64)
        parts = zip(_fields(a(w), bits, signs[0]), _fields(b(w), bits, signs[1]), strict=True)
        for x, y in parts:
            total = total + x * y
        if clamp:
            total = np.clip(total, low, high)
        store_register(w, register, total.astype(np.uint32))

    return step


def _dot2_float(form: Form) -> Step:
    decode = decode_bf16 if form.inst.name.endswith("bf16") else decode_f16
    codes = source_codes(form)
    kind = BF16 if decode is decode_bf16 else F16
    halves = []
    for index in range(2):
        bits, selection = _packed_bits(form, codes[index], kind), _Selection(form, index)
        halves.append(
            (
                _half(bits, kind, selection.low, selection.negate_low),
                _half(bits, kind, selection.high, selection.negate_high),
            )
        )
    addend = _negated32(register_source(form, codes[2], F32), bool(form.inst.get("neg") >> 2 & 1))
    register, finish = form.inst.get("vdst"), _clamp(form, F32)

    def step(w: Waves) -> None:
        total = addend(w).astype(np.float64)
        for half in range(2):
            total = total + halves[0][half](w).astype(np.float64) * halves[1][half](w)
        store_register(w, register, finish(total).astype(np.float32))

    return step


_BUILDERS: dict[str, Callable[[Form], Step]] = {
    "v_pk_mov_b32": _packed_move,
    "v_fma_mix_f32": _fma_mix,
    "v_fma_mixlo_f16": _fma_mix,
    "v_fma_mixhi_f16": _fma_mix,
    "v_dot2_f32_f16": _dot2_float,
    "v_dot2_f32_bf16": _dot2_float,
    **dict.fromkeys(
        (
            "v_dot2_i32_i16", "v_dot2_u32_u16", "v_dot4_i32_i8", "v_dot4_u32_u8", "v_dot8_i32_i4",
            "v_dot8_u32_u4", "v_dot4_i32_iu8", "v_dot8_i32_iu4",
        ),
        _dot_integer,
    ),
}  # fmt: skip
