"""Conversions from and to floats of 8 and 4 bits, scaled or not.

Source: the pseudocode of the ISA documents of CDNA3, CDNA4 and RDNA4. A scale is the exponent of a
float32 alone: from small floats it multiplies, to them it divides. What is too large for a small
float becomes infinity or NaN where it has them, and else its largest number, as NaN does.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from tests.hip_device.interpreter.operands import (
    Form,
    Read,
    register_source,
    source_codes,
    store_half,
    store_register,
    vector_source,
)
from tests.hip_device.interpreter.small_floats import FP4, SmallFloat, small_float
from tests.hip_device.interpreter.state import Step, Waves
from tests.hip_device.interpreter.values import (
    BF16,
    F16,
    F32,
    U32,
    Array,
    Kind,
    decode_bf16,
    decode_f16,
)

_LARGE = {"f32": F32, "f16": F16, "bf16": BF16}
_SCALED = re.compile(
    r"v_cvt_scalef32_(pk_)?(?:(fp8|bf8|fp4)_(f32|f16|bf16)|(f32|f16|bf16)_(fp8|bf8|fp4))"
)


def build(form: Form) -> Step | None:
    """The step of such a conversion; None for everything else."""
    name = form.inst.name
    scaled = _SCALED.fullmatch(name)
    if scaled is not None:
        packed, to, of, large, small = scaled.groups()
        if to is not None:
            return _scaled_down(form, _format(to, form), _LARGE[of]) if packed else None
        return _scaled_up(form, _format(small, form), _LARGE[large], bool(packed))
    for kind in ("fp8", "bf8"):
        numbers = _format(kind, form)
        builder: Callable[[Form, SmallFloat], Step] | None = {
            f"v_cvt_f32_{kind}": _from_octet,
            f"v_cvt_pk_f32_{kind}": _from_octets,
            f"v_cvt_pk_{kind}_f32": _to_octets,
            f"v_cvt_sr_{kind}_f32": _to_octet_stochastic,
        }.get(name)
        if builder is not None:
            return builder(form, numbers)
    return None


def _format(name: str, form: Form) -> SmallFloat:
    return FP4 if name == "fp4" else small_float(name, form.processor.ocp_fp8)


def _scale(form: Form, index: int) -> Read:
    """Powers of two (float64; NaN for the exponent of NaN)."""
    read = vector_source(form, index, F32)

    def scale(w: Waves) -> Array:
        exponent = (read(w).astype(np.float32).view(np.uint32) >> 23 & 0xFF).astype(np.int32)
        return np.where(exponent == 255, np.nan, np.ldexp(1.0, exponent - 127))

    return scale


def _scaled_down(form: Form, numbers: SmallFloat, of: Kind) -> Step:
    """Two numbers to a half (8 bits) or a byte (4 bits) of the destination; the rest stays."""
    if of is F32:
        low, high = vector_source(form, 0, F32), vector_source(form, 1, F32)
    else:
        low, high = _halves(form, of)
    scale = _scale(form, 2 if of is F32 else 1)
    register, opsel = form.inst.get("vdst"), form.inst.get("opsel")
    bits = numbers.bits
    shift = np.uint32((opsel >> 3 & 1) * 16 if bits == 8 else (opsel >> 2 & 3) * 8)
    kept = ~np.uint32(((1 << 2 * bits) - 1) << int(shift))

    def step(w: Waves) -> None:
        by = scale(w)
        codes = [numbers.encode(read(w).astype(np.float64) / by) for read in (low, high)]
        both = (codes[0] | codes[1] << np.uint32(bits)) << shift
        store_register(w, register, w.vgpr[register] & kept | both)

    return step


def _halves(form: Form, kind: Kind) -> tuple[Read, Read]:
    read = register_source(form, source_codes(form)[0], U32)
    decode = decode_f16 if kind is F16 else decode_bf16
    return (
        lambda w: decode(read(w) & np.uint32(0xFFFF)),
        lambda w: decode(read(w) >> np.uint32(16)),
    )


def _scaled_up(form: Form, numbers: SmallFloat, to: Kind, packed: bool) -> Step:
    read = register_source(form, source_codes(form)[0], U32)
    scale = _scale(form, 1)
    register, opsel = form.inst.get("vdst"), form.inst.get("opsel")
    pair = packed and numbers.bits == 8
    shift = np.uint32((opsel & 1) * 16 if pair else (opsel & 1) * 8 + (opsel >> 1 & 1) * 16)

    def step(w: Waves) -> None:
        bits, by = read(w) >> shift, scale(w)
        results = [
            to.encode((numbers.decode(bits >> np.uint32(numbers.bits * n)) * by).astype(np.float32))
            for n in range(2 if packed else 1)
        ]
        if to is F32:
            for n, result in enumerate(results):
                store_register(w, register + n, result)
        elif packed:
            store_register(w, register, results[0] | results[1] << np.uint32(16))
        else:
            store_half(w, register, opsel >> 3 & 1, results[0])

    return step


def _selected(form: Form, unit: int) -> tuple[Read, int]:
    """The operand's bits and the bit position of the part that the encoding selects."""
    inst = form.inst
    code = source_codes(form)[0]
    read = register_source(form, code, U32)
    if inst.variant == "SDWA":
        select = inst.get("src0_sel")
        first = 0 if unit == 8 else 4
        if not first <= select < first + 32 // unit:
            raise form.unsupported(f"SDWA selection {select}")
        return read, (select - first) * unit
    if inst.encoding != "VOP3":
        return read, 0
    opsel = inst.get("opsel")
    if unit == 16:
        return read, (opsel & 1) * 16
    # Bit 0 selects the upper half and bit 1 the upper byte of it.
    return read, (opsel & 1) * 16 + (opsel >> 1 & 1) * 8


def _from_octet(form: Form, numbers: SmallFloat) -> Step:
    read, shift = _selected(form, 8)
    register = form.inst.get("vdst")
    return lambda w: store_register(w, register, numbers.decode(read(w) >> np.uint32(shift)))


def _from_octets(form: Form, numbers: SmallFloat) -> Step:
    read, shift = _selected(form, 16)
    register = form.inst.get("vdst")

    def step(w: Waves) -> None:
        bits = read(w) >> np.uint32(shift)
        low, high = numbers.decode(bits), numbers.decode(bits >> np.uint32(8))
        store_register(w, register, low)
        store_register(w, register + 1, high)

    return step


def _float_sources(form: Form) -> list[Read]:
    return [vector_source(form, index, F32) for index in range(2)]


def _to_octets(form: Form, numbers: SmallFloat) -> Step:
    a, b = _float_sources(form)
    register, half = form.inst.get("vdst"), form.inst.get("opsel") >> 3 & 1

    def step(w: Waves) -> None:
        both = numbers.encode(a(w)) | numbers.encode(b(w)) << np.uint32(8)
        store_half(w, register, half, np.broadcast_to(both, (w.count, w.lanes)))

    return step


def _to_octet_stochastic(form: Form, numbers: SmallFloat) -> Step:
    raise form.unsupported("stochastic rounding")
