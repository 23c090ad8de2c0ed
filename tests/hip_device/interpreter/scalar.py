"""Scalar ALU instructions: arrays of one value a wave."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.hip_device.interpreter import arithmetic as ar
from tests.hip_device.interpreter.operands import Form, Read, scalar_destination, scalar_source
from tests.hip_device.interpreter.state import EXEC, Mode, Step, Waves
from tests.hip_device.interpreter.values import (
    F16,
    F32,
    I32,
    I64,
    U32,
    U64,
    Array,
    Kind,
)
from tests.hip_device.interpreter.vector import CONDITIONS
from tests.hip_device.interpreter.vector_table import TABLE as VECTOR_TABLE

Compute = Callable[..., Array]
# SCC after the instruction: kept, whether the result is not zero, or computed.
_KEEP, _NONZERO = None, "nonzero"

_Entry = tuple[Kind, tuple[Kind, ...], Compute, "str | None"]
_TABLE: dict[str, _Entry] = {}


def _add(
    names: str, result: Kind, operands: tuple[Kind, ...], compute: Compute, scc: str | None = _KEEP
) -> None:
    for name in names.split():
        _TABLE[name] = (result, operands, compute, scc)


def _shift(direction: Compute, bits: int) -> Compute:
    return lambda a, b: direction(a, (b & np.uint32(bits - 1)).astype(a.dtype))


for _bits, _u, _i in ((32, U32, I32), (64, U64, I64)):
    _two = (_u, _u)
    _add(f"s_mov_b{_bits}", _u, (_u,), lambda a: a)
    _add(f"s_not_b{_bits}", _u, (_u,), np.invert, _NONZERO)
    _add(f"s_and_b{_bits}", _u, _two, np.bitwise_and, _NONZERO)
    _add(f"s_or_b{_bits}", _u, _two, np.bitwise_or, _NONZERO)
    _add(f"s_xor_b{_bits}", _u, _two, np.bitwise_xor, _NONZERO)
    _add(f"s_andn2_b{_bits} s_and_not1_b{_bits}", _u, _two, lambda a, b: a & ~b, _NONZERO)
    _add(f"s_orn2_b{_bits} s_or_not1_b{_bits}", _u, _two, lambda a, b: a | ~b, _NONZERO)
    _add(f"s_nand_b{_bits}", _u, _two, lambda a, b: ~(a & b), _NONZERO)
    _add(f"s_nor_b{_bits}", _u, _two, lambda a, b: ~(a | b), _NONZERO)
    _add(f"s_xnor_b{_bits}", _u, _two, lambda a, b: ~(a ^ b), _NONZERO)
    _add(f"s_lshl_b{_bits}", _u, (_u, U32), _shift(np.left_shift, _bits), _NONZERO)
    _add(f"s_lshr_b{_bits}", _u, (_u, U32), _shift(np.right_shift, _bits), _NONZERO)
    _add(f"s_ashr_i{_bits}", _i, (_i, U32), _shift(np.right_shift, _bits), _NONZERO)
    _add(f"s_brev_b{_bits}", _u, (_u,), ar.reverse_bits)
    _add(f"s_bcnt1_i32_b{_bits}", U32, (_u,), ar.popcount, _NONZERO)
    _add(f"s_bcnt0_i32_b{_bits}", U32, (_u,), lambda a: ar.popcount(~a), _NONZERO)
    _add(f"s_ff1_i32_b{_bits} s_ctz_i32_b{_bits}", U32, (_u,), ar.trailing_zeros)
    _add(f"s_ff0_i32_b{_bits}", U32, (_u,), lambda a: ar.trailing_zeros(~a))
    _add(f"s_flbit_i32_b{_bits} s_clz_i32_u{_bits}", U32, (_u,), ar.leading_zeros)
_add("s_flbit_i32 s_cls_i32", U32, (I32,), ar.sign_bits)
_add("s_flbit_i32_i64 s_cls_i32_i64", U32, (I64,), ar.sign_bits)
_add("s_sext_i32_i8", I32, (I32,), lambda a: (a << np.int32(24)) >> np.int32(24))
_add("s_sext_i32_i16", I32, (I32,), lambda a: (a << np.int32(16)) >> np.int32(16))
_add("s_abs_i32", I32, (I32,), np.abs, _NONZERO)
_add("s_absdiff_i32", I32, (I32, I32), lambda a, b: np.abs(a - b), _NONZERO)
_add("s_mul_i32", U32, (U32, U32), np.multiply)
_add("s_mul_hi_u32", U32, (U32, U32), ar.high_product)
_add("s_mul_hi_i32", I32, (I32, I32), ar.high_product)
_add("s_mul_u64", U64, (U64, U64), np.multiply)
_add("s_add_nc_u64 s_add_u64", U64, (U64, U64), np.add)
_add("s_sub_nc_u64 s_sub_u64", U64, (U64, U64), np.subtract)
_add(
    "s_pack_ll_b32_b16", U32, (U32, U32), lambda a, b: (a & np.uint32(0xFFFF)) | b << np.uint32(16)
)
_add(
    "s_pack_lh_b32_b16",
    U32,
    (U32, U32),
    lambda a, b: (a & np.uint32(0xFFFF)) | (b & np.uint32(0xFFFF0000)),
)
_add(
    "s_pack_hh_b32_b16",
    U32,
    (U32, U32),
    lambda a, b: a >> np.uint32(16) | (b & np.uint32(0xFFFF0000)),
)
_add("s_pack_hl_b32_b16", U32, (U32, U32), lambda a, b: a >> np.uint32(16) | b << np.uint32(16))
_add("s_bfm_b32", U32, (U32, U32), VECTOR_TABLE["v_bfm_b32"].compute)
_add(
    "s_bfm_b64", U64, (U32, U32),
    lambda a, b: ((np.uint64(1) << (a & np.uint32(63)).astype(np.uint64)) - np.uint64(1))
    << (b & np.uint32(63)).astype(np.uint64),
)  # fmt: skip


def _bfe(bits: int, signed: bool) -> Compute:
    """The field at bits [offset +: width]; both are packed in the second operand."""

    def extract(a: Array, control: Array) -> Array:
        offset = (control & np.uint32(bits - 1)).astype(np.uint64)
        width = np.minimum(control >> np.uint32(16) & np.uint32(0x7F), bits).astype(np.uint64)
        wide = a.astype(np.int64).view(np.uint64) if signed else a.astype(np.uint64)
        shifted = (
            (wide.view(np.int64) >> offset.view(np.int64)).view(np.uint64)
            if signed
            else wide >> offset
        )
        unused = np.uint64(64) - width
        left = np.where(width == 0, np.uint64(0), shifted << (unused & np.uint64(63)))
        if signed:
            return (left.view(np.int64) >> (unused & np.uint64(63)).view(np.int64)).astype(a.dtype)
        return np.where(width == 0, np.uint64(0), left >> (unused & np.uint64(63))).astype(a.dtype)

    return extract


_add("s_bfe_u32", U32, (U32, U32), _bfe(32, False), _NONZERO)
_add("s_bfe_i32", I32, (I32, U32), _bfe(32, True), _NONZERO)
_add("s_bfe_u64", U64, (U64, U32), _bfe(64, False), _NONZERO)
_add("s_bfe_i64", I64, (I64, U32), _bfe(64, True), _NONZERO)


def _carry(value: Array) -> Array:
    return (value < 0) | (value > 0xFFFFFFFF)


# Scalar floats (RDNA4) compute as their vector counterparts do.
_FLOATS = """
    add_f32 sub_f32 mul_f32 min_num_f32 max_num_f32 minimum_f32 maximum_f32 fmac_f32 fmamk_f32
    fmaak_f32 add_f16 sub_f16 mul_f16 min_num_f16 max_num_f16 minimum_f16 maximum_f16 fmac_f16
    ceil_f32 floor_f32 trunc_f32 rndne_f32 ceil_f16 floor_f16 trunc_f16 rndne_f16
    cvt_f32_i32 cvt_f32_u32 cvt_i32_f32 cvt_u32_f32 cvt_f16_f32 cvt_f32_f16 cvt_pk_rtz_f16_f32
