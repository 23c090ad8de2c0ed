"""Operand access: closures that read and write registers, built once for each instruction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.hip_device.interpreter import lanes
from tests.hip_device.interpreter.decode import LITERAL, Instruction
from tests.hip_device.interpreter.errors import NotModelledError
from tests.hip_device.interpreter.state import EXEC, VCC, Waves
from tests.hip_device.interpreter.targets import Processor
from tests.hip_device.interpreter.values import (
    F16,
    F32,
    F64,
    U32,
    U64,
    Array,
    Kind,
    constant_array,
    inline_constant,
    literal_bits,
)

Read = Callable[[Waves], Array]
Write = Callable[[Waves, Array], None]

VECTOR = 256  # operand code of v0
_VCCZ, _EXECZ, _SCC = 251, 252, 253
_SHARED_BASE, _SHARED_LIMIT, _PRIVATE_BASE, _PRIVATE_LIMIT = 235, 236, 237, 238
# Where flat addresses reach LDS and scratch: outside anything that a host allocates.
SHARED_APERTURE, PRIVATE_APERTURE = 0x5ACE0001 << 32, 0x5ACE0002 << 32
_APERTURES = {
    _SHARED_BASE: SHARED_APERTURE,
    _SHARED_LIMIT: SHARED_APERTURE | 0xFFFFFFFF,
    _PRIVATE_BASE: PRIVATE_APERTURE,
    _PRIVATE_LIMIT: PRIVATE_APERTURE | 0xFFFFFFFF,
}


@dataclass(frozen=True)
class Form:
    """An instruction together with the processor it is for."""

    inst: Instruction
    processor: Processor

    def unsupported(self, what: str) -> NotModelledError:
        return NotModelledError(f"{what} is not modelled for {self.inst.name}")

    def constant(self, code: int, kind: Kind) -> Array | None:
        """The number that an operand code stands for, (1, 1); None for a register."""
        if 128 <= code <= 208 or 240 <= code <= 248:
            return constant_array(inline_constant(code, kind), kind)
        if code == LITERAL:
            if "literal" not in self.inst.fields:
                raise self.unsupported("a literal in this encoding")
            return constant_array(literal_bits(self.inst.get("literal"), kind), kind)
        if code == self.processor.null:
            return constant_array(0, kind)
        if code in _APERTURES:
            value = _APERTURES[code]
            return constant_array(value if kind.bits == 64 else value >> 32, kind)
        return None

    def check_scalar(self, code: int, bits: int = 32) -> int:
        """A scalar register's number, provided that it exists."""
        if code + bits // 32 > EXEC + 2 or code < 0:
            raise self.unsupported(f"scalar operand {code}")
        return code


# Scalar operands: arrays (W,)


def scalar_source(form: Form, code: int, kind: Kind) -> Read:
    """Read a scalar operand as (W,) numbers of `kind` (or (1,), where it is a constant)."""
    constant = form.constant(code, kind)
    if constant is not None:
        value = constant[0]
        return lambda w: value
    if code in (_VCCZ, _EXECZ, _SCC):
        return _flag_source(code, kind)
    register = form.check_scalar(code, kind.bits)
    if kind.bits == 64:
        if register % 2:
            raise form.unsupported("an odd register pair")
        pair = register >> 1
        if kind is U64:
            return lambda w: w.sgpr64[:, pair]
        dtype = kind.view
        return lambda w: w.sgpr64[:, pair].view(dtype)
    if kind is U32:
        return lambda w: w.sgpr[:, register]
    if kind.view is not None:
        dtype = kind.view
        return lambda w: w.sgpr.view(dtype)[:, register]
    decode = kind.decode
    return lambda w: decode(w.sgpr[:, register])


def _flag_source(code: int, kind: Kind) -> Read:
    decode = kind.decode
    dtype = np.uint64 if kind.bits == 64 else np.uint32

    def read(w: Waves) -> Array:
        flag: Array = w.scc
        if code != _SCC:
            flag = w.mask_is_empty(EXEC if code == _EXECZ else VCC)
        return decode(flag.astype(dtype))

    return read


