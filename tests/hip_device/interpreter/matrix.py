"""Matrix instructions: MFMA (CDNA) and WMMA (RDNA), and access to accumulation registers.

Products are summed in float64 and rounded once; the hardware rounds more often, so results agree
within its rounding error. Layouts: the ISA documents' matrix chapters and AMD's matrix instruction
calculator.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.hip_device.interpreter.operands import VECTOR, Form, register_source, store_register
from tests.hip_device.interpreter.small_floats import FLOATS_BY_CODE, SmallFloat, small_float
from tests.hip_device.interpreter.state import Step, Waves
from tests.hip_device.interpreter.values import F32, F64, I32, U32, Array, Kind, encode_bf16

Decode = Callable[[Array], Array]  # octets (..., n) to numbers (..., m)


def build(form: Form) -> Step | None:
    """The step of a matrix instruction; None if it is not known."""
    name = form.inst.name
    if name in ("v_accvgpr_read", "v_accvgpr_write"):
        return _accumulator_move(form)
    match = re.fullmatch(
        r"v_mfma_(?:scale_)?(f32|i32|f64)_(\d+)x(\d+)x(\d+)_(?:(\d+)b_)?(\w+)", name
    )
    if match is not None:
        return _mfma(form, match)
    match = re.fullmatch(r"v_wmma_(f32|f16|bf16|i32)_16x16x(\d+)_(\w+)", name)
    return None if match is None else _wmma(form, match)


def _accumulator_move(form: Form) -> Step:
    inst = form.inst
    code, register = inst.get("src0"), inst.get("vdst")
    if inst.name == "v_accvgpr_read":
        return lambda w: store_register(w, register, w.vgpr[w.acc_base + code - VECTOR])
    read = register_source(form, code, U32)
    return lambda w: store_register(w, w.acc_base + register, read(w))


def accumulator_copy(form: Form) -> Step:
    """v_accvgpr_mov_b32: from one accumulation register to another."""
    source, target = form.inst.get("src0") - VECTOR, form.inst.get("vdst")
    return lambda w: store_register(w, w.acc_base + target, w.vgpr[w.acc_base + source])


# Elements


def _as(dtype: str, wide: str) -> Decode:
    return lambda octets: octets.view(dtype).astype(wide)


def _bf16(octets: Array) -> Array:
    return (octets.view("u2").astype(np.uint32) << np.uint32(16)).view(np.float32).astype("f8")


def _nibbles(signed: bool) -> Decode:
    def decode(octets: Array) -> Array:
        parts = np.stack([octets & 15, octets >> 4], axis=-1).reshape(*octets.shape[:-1], -1)
        wide = parts.astype(np.int64)
        return (wide ^ 8) - 8 if signed else wide

    return decode


def _small(numbers: SmallFloat) -> Decode:
    if numbers.bits == 8:
        return lambda octets: numbers.decode(octets).astype("f8")

    def decode(octets: Array) -> Array:
        bits = np.unpackbits(octets, axis=-1, bitorder="little")
        fields = bits.reshape(*octets.shape[:-1], -1, numbers.bits)
        codes = fields @ (1 << np.arange(numbers.bits))
        return numbers.decode(codes).astype("f8")

    return decode


@dataclass(frozen=True)
class _Element:
    bits: int
    decode: Decode


_ELEMENTS = {
    "f16": _Element(16, _as("f2", "f8")),
    "bf16": _Element(16, _bf16),
    "f32": _Element(32, _as("f4", "f8")),
    "f64": _Element(64, _as("f8", "f8")),
    "i8": _Element(8, _as("i1", "i8")),
}


def _operand_types(form: Form, suffix: str) -> list[_Element]:
    """The element types of A and B."""
    inst = form.inst
    if suffix == "f8f6f4":
        formats = [inst.get("cbsz"), inst.get("blgp")]
        numbers = [FLOATS_BY_CODE[code] for code in formats]
        return [_Element(n.bits, _small(n)) for n in numbers]
    names = suffix.split("_")
    if all(name in ("fp8", "bf8") for name in names):
        numbers = [small_float(name, form.processor.ocp_fp8) for name in names]
        return [_Element(8, _small(n)) for n in numbers]
    if suffix in ("iu8", "iu4"):
        signed = [bool(inst.get("neg") >> i & 1) for i in range(2)]
        if suffix == "iu4":
            return [_Element(4, _nibbles(s)) for s in signed]
        return [_Element(8, _as("i1" if s else "u1", "i8")) for s in signed]
    if suffix not in _ELEMENTS:
        raise form.unsupported(f"elements of type {suffix}")
    return [_ELEMENTS[suffix]] * 2


def _fetch(w: Waves, row: int, count: int, element: _Element) -> Array:
    """What each lane holds in `count` registers: (W, L, elements)."""
    words = np.ascontiguousarray(w.vgpr[row : row + count].transpose(1, 2, 0))
    return element.decode(words.view(np.uint8))


# MFMA


@functools.cache
def _mfma_positions(rows: int, columns: int, blocks: int, double: bool) -> Array:
    """Where each result register (R) of each lane lies in (blocks, rows, columns), flattened."""
    lane = np.arange(64)
    count = rows * columns * blocks // 64
    register = np.arange(count)[:, None]
    if rows == 4:
        block = lane // 4 % blocks if double else lane // 4
        row = lane // 16 if double else register
        column = lane % 4
    elif double:
        block, column = lane * 0, lane % 16
        row = 4 * register + lane // 16
    else:
        per_block = count // blocks
        block, column = register // per_block, lane % columns
        within = register % per_block
        row = 4 * (64 // columns) * (within // 4) + 4 * (lane // columns) + within % 4
    return np.broadcast_to((block * rows + row) * columns + column, (count, 64))


def _mfma(form: Form, match: re.Match[str]) -> Step:
    inst = form.inst
    result_type, m, n, k, b, suffix = match.groups()
    rows, columns, depth, blocks = int(m), int(n), int(k), int(b or 1)
    kind = {"f32": F32, "f64": F64, "i32": I32}[result_type]
    elements = _operand_types(form, suffix)
    if suffix != "f8f6f4" and (inst.get("cbsz") or inst.get("abid") or inst.get("blgp")):
        raise form.unsupported("broadcasting of blocks")
    held = depth * rows * blocks // 64
    bases = []
    for index in range(2):
        code = inst.get(f"src{index}")
        if code < VECTOR:
            raise form.unsupported("a scalar operand")
        bases.append((code - VECTOR, bool(inst.get("acc") >> index & 1)))
    counts = [max(held * element.bits // 32, 1) for element in elements]
    scales = _scales(form)
    addend = _mfma_addend(form, kind, rows, columns, blocks)
    positions = _mfma_positions(rows, columns, blocks, kind is F64)
    target, in_acc = inst.get("vdst"), bool(inst.get("acc_cd"))

    def operand(w: Waves, index: int, size: int) -> Array:
        register, accumulator = bases[index]
        row = register + (w.acc_base if accumulator else 0)
        values = _fetch(w, row, counts[index], elements[index])[:, :, :held]
        if scales is not None:
            values = values * scales[index](w)[:, :, None]
        # lane = index + size * (block + blocks * group of k)
        shaped = values.reshape(w.count, -1, blocks, size, held)
        return shaped.transpose(0, 2, 3, 1, 4).reshape(w.count, blocks, size, depth)

    def step(w: Waves) -> None:
        product = np.matmul(operand(w, 0, rows), operand(w, 1, columns).swapaxes(2, 3))
        total = product.reshape(w.count, -1) + addend(w)
        row = target + (w.acc_base if in_acc else 0)
        _store_result(w, row, total[:, positions], kind)

    return step


def _store_result(w: Waves, row: int, values: Array, kind: Kind) -> None:
    """Write (W, R, L) results to registers from `row` on, whatever EXEC says."""
    if kind is F64:
        bits = np.ascontiguousarray(values).view(np.uint32).reshape(*values.shape, 2)
        w.vgpr[row : row + 2 * values.shape[1]] = bits.transpose(1, 3, 0, 2).reshape(
            -1, w.count, w.lanes
        )
        return
    ordered = values.transpose(1, 0, 2)
    if kind is I32:
        w.vgpr[row : row + len(ordered)] = ordered.astype(np.int64).astype(np.uint32)
    else:
        w.f32[row : row + len(ordered)] = ordered


def _mfma_addend(
    form: Form, kind: Kind, rows: int, columns: int, blocks: int
) -> Callable[[Waves], Array]:
    """Source C as (W, blocks * rows * columns), or a constant."""
    code = form.inst.get("src2")
    if code < VECTOR:
        constant = form.constant(code, kind)
        if constant is None:
            raise form.unsupported("a scalar operand")
        return lambda w: constant
    positions = _mfma_positions(rows, columns, blocks, kind is F64)
    count = len(positions) * (2 if kind is F64 else 1)
    in_acc = bool(form.inst.get("acc_cd"))

    def read(w: Waves) -> Array:
        row = code - VECTOR + (w.acc_base if in_acc else 0)
        if kind is F64:
            words = np.ascontiguousarray(w.vgpr[row : row + count].transpose(1, 2, 0))
            values = words.view(np.float64).transpose(0, 2, 1)
        else:
            source = w.f32 if kind is F32 else w.i32
            values = (
                source[row : row + count]
                .transpose(1, 0, 2)
                .astype(np.float64 if kind is F32 else np.int64)
            )
        whole = np.empty((w.count, positions.size), values.dtype)
        whole[:, positions] = values
        return whole

    return read


def _scales(form: Form) -> list[Callable[[Waves], Array]] | None:
    """The block scales of A and B: for each lane 2 ** (byte - 127); None if there are none."""
    inst = form.inst
    if inst.encoding != "VOP3PX2":
        return None

    def scale(index: int) -> Callable[[Waves], Array]:
        octet = (inst.get("opsel") >> index & 1) + 2 * (inst.get("opsel_hi") >> index & 1)
        read = register_source(form, inst.get(f"scale_src{index}"), U32)

        def value(w: Waves) -> Array:
            exponent = (read(w) >> np.uint32(8 * octet) & np.uint32(0xFF)).astype(np.int64)
            factor = np.where(exponent == 0xFF, np.nan, np.ldexp(1.0, exponent - 127))
            return np.broadcast_to(factor, (w.count, w.lanes))

        return value

    return [scale(0), scale(1)]


# WMMA


def _wmma(form: Form, match: re.Match[str]) -> Step:
    result_type, depth, suffix = match[1], int(match[2]), match[3]
    inst = form.inst
    elements = _operand_types(form, suffix)
    integers = result_type == "i32"
    if inst.get("neg_hi") or (inst.get("neg") and not integers) or inst.get("clmp"):
        raise form.unsupported("an operand or output modifier")
    rdna3 = form.processor.family == "rdna3"
    codes = [inst.get("src0"), inst.get("src1")]
    if min(codes) < VECTOR:
        raise form.unsupported("a scalar operand")
    addend = inst.get("src2")
    constant = None
    if addend < VECTOR:
        constant = form.constant(addend, F32 if result_type == "f32" else I32)
        if constant is None or (addend != 128 and result_type not in ("f32", "i32")):
            raise form.unsupported("this constant as source C")
    result = _WmmaResult(result_type, rdna3, inst.get("opsel") >> 2 & 1)

    def operand(w: Waves, index: int) -> Array:
        # RDNA3 holds a whole row in every lane of 16; RDNA4 spreads it over the groups of 16.
        held = depth if rdna3 else depth * 16 // w.lanes
        element = elements[index]
        if held * element.bits < 32:
            raise form.unsupported("operands of less than a register in each lane")
        count = held * element.bits // 32
        values = _fetch(w, codes[index] - VECTOR, count, element)[:, :, :held]
        if rdna3:
            return values[:, :16]
        groups = values.reshape(w.count, w.lanes // 16, 16, held)
        return groups.transpose(0, 2, 1, 3).reshape(w.count, 16, depth)

    def step(w: Waves) -> None:
        product = np.matmul(operand(w, 0), operand(w, 1).swapaxes(1, 2))
        before = constant if constant is not None else result.read(w, addend - VECTOR)
        result.write(w, inst.get("vdst"), product + before)

    return step


# The lane group of each four rows, which is also its own inverse.
_RDNA4_GROUPS = [0, 2, 1, 3]


@dataclass(frozen=True)
class _WmmaResult:
    """How a 16 x 16 matrix C or D lies in registers.

    RDNA3 interleaves rows over the groups of 16 lanes and gives each 16-bit result a register half
    of its own; RDNA4 keeps rows together and packs 16-bit results. Of 64 lanes on RDNA4 the groups
    hold rows from 0, 8, 4 and 12 on (AMD's matrix instruction calculator, `-a rdna4 -w 64`).
    """

    type: str
    rdna3: bool
    high: int

    def _shape(self, lanes: int) -> tuple[int, int]:
        """Results a lane holds, and groups of lanes."""
        return 256 // lanes, lanes // 16

    def read(self, w: Waves, row: int) -> Array:
        """The matrix (W, 16, 16)."""
        held, groups = self._shape(w.lanes)
        if self.type in ("f32", "i32"):
            source = (w.f32 if self.type == "f32" else w.i32)[row : row + held]
            values = source.astype(np.float64 if self.type == "f32" else np.int64)
        else:
            values = self._read_halves(w, row, held)
        parts = values.reshape(held, w.count, groups, 16)
        if not self.rdna3 and groups == 4:
            parts = parts[:, :, _RDNA4_GROUPS]
        order = (1, 0, 2, 3) if self.rdna3 else (1, 2, 0, 3)
        return parts.transpose(order).reshape(w.count, 16, 16)

    def _read_halves(self, w: Waves, row: int, held: int) -> Array:
        if self.rdna3:
            bits = w.u16[row : row + held][:, :, self.high :: 2]
        else:
            words = w.u16[row : row + held // 2].reshape(held // 2, w.count, w.lanes, 2)
            bits = words.transpose(0, 3, 1, 2).reshape(held, w.count, w.lanes)
        if self.type == "f16":
            return np.ascontiguousarray(bits).view(np.float16).astype(np.float64)
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)

    def write(self, w: Waves, row: int, matrix: Array) -> None:
        held, groups = self._shape(w.lanes)
        if self.rdna3:
            parts = matrix.reshape(w.count, held, groups, 16).transpose(1, 0, 2, 3)
        else:
            parts = matrix.reshape(w.count, groups, held, 16).transpose(2, 0, 1, 3)
            if groups == 4:
                parts = parts[:, :, _RDNA4_GROUPS]
        values = parts.reshape(held, w.count, w.lanes)
        if self.type == "f32":
            w.f32[row : row + held] = values
        elif self.type == "i32":
            w.vgpr[row : row + held] = values.astype(np.int64).astype(np.uint32)
        else:
            self._write_halves(w, row, values)

    def _write_halves(self, w: Waves, row: int, values: Array) -> None:
        if self.type == "f16":
            bits = values.astype(np.float16).view(np.uint16)
        else:
            bits = encode_bf16(values.astype(np.float32)).astype(np.uint16)
        if self.rdna3:
            w.u16[row : row + len(bits)][:, :, self.high :: 2] = bits
            return
        packed = bits.reshape(-1, 2, w.count, w.lanes).transpose(0, 2, 3, 1)
        w.u16[row : row + len(packed)] = packed.reshape(len(packed), w.count, w.lanes * 2)