"""
for _name in _FLOATS.split():
    _operation = VECTOR_TABLE["v_" + _name]
    _add("s_" + _name, _operation.result, _operation.operands, _operation.compute)
_add(
    "s_cvt_hi_f32_f16",
    F32,
    (U32,),
    lambda a: VECTOR_TABLE["v_cvt_f32_f16"].operands[0].decode(a >> np.uint32(16)),
)


def build(form: Form) -> Step | None:
    """The step of a SOP1, SOP2, SOPC or SOPK instruction; None if it is not known."""
    name = form.inst.name
    if name in _TABLE:
        return _from_table(form, *_TABLE[name])
    if name in _BUILDERS:
        return _BUILDERS[name](form)
    if "saveexec" in name or "wrexec" in name:
        return _saveexec(form)
    if name.startswith(("s_cmp_", "s_bitcmp", "s_cmpk_")):
        return _compare(form)
    if name in _CARRIES:
        return _add_carry(form, *_CARRIES[name])
    for extreme, function in (("min", np.less), ("max", np.greater)):
        if name in (f"s_{extreme}_i32", f"s_{extreme}_u32"):
            return _extreme(form, function, I32 if name.endswith("i32") else U32)
    for shift in (1, 2, 3, 4):
        if name == f"s_lshl{shift}_add_u32":
            return _shift_add(form, shift)
    return None


def _operands(form: Form, kinds: tuple[Kind, ...]) -> list[Read]:
    inst = form.inst
    codes = [inst.get("ssrc0"), inst.get("ssrc1")]
    if "fmac" in inst.name:
        codes.append(inst.get("sdst"))
    elif "fmamk" in inst.name:
        codes = [codes[0], 255, codes[1]]
    elif "fmaak" in inst.name:
        codes.append(255)
    return [scalar_source(form, code, kind) for code, kind in zip(codes, kinds, strict=False)]


def _from_table(
    form: Form, result: Kind, operands: tuple[Kind, ...], compute: Compute, scc: str | None
) -> Step:
    reads = _operands(form, operands)
    write = scalar_destination(form, form.inst.get("sdst"), result)
    if scc is _KEEP:
        if len(reads) == 1:
            (only,) = reads
            return lambda w: write(w, compute(only(w)))
        return lambda w: write(w, compute(*(read(w) for read in reads)))

    def step(w: Waves) -> None:
        value = compute(*(read(w) for read in reads))
        write(w, value)
        w.scc = np.broadcast_to(value != 0, (w.count,))

    return step


def _signed_overflow(a: Array, b: Array, total: Array, subtract: bool) -> Array:
    if subtract:
        return ((a ^ b) & (a ^ total)) < 0
    return (~(a ^ b) & (a ^ total)) < 0


# subtract, signed, with carry in
_CARRIES: dict[str, tuple[bool, bool, bool]] = {
    "s_add_u32": (False, False, False), "s_add_co_u32": (False, False, False),
    "s_sub_u32": (True, False, False), "s_sub_co_u32": (True, False, False),
    "s_add_i32": (False, True, False), "s_add_co_i32": (False, True, False),
    "s_sub_i32": (True, True, False), "s_sub_co_i32": (True, True, False),
    "s_addc_u32": (False, False, True), "s_add_co_ci_u32": (False, False, True),
    "s_subb_u32": (True, False, True), "s_sub_co_ci_u32": (True, False, True),
}  # fmt: skip


def _add_carry(form: Form, subtract: bool, signed: bool, carry_in: bool) -> Step:
    a, b = _operands(form, (U32, U32))
    write = scalar_destination(form, form.inst.get("sdst"), U32)

    def step(w: Waves) -> None:
        x, y = a(w), b(w)
        wide = x.astype(np.int64) - y if subtract else x.astype(np.int64) + y
        if carry_in:
            wide = wide - w.scc if subtract else wide + w.scc
        total = wide.astype(np.uint32)
        if signed:
            scc = _signed_overflow(
                x.view(np.int32), y.view(np.int32), total.view(np.int32), subtract
            )
        else:
            scc = _carry(wide)
        write(w, total)
        w.scc = np.broadcast_to(scc, (w.count,))

    return step


def _extreme(form: Form, first_wins: Compute, kind: Kind) -> Step:
    a, b = _operands(form, (kind, kind))
    write = scalar_destination(form, form.inst.get("sdst"), kind)

    def step(w: Waves) -> None:
        x, y = a(w), b(w)
        first = first_wins(x, y)
        write(w, np.where(first, x, y))
        w.scc = np.broadcast_to(first, (w.count,))

    return step


def _shift_add(form: Form, shift: int) -> Step:
    a, b = _operands(form, (U32, U32))
    write = scalar_destination(form, form.inst.get("sdst"), U32)

    def step(w: Waves) -> None:
        total = (a(w).astype(np.uint64) << np.uint64(shift)) + b(w)
        write(w, total.astype(np.uint32))
        w.scc = np.broadcast_to(total > 0xFFFFFFFF, (w.count,))

    return step


def _compare(form: Form) -> Step:
    name, inst = form.inst.name, form.inst
    if name.startswith("s_bitcmp"):
        kind = U64 if name.endswith("b64") else U32
        wanted = np.uint64(1) if name[8] == "1" else np.uint64(0)
        a, b = _operands(form, (kind, U32))

        def test(w: Waves) -> None:
            bit = a(w).astype(np.uint64) >> (b(w) & np.uint32(kind.bits - 1)).astype(np.uint64)
            w.scc = np.broadcast_to((bit & np.uint64(1)) == wanted, (w.count,))

        return test
    _, prefix, condition, suffix = name.split("_")
    kind = {"i32": I32, "u32": U32, "u64": U64, "f32": F32, "f16": F16}[suffix]
    compare = np.not_equal if condition == "lg" and not kind.floating else CONDITIONS[condition]
    if prefix == "cmpk":
        a = scalar_source(form, inst.get("sdst"), kind)
        value = inst.get("simm16")
        if kind is I32:
            constant = np.full(1, value - (value >> 15 << 16), np.int32)
        else:
            constant = np.full(1, value, np.uint32)
        return lambda w: _set_scc(w, compare(a(w), constant))
    a, b = _operands(form, (kind, kind))
    return lambda w: _set_scc(w, compare(a(w), b(w)))


def _set_scc(w: Waves, value: Array) -> None:
    w.scc = np.broadcast_to(value, (w.count,))


_EXEC_LOGIC: dict[str, Compute] = {
    "and": lambda s, e: s & e,
    "or": lambda s, e: s | e,
    "xor": lambda s, e: s ^ e,
    "nand": lambda s, e: ~(s & e),
    "nor": lambda s, e: ~(s | e),
    "xnor": lambda s, e: ~(s ^ e),
    "andn2": lambda s, e: s & ~e,
    "and_not1": lambda s, e: s & ~e,
    "orn2": lambda s, e: s | ~e,
    "or_not1": lambda s, e: s | ~e,
    "andn1": lambda s, e: ~s & e,
    "and_not0": lambda s, e: ~s & e,
    "orn1": lambda s, e: ~s | e,
    "or_not0": lambda s, e: ~s | e,
}


def _saveexec(form: Form) -> Step:
    name = form.inst.name
    logic, verb = name.removeprefix("s_").rsplit("_", 2)[:2]
    kind = U64 if name.endswith("b64") else U32
    combine = _EXEC_LOGIC[logic]
    source = scalar_source(form, form.inst.get("ssrc0"), kind)
    exec_mask = scalar_source(form, EXEC, kind)
    write_exec = scalar_destination(form, EXEC, kind)
    write = scalar_destination(form, form.inst.get("sdst"), kind)
    saves = verb == "saveexec"

    def step(w: Waves) -> None:
        old = exec_mask(w).copy()
        new = combine(source(w), old)
        write(w, old if saves else new)
        write_exec(w, new)
        w.scc = np.broadcast_to(new != 0, (w.count,))

    return step


def _cselect(form: Form) -> Step:
    kind = U64 if form.inst.name.endswith("b64") else U32
    a, b = _operands(form, (kind, kind))
    write = scalar_destination(form, form.inst.get("sdst"), kind)
    return lambda w: write(w, np.where(w.scc, a(w), b(w)))


def _cmov(form: Form) -> Step:
    kind = U64 if form.inst.name.endswith("b64") else U32
    (a,) = _operands(form, (kind,))
    old = scalar_source(form, form.inst.get("sdst"), kind)
    write = scalar_destination(form, form.inst.get("sdst"), kind)
    return lambda w: write(w, np.where(w.scc, a(w), old(w)))


def _signed_immediate(form: Form) -> int:
    value = form.inst.get("simm16")
    return value - (value >> 15 << 16)


def _movk(form: Form) -> Step:
    value = np.full(1, _signed_immediate(form), np.int32)
    write = scalar_destination(form, form.inst.get("sdst"), I32)
    if form.inst.name == "s_movk_i32":
        return lambda w: write(w, value)
    old = scalar_source(form, form.inst.get("sdst"), I32)
    return lambda w: write(w, np.where(w.scc, value, old(w)))


def _addk(form: Form) -> Step:
    value = np.full(1, _signed_immediate(form), np.int32)
    old = scalar_source(form, form.inst.get("sdst"), I32)
    write = scalar_destination(form, form.inst.get("sdst"), I32)
    multiply = "mulk" in form.inst.name

    def step(w: Waves) -> None:
        before = old(w).copy()
        total = before * value if multiply else before + value
        write(w, total)
        if not multiply:
            w.scc = _signed_overflow(before, value, total, False)

    return step


def _bitset(form: Form) -> Step:
    name = form.inst.name
    kind = U64 if name.endswith("b64") else U32
    (position,) = _operands(form, (U32,))
    old = scalar_source(form, form.inst.get("sdst"), kind)
    write = scalar_destination(form, form.inst.get("sdst"), kind)
    one, clear = kind.view(1), name[8] == "0"

    def step(w: Waves) -> None:
        bit = one << (position(w) & np.uint32(kind.bits - 1)).astype(kind.view)
        write(w, old(w) & ~bit if clear else old(w) | bit)

    return step


def _quads(form: Form) -> Step:
    """s_wqm spreads, s_quadmask gathers, the non-empty groups of four bits."""
    name = form.inst.name
    bits = 64 if name.endswith("b64") else 32
    kind = U64 if bits == 64 else U32
    (a,) = _operands(form, (kind,))
    write = scalar_destination(form, form.inst.get("sdst"), kind)
    gather = "quadmask" in name

    def step(w: Waves) -> None:
        value = a(w)
        result = np.zeros(value.shape, kind.view)
        for k in range(bits // 4):
            group = value >> kind.view(4 * k) & kind.view(15)
            present = (group != 0).astype(kind.view)
            result |= (
                present << kind.view(k) if gather else present * kind.view(15) << kind.view(4 * k)
            )
        write(w, result)
        w.scc = np.broadcast_to(result != 0, (w.count,))

    return step


def _bitreplicate(form: Form) -> Step:
    (a,) = _operands(form, (U32,))
    write = scalar_destination(form, form.inst.get("sdst"), U64)

    def step(w: Waves) -> None:
        value = a(w).astype(np.uint64)
        result = np.zeros(value.shape, np.uint64)
        for k in range(32):
            result |= (value >> np.uint64(k) & np.uint64(1)) * np.uint64(3) << np.uint64(2 * k)
        write(w, result)

    return step


def _getpc(form: Form) -> Step:
    following = form.inst.address + form.inst.size
    write = scalar_destination(form, form.inst.get("sdst"), U64)
    return lambda w: write(w, np.full(w.count, w.around.code_base + following, np.uint64))


# Hardware registers

_HW_MODE = 1


def _hardware_register(form: Form) -> tuple[int, int, int]:
    """Number, offset and width in bits."""
    value = form.inst.get("simm16")
    return value & 63, value >> 6 & 31, (value >> 11) + 1


def _getreg(form: Form) -> Step:
    number, offset, width = _hardware_register(form)
    if number != _HW_MODE:
        raise form.unsupported(f"hardware register {number}")
    write = scalar_destination(form, form.inst.get("sdst"), U32)
    mask = (1 << width) - 1
    return lambda w: write(w, np.full(w.count, w.mode.bits >> offset & mask, np.uint32))


def _setreg(form: Form) -> Step:
    number, offset, width = _hardware_register(form)
    if number != _HW_MODE:
        raise form.unsupported(f"hardware register {number}")
    mask = (1 << width) - 1
    if form.inst.name == "s_setreg_imm32_b32":
        literal = form.inst.get("literal")
        return lambda w: set_mode(form, w, literal << offset, mask << offset)
    source = scalar_source(form, form.inst.get("sdst"), U32)

    def step(w: Waves) -> None:
        values = np.unique(source(w) & np.uint32(mask))
        if values.size != 1:
            raise form.unsupported("a MODE register that differs between waves")
        set_mode(form, w, int(values[0]) << offset, mask << offset)

    return step


_ROUNDING = 0xF


def set_mode(form: Form, w: Waves, bits: int, mask: int) -> None:
    """Replace the bits of MODE under `mask`."""
    new = (w.mode.bits & ~mask) | (bits & mask)
    if new & _ROUNDING:
        raise form.unsupported("a rounding mode other than to nearest")
    w.mode = Mode.from_bits(new)


_BUILDERS: dict[str, Callable[[Form], Step]] = {
    "s_cselect_b32": _cselect,
    "s_cselect_b64": _cselect,
    "s_cmov_b32": _cmov,
    "s_cmov_b64": _cmov,
    "s_movk_i32": _movk,
    "s_cmovk_i32": _movk,
    "s_addk_i32": _addk,
    "s_addk_co_i32": _addk,
    "s_mulk_i32": _addk,
    "s_getpc_b64": _getpc,
    "s_getreg_b32": _getreg,
    "s_setreg_b32": _setreg,
    "s_setreg_imm32_b32": _setreg,
    "s_bitreplicate_b64_b32": _bitreplicate,
    **dict.fromkeys(("s_wqm_b32", "s_wqm_b64", "s_quadmask_b32", "s_quadmask_b64"), _quads),
    **dict.fromkeys(("s_bitset0_b32", "s_bitset0_b64", "s_bitset1_b32", "s_bitset1_b64"), _bitset),
}