def scalar_destination(form: Form, code: int, kind: Kind) -> Write:
    """Write (W,) numbers of `kind` to a scalar operand."""
    if code == form.processor.null:
        return lambda w, value: None
    register = form.check_scalar(code, kind.bits)
    encode = kind.encode
    touches_exec = register >= EXEC
    if kind.bits == 64:
        if register % 2:
            raise form.unsupported("an odd register pair")
        pair = register >> 1

        def write64(w: Waves, value: Array) -> None:
            w.sgpr64[:, pair] = encode(value)
            if touches_exec:
                w.exec_changed()

        return write64

    def write(w: Waves, value: Array) -> None:
        w.sgpr[:, register] = encode(value)
        if touches_exec:
            w.exec_changed()

    return write


# Vector operands: arrays (W, L)


def vector_register(form: Form, register: int, count: int = 1) -> int:
    if register + count > 256:
        raise form.unsupported(f"v{register} and {count - 1} more")
    return register


def pair(w: Waves, register: int) -> Array:
    """Two registers as (W, L) uint64."""
    result = np.empty((w.count, w.lanes), np.uint64)
    halves = result.view(np.uint32)
    halves[:, 0::2] = w.vgpr[register]
    halves[:, 1::2] = w.vgpr[register + 1]
    return result


def register_source(form: Form, code: int, kind: Kind, *, high: bool = False) -> Read:
    """Read an operand code as numbers of `kind`: (W, L), or (W, 1) and (1, 1) for uniform ones.

    `high` takes a 16-bit kind from the upper half of a register.
    """
    if code < VECTOR:
        return _uniform_source(form, code, kind, high)
    register = vector_register(form, code - VECTOR, kind.bits // 32 or 1)
    if kind.bits == 64:
        if kind is U64:
            return lambda w: pair(w, register)
        dtype = kind.view
        return lambda w: pair(w, register).view(dtype)
    if kind is U32:
        return lambda w: w.vgpr[register]
    if kind is F32:
        return lambda w: w.f32[register]
    if kind.view is not None:
        return lambda w: w.i32[register]
    half = int(high)
    if kind is F16:
        return lambda w: w.u16[register][:, half::2].view(np.float16).astype(np.float32)
    decode = kind.decode
    return lambda w: decode(w.u16[register][:, half::2])


def _uniform_source(form: Form, code: int, kind: Kind, high: bool) -> Read:
    constant = form.constant(code, kind)
    if constant is not None:
        return lambda w: constant
    if high:
        raw, decode = scalar_source(form, code, U32), kind.decode
        return lambda w: decode(raw(w) >> 16)[:, None]
    read = scalar_source(form, code, kind)
    return lambda w: read(w)[:, None]


def raw_source(form: Form, code: int) -> Read:
    """The 32 bits of an operand, without any modifier."""
    return register_source(form, code, U32)


def source_codes(form: Form) -> list[int]:
    """The operand codes of an instruction's vector sources, in order."""
    inst = form.inst
    codes = []
    extended = inst.variant in ("DPP16", "DPP8", "SDWA")
    if extended:
        scalar = inst.variant == "SDWA" and inst.get("s0")
        codes.append(inst.get("vsrc0") + (0 if scalar else VECTOR))
    elif "src0" in inst.fields:
        codes.append(inst.get("src0"))
    if "vsrc1" in inst.fields:
        scalar = inst.variant == "SDWA" and inst.get("s1")
        codes.append(inst.get("vsrc1") + (0 if scalar else VECTOR))
    elif "src1" in inst.fields:
        codes.append(inst.get("src1"))
    if "src2" in inst.fields:
        codes.append(inst.get("src2"))
    return codes


def vector_source(form: Form, index: int, kind: Kind, code: int | None = None) -> Read:
    """Read source `index` with every modifier that the encoding gives it."""
    inst = form.inst
    if code is None:
        code = source_codes(form)[index]
    negate, absolute = _sign_modifiers(inst, index)
    if inst.variant == "SDWA" and index < 2:
        read = _sdwa_source(form, code, kind, index)
    elif inst.variant in ("DPP16", "DPP8") and index == 0:
        read = _dpp_source(form, code, kind)
    else:
        high = False
        if kind.bits == 16:
            code, high = _half(form, code, index)
        read = register_source(form, code, kind, high=high)
    read = flushed(read, kind)
    if negate or absolute:
        read = _with_signs(read, kind, negate, absolute)
    return read


def flushed(read: Read, kind: Kind) -> Read:
    """Source denormals are zero when the MODE register says so."""
    if not kind.floating or kind.name == "bf16":
        return read
    tiny = _smallest_normal(kind)
    single = kind is F32

    def flush(w: Waves) -> Array:
        value = read(w)
        if w.mode.flush_in_32 if single else w.mode.flush_in_16_64:
            return np.where(np.abs(value) < tiny, np.copysign(0, value), value).astype(value.dtype)
        return value

    return flush


def _smallest_normal(kind: Kind) -> float:
    return {"f16": 2.0**-14, "f32": 2.0**-126, "f64": 2.0**-1022}[kind.name]


def _half(form: Form, code: int, index: int) -> tuple[int, bool]:
    """Which half of which operand a 16-bit source is."""
    inst = form.inst
    if inst.encoding in ("VOP3", "VOP3SD"):
        return code, bool(inst.get("opsel") >> index & 1)
    if not form.processor.is_cdna and code >= VECTOR and inst.encoding in ("VOP1", "VOP2", "VOPC"):
        number = code - VECTOR
        return VECTOR + (number & 0x7F), bool(number >> 7)
    return code, False


def _sign_modifiers(inst: Instruction, index: int) -> tuple[bool, bool]:
    if inst.variant in ("DPP16", "SDWA") and inst.encoding in ("VOP1", "VOP2", "VOPC"):
        if index > 1:
            return False, False
        return bool(inst.get(f"src{index}_neg")), bool(inst.get(f"src{index}_abs"))
    if inst.encoding in ("VOP3", "VOP3SD"):
        return bool(inst.get("neg") >> index & 1), bool(inst.get("abs") >> index & 1)
    return False, False


def _with_signs(read: Read, kind: Kind, negate: bool, absolute: bool) -> Read:
    if kind.floating:
        if negate and absolute:
            return lambda w: -np.abs(read(w))
        return (lambda w: np.abs(read(w))) if absolute else (lambda w: -read(w))
    sign = {16: 1 << 15, 32: 1 << 31, 64: 1 << 63}[kind.bits]

    def signed_bits(w: Waves) -> Array:
        value = read(w)
        word = np.uint64 if kind.bits == 64 else np.uint32
        bits: Array = value.view(word)
        if absolute:
            bits = bits & word(sign - 1)
        if negate:
            bits = bits ^ word(sign)
        return bits.view(value.dtype)

    return signed_bits


def _sdwa_source(form: Form, code: int, kind: Kind, index: int) -> Read:
    inst = form.inst
    select, extend = inst.get(f"src{index}_sel"), bool(inst.get(f"src{index}_sext"))
    if kind.bits == 64:
        raise form.unsupported("SDWA of a 64-bit operand")
    raw, decode = raw_source(form, code), kind.decode
    shift, bits = lanes.sdwa_field(select)

    def read(w: Waves) -> Array:
        value = raw(w) >> np.uint32(shift)
        if bits < 32:
            value = value & np.uint32((1 << bits) - 1)
            if extend:
                unused = np.uint32(32 - bits)
                value = ((value << unused).view(np.int32) >> np.int32(unused)).view(np.uint32)
        return decode(value)

    return read


def _dpp_source(form: Form, code: int, kind: Kind) -> Read:
    inst = form.inst
    if kind.bits == 64:
        return _dpp_source64(form, code, kind)
    high = False
    if kind.bits == 16:
        code, high = _half(form, code, 0)
    raw, decode = raw_source(form, code), kind.decode
    shift = np.uint32(16 if high else 0)
    zero_invalid = lanes.bound_control(inst)

    def read(w: Waves) -> Array:
        value = raw(w)[:, lanes.dpp_lanes(inst, w.lanes)]
        if zero_invalid:
            value = np.where(w.dpp_valid, value, np.uint32(0))
        return decode(value >> shift if shift else value)

    return read


def _dpp_source64(form: Form, code: int, kind: Kind) -> Read:
    inst, decode = form.inst, kind.decode
    register = vector_register(form, code - VECTOR, 2)
    zero_invalid = lanes.bound_control(inst)

    def read(w: Waves) -> Array:
        value = pair(w, register)[:, lanes.dpp_lanes(inst, w.lanes)]
        if zero_invalid:
            value = np.where(w.dpp_valid, value, np.uint64(0))
        return decode(value)

    return read


def mask_source(form: Form, code: int) -> Callable[[Waves], Array]:
    """A lane mask operand as booleans (W, L)."""
    if code == form.processor.null:
        return lambda w: np.zeros((w.count, w.lanes), bool)
    if 128 <= code <= 208:
        bits = inline_constant(code, U64)

        def constant(w: Waves) -> Array:
            lane = np.arange(w.lanes, dtype=np.uint64)
            return ((np.uint64(bits) >> lane) & np.uint64(1)).astype(bool)[None, :]

        return constant
    register = form.check_scalar(code)
    return lambda w: w.mask(register)


# Vector destinations


def store_register(w: Waves, register: int, value: Array) -> None:
    """Write a register (32-bit values) in the lanes that EXEC enables."""
    target = w.vgpr.view(value.dtype)[register]
    if w.exec_full:
        target[...] = value
    else:
        np.copyto(target, value, where=w.exec)


def store_pair(w: Waves, register: int, value: Array) -> None:
    """Write two registers from uint64 values."""
    value = np.ascontiguousarray(np.broadcast_to(value, (w.count, w.lanes)))
    halves = value.view(np.uint32)
    store_register(w, register, halves[:, 0::2])
    store_register(w, register + 1, halves[:, 1::2])


def store_half(w: Waves, register: int, half: int, value: Array) -> None:
    """Write one half of a register from 16-bit values in uint32, keeping the other half."""
    target = w.u16[register][:, half::2]
    if w.exec_full:
        target[...] = value
    else:
        np.copyto(target, value.astype(np.uint16), where=w.exec)


def register_destination(
    form: Form, register: int, kind: Kind, *, high: bool = False, clear_high: bool = False
) -> Write:
    """Write results of `kind` to a vector register, in the lanes that EXEC enables.

    A 16-bit result goes to one half; the other is kept, or zeroed if `clear_high`.
    """
    vector_register(form, register, kind.bits // 32 or 1)
    encode = kind.encode
    if kind.bits == 64:
        return lambda w, value: store_pair(w, register, encode(value))
    if kind is F32:
        return lambda w, value: store_register(w, register, value.astype(np.float32, copy=False))
    if kind.bits == 32:
        return lambda w, value: store_register(w, register, encode(value))
    if clear_high:
        return lambda w, value: store_register(w, register, encode(value))
    half = int(high)
    return lambda w, value: store_half(w, register, half, encode(value))


# On CDNA a 16-bit result clears the other half of its register, but for these instructions
# (LLVM, GCNSubtarget::zeroesHigh16BitsOfDest).
_KEEP_HIGH = frozenset(
    {
        "v_mad_f16", "v_fma_f16", "v_mac_f16", "v_madmk_f16", "v_madak_f16", "v_div_fixup_f16",
        "v_mad_u16", "v_mad_i16", "v_fma_mixlo_f16", "v_fma_mixhi_f16", "v_cvt_sr_f16_f32",
        "v_cvt_sr_bf16_f32",
    }
)  # fmt: skip


def vector_destination(form: Form, kind: Kind) -> Write:
    """Write to vdst, with output modifiers, SDWA selection and halves as encoded."""
    inst = form.inst
    register = inst.get("vdst")
    if inst.variant == "SDWA":
        write = _sdwa_destination(form, register, kind)
    else:
        high = clear = False
        if kind.bits == 16:
            high, clear, register = _destination_half(form, register)
        write = register_destination(form, register, kind, high=high, clear_high=clear)
    return with_output_modifiers(form, write, kind)


def _destination_half(form: Form, register: int) -> tuple[bool, bool, int]:
    inst = form.inst
    if inst.encoding in ("VOP3", "VOP3SD"):
        high = bool(inst.get("opsel") >> 3 & 1)
    elif form.processor.is_cdna:
        high = False
    else:
        high, register = bool(register >> 7), register & 0x7F
    clear = form.processor.is_cdna and not high and inst.name not in _KEEP_HIGH
    return high, clear, register


def with_output_modifiers(form: Form, write: Write, kind: Kind) -> Write:
    inst = form.inst
    omod = inst.get("omod") if inst.encoding != "VOP3P" else 0
    clamp = inst.get("clmp")
    if kind.floating and kind.name != "bf16":
        write = _flushed_write(write, kind)
    if not omod and not clamp:
        return write
    if not kind.floating:
        if clamp:
            raise form.unsupported("integer clamp")
        return write
    factor = np.float32({0: 1.0, 1: 2.0, 2: 4.0, 3: 0.5}[omod])

    def modify(w: Waves, value: Array) -> None:
        if omod:
            value = value * value.dtype.type(factor)
        if clamp:
            # fmax drops a NaN, as the clamp of DX10 does.
            value = np.fmin(np.fmax(value, value.dtype.type(0)), value.dtype.type(1))
        write(w, value)

    return modify


def _flushed_write(write: Write, kind: Kind) -> Write:
    tiny = _smallest_normal(kind)
    single = kind is F32

    def flush(w: Waves, value: Array) -> None:
        if w.mode.flush_out_32 if single else w.mode.flush_out_16_64:
            value = np.where(np.abs(value) < tiny, np.copysign(0, value), value).astype(value.dtype)
        write(w, value)

    return flush


def _sdwa_destination(form: Form, register: int, kind: Kind) -> Write:
    inst = form.inst
    select, unused = inst.get("dst_sel"), inst.get("dst_unused")
    if kind.bits == 64:
        raise form.unsupported("SDWA of a 64-bit result")
    shift, bits = lanes.sdwa_field(select)
    encode = kind.encode
    field = ((1 << bits) - 1) << shift

    def write(w: Waves, value: Array) -> None:
        raw = np.broadcast_to(encode(value), (w.count, w.lanes))
        placed = (raw << np.uint32(shift)) & np.uint32(field)
        if unused == 2:
            placed = placed | (w.vgpr[register] & np.uint32(~field & 0xFFFFFFFF))
        elif unused == 1 and bits < 32:
            negative = (raw >> np.uint32(bits - 1)) & np.uint32(1)
            above = np.uint32(~(field | ((1 << shift) - 1)) & 0xFFFFFFFF)
            placed = placed | negative * above
        store_register(w, register, placed)

    return write


def mask_destination(form: Form, code: int) -> Callable[[Waves, Array], None]:
    """Write a lane mask (W, L); lanes that EXEC disables are written as zero."""
    if code == form.processor.null:
        return lambda w, mask: None
    register = form.check_scalar(code)

    def write(w: Waves, mask: Array) -> None:
        if not w.exec_full:
            mask = mask & w.exec
        elif mask.shape != w.exec.shape:
            mask = np.broadcast_to(mask, w.exec.shape)
        w.set_mask(register, mask)

    return write


__all__ = ["F64", "Form", "Read", "Write"]
