"""Vector ALU instructions: from an entry of the table, or a builder of its own, to a step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.hip_device.interpreter import lanes
from tests.hip_device.interpreter.division import div_fmas, div_scale
from tests.hip_device.interpreter.operands import (
    VECTOR,
    Form,
    Read,
    flushed,
    mask_destination,
    mask_source,
    register_destination,
    register_source,
    source_codes,
    vector_destination,
    vector_source,
)
from tests.hip_device.interpreter.state import EXEC, VCC, Step, Waves
from tests.hip_device.interpreter.values import (
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
)
from tests.hip_device.interpreter.vector_table import TABLE, Operation

Builder = Callable[[Form], Step]


def build(form: Form) -> Step | None:
    """The step of a VOP1, VOP2, VOP3 or VOPC instruction; None if it is not known."""
    name = form.inst.name
    operation = TABLE.get(name)
    if operation is not None:
        step = _from_table(form, operation)
    elif name in _BUILDERS:
        step = _BUILDERS[name](form)
    elif name.startswith(("v_cmp_", "v_cmpx_")):
        step = _comparison(form)
    else:
        return None
    if form.inst.variant in ("DPP16", "DPP8"):
        return with_dpp(form, step)
    return step


def with_dpp(form: Form, step: Step) -> Step:
    """Run `step` in the lanes that a DPP modifier leaves enabled."""
    inst = form.inst
    fetch_inactive = lanes.fetches_inactive(inst)
    keeps_invalid = not lanes.bound_control(inst)

    def run(w: Waves) -> None:
        valid, enabled = lanes.dpp_reach(inst, w.lanes)
        source_valid = np.broadcast_to(valid, w.exec.shape)
        if not fetch_inactive and not w.exec_full:
            source_valid = source_valid & w.exec[:, lanes.dpp_lanes(inst, w.lanes)]
        w.dpp_valid = source_valid
        before, before_full = w.exec, w.exec_full
        w.exec = before & enabled
        if keeps_invalid:
            w.exec = w.exec & source_valid
        w.exec_full = False
        try:
            step(w)
        finally:
            w.exec, w.exec_full = before, before_full

    return run


def _operand_codes(form: Form, operation: Operation) -> list[int]:
    """The operand codes in the order in which the operation takes them."""
    inst = form.inst
    codes = source_codes(form)
    if (operation.accumulates and inst.encoding != "VOP3") or operation.accumulates:
        codes = [*codes[:2], inst.get("vdst") + VECTOR]
    elif "fmamk" in inst.name:
        codes = [codes[0], 255, codes[1]]
    elif "fmaak" in inst.name:
        codes = [codes[0], codes[1], 255]
    return codes[: len(operation.operands)]


def _from_table(form: Form, operation: Operation) -> Step:
    codes = _operand_codes(form, operation)
    if len(codes) < len(operation.operands):
        raise form.unsupported(f"the {form.inst.encoding} form")
    reads = []
    for index, (code, kind) in enumerate(zip(codes, operation.operands, strict=True)):
        if operation.accumulates and index == len(codes) - 1:
            reads.append(_destination_as_source(form, kind))
        else:
            reads.append(vector_source(form, index, kind, code))
    if form.inst.get("clmp") and form.inst.name in _SATURATING:
        return _saturating(form, reads)
    if form.inst.name.startswith("v_s_"):
        return _to_scalar(form, reads[0], operation)
    write, compute = vector_destination(form, operation.result), operation.compute
    if len(reads) == 1:
        (a,) = reads
        return lambda w: write(w, compute(a(w)))
    if len(reads) == 2:
        a, b = reads
        return lambda w: write(w, compute(a(w), b(w)))
    a, b, c = reads
    return lambda w: write(w, compute(a(w), b(w), c(w)))


def _destination_as_source(form: Form, kind: Kind) -> Read:
    inst = form.inst
    register, high = inst.get("vdst"), False
    if kind.bits == 16 and not form.processor.is_cdna:
        if inst.encoding == "VOP3":
            high = bool(inst.get("opsel") >> 3 & 1)
        else:
            register, high = register & 0x7F, bool(register >> 7)
    read = flushed(register_source(form, register + VECTOR, kind, high=high), kind)
    if inst.encoding == "VOP3" and inst.get("neg") >> 2 & 1:
        return lambda w: -read(w)
    return read


_SATURATING: dict[str, tuple[Kind, int]] = {
    "v_add_u32": (U32, 1), "v_add_nc_u32": (U32, 1),
    "v_sub_u32": (U32, -1), "v_sub_nc_u32": (U32, -1),
    "v_add_i32": (I32, 1), "v_add_nc_i32": (I32, 1),
    "v_sub_i32": (I32, -1), "v_sub_nc_i32": (I32, -1),
    "v_add_u16": (U16, 1), "v_add_nc_u16": (U16, 1),
    "v_sub_u16": (U16, -1), "v_sub_nc_u16": (U16, -1),
    "v_add_i16": (I16, 1), "v_add_nc_i16": (I16, 1),
    "v_sub_i16": (I16, -1), "v_sub_nc_i16": (I16, -1),
}  # fmt: skip


def saturate(kind: Kind, value: Array) -> Array:
    """Clip int64 values to the range of an integer kind."""
    low = -(1 << kind.bits - 1) if kind.name[0] == "i" else 0
    high = (1 << kind.bits - (kind.name[0] == "i")) - 1
    return np.clip(value, low, high)


def _saturating(form: Form, reads: list[Read]) -> Step:
    kind, sign = _SATURATING[form.inst.name]
    register, (a, b) = form.inst.get("vdst"), reads
    high = kind.bits == 16 and bool(form.inst.get("opsel") >> 3 & 1)
    clear = kind.bits == 16 and form.processor.is_cdna and not high
    write = register_destination(form, register, kind, high=high, clear_high=clear)

    def step(w: Waves) -> None:
        write(w, saturate(kind, a(w).astype(np.int64) + sign * b(w).astype(np.int64)))

    return step


def _to_scalar(form: Form, read: Read, operation: Operation) -> Step:
    """v_s_*: a transcendental of a scalar, with a scalar result, whatever EXEC says."""
    register = form.check_scalar(form.inst.get("vdst"))
    compute, encode = operation.compute, operation.result.encode

    def step(w: Waves) -> None:
        w.sgpr[:, register] = encode(compute(read(w)))[:, 0]

    return step


# Comparisons

_KINDS = {k.name: k for k in (F16, F32, F64, I16, I32, I64, U16, U32, U64)}
CONDITIONS: dict[str, Callable[[Array, Array], Array]] = {
    "lt": np.less, "eq": np.equal, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "ne": np.not_equal,
    "lg": lambda a, b: (a < b) | (a > b),
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
    "nge": lambda a, b: ~(a >= b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "ngt": lambda a, b: ~(a > b),
    "nle": lambda a, b: ~(a <= b),
    "neq": lambda a, b: ~(a == b),
    "nlt": lambda a, b: ~(a < b),
    "f": lambda a, b: np.zeros(np.broadcast_shapes(a.shape, b.shape), bool),
    "t": lambda a, b: np.ones(np.broadcast_shapes(a.shape, b.shape), bool),
    "tru": lambda a, b: np.ones(np.broadcast_shapes(a.shape, b.shape), bool),
}  # fmt: skip


def _comparison(form: Form) -> Step:
    inst = form.inst
    prefix, condition, suffix = inst.name.split("_")[1:]
    kind = _KINDS[suffix]
    write = _comparison_destination(form, prefix == "cmpx")
    a = vector_source(form, 0, kind)
    if condition == "class":
        mask = vector_source(form, 1, U16 if kind is F16 else U32)
        return lambda w: write(w, _is_class(a(w), mask(w), kind))
    compare, b = CONDITIONS[condition], vector_source(form, 1, kind)
    return lambda w: write(w, compare(a(w), b(w)))


def _comparison_destination(form: Form, to_exec: bool) -> Callable[[Waves, Array], None]:
    inst = form.inst
    if inst.get("clmp") or inst.get("omod"):
        raise form.unsupported("an output modifier")
    if inst.encoding == "VOP3":
        code = inst.get("vdst")
    elif inst.variant == "SDWA" and inst.get("sd"):
        code = inst.get("sdst")
    else:
        code = VCC
    if not to_exec:
        return mask_destination(form, code)
    write_exec = mask_destination(form, EXEC)
    if not form.processor.is_cdna:
        return write_exec
    write_mask = mask_destination(form, code)

    def write_both(w: Waves, mask: Array) -> None:
        write_mask(w, mask)
        write_exec(w, mask)

    return write_both


def _is_class(value: Array, classes: Array, kind: Kind) -> Array:
    """Whether a number is of one of the classes that a bit mask names."""
    negative = np.signbit(value)
    nan, infinite, zero = np.isnan(value), np.isinf(value), value == 0
    tiny = {"f16": 2.0**-14, "f32": 2.0**-126, "f64": 2.0**-1022}[kind.name]
    denormal = (np.abs(value) < tiny) & ~zero
    number = np.select(
        [nan, infinite, zero, denormal],
        [
            np.where(_is_quiet(value, kind), 1, 0),
            np.where(negative, 2, 9),
            np.where(negative, 5, 6),
            np.where(negative, 4, 7),
        ],
        np.where(negative, 3, 8),
    )
    return (classes >> number.astype(np.uint32) & np.uint32(1)).astype(bool)


def _is_quiet(value: Array, kind: Kind) -> Array:
    # A NaN in float16 arrives as float32, with its quiet bit in the corresponding place.
    if kind is F64:
        return np.ascontiguousarray(value).view(np.uint64) >> np.uint64(51) & np.uint64(1) != 0
    bits = np.ascontiguousarray(value, dtype=np.float32).view(np.uint32)
    return bits >> np.uint32(22) & np.uint32(1) != 0


# Selection, carries, division


def _cndmask(form: Form) -> Step:
    kind = U16 if form.inst.name.endswith("b16") else U32
    a, b = vector_source(form, 0, kind), vector_source(form, 1, kind)
    codes = source_codes(form)
    select = mask_source(form, codes[2] if len(codes) > 2 else VCC)
    write = vector_destination(form, kind)
    return lambda w: write(w, np.where(select(w), b(w), a(w)))


def _carry_codes(form: Form) -> tuple[int, int]:
    """Where the carry comes from and where it goes."""
    inst = form.inst
    if inst.encoding == "VOP3SD":
        return inst.get("src2"), inst.get("sdst")
    return VCC, VCC


def _add_carry(form: Form, *, subtract: bool, reverse: bool, carry_in: bool) -> Step:
    a, b = vector_source(form, 0, U32), vector_source(form, 1, U32)
    if reverse:
        a, b = b, a
    source, destination = _carry_codes(form)
    carry = mask_source(form, source) if carry_in else None
    write_mask = mask_destination(form, destination)
    write = vector_destination(form, U32)

    def step(w: Waves) -> None:
        x, y = a(w).astype(np.int64), b(w).astype(np.int64)
        total = x - y if subtract else x + y
        if carry is not None:
            bit = carry(w).astype(np.int64)
            total = total - bit if subtract else total + bit
        write(w, total.astype(np.uint32))
        write_mask(w, (total < 0) | (total > 0xFFFFFFFF))

    return step


def _carry_builder(name: str) -> Builder:
    return lambda form: _add_carry(
        form,
        subtract="sub" in name,
        reverse="rev" in name or "bbrev" in name,
        carry_in=any(part in name for part in ("addc", "subb", "_ci_")),
    )


_CARRYING = (
    "v_add_co_u32", "v_sub_co_u32", "v_subrev_co_u32", "v_addc_co_u32", "v_subb_co_u32",
    "v_subbrev_co_u32", "v_add_co_ci_u32", "v_sub_co_ci_u32", "v_subrev_co_ci_u32",
)  # fmt: skip


def _mad_wide(form: Form) -> Step:
    signed = form.inst.name.endswith("i32")
    narrow, wide = (I32, I64) if signed else (U32, U64)
    dtype = wide.view
    a, b = vector_source(form, 0, narrow), vector_source(form, 1, narrow)
    c = vector_source(form, 2, wide)
    write, write_mask = (
        vector_destination(form, wide),
        mask_destination(form, form.inst.get("sdst")),
    )

    def step(w: Waves) -> None:
        product = a(w).astype(dtype) * b(w).astype(dtype)
        addend = c(w)
        total = product + addend
        write(w, total)
        write_mask(w, ((total ^ product) & (total ^ addend)) < 0 if signed else total < product)

    return step


def _div_scale(form: Form) -> Step:
    kind = F64 if form.inst.name.endswith("f64") else F32
    a, b, c = (vector_source(form, i, kind) for i in range(3))
    write, write_mask = (
        vector_destination(form, kind),
        mask_destination(form, form.inst.get("sdst")),
    )

    def step(w: Waves) -> None:
        scaled, flag = div_scale(a(w), b(w), c(w))
        write(w, scaled)
        write_mask(w, flag)

    return step


def _div_fmas(form: Form) -> Step:
    kind = F64 if form.inst.name.endswith("f64") else F32
    a, b, c = (vector_source(form, i, kind) for i in range(3))
    write = vector_destination(form, kind)
    return lambda w: write(w, div_fmas(a(w), b(w), c(w), w.mask(VCC)))


def _swap(form: Form) -> Step:
    inst = form.inst
    one, other = inst.get("vdst"), inst.get("src0") - VECTOR
    if other < 0:
        raise form.unsupported("a scalar operand")

    def step(w: Waves) -> None:
        kept = w.vgpr[one].copy()
        np.copyto(w.vgpr[one], w.vgpr[other], where=w.exec)
        np.copyto(w.vgpr[other], kept, where=w.exec)

    return step


def _bitop3(form: Form) -> Step:
    inst = form.inst
    table = inst.get("omod") << 6 | inst.get("abs") << 3 | inst.get("neg")
    kind = U16 if inst.name.endswith("b16") else U32
    if kind is U16:
        raise form.unsupported("the 16-bit form")
    a, b, c = (register_source(form, code, kind) for code in source_codes(form))
    write = register_destination(form, inst.get("vdst"), kind)

    def step(w: Waves) -> None:
        x, y, z = a(w), b(w), c(w)
        result = np.zeros((w.count, w.lanes), np.uint32)
        for k in range(8):
            if table >> k & 1:
                term = (x if k & 4 else ~x) & (y if k & 2 else ~y) & (z if k & 1 else ~z)
                result |= term
        write(w, result)

    return step


def _mbcnt(form: Form) -> Step:
    """Count the bits of a mask below the lane; the low or the high half of the wave."""
    high = "_hi_" in form.inst.name
    mask, base = vector_source(form, 0, U32), vector_source(form, 1, U32)
    write = vector_destination(form, U32)

    def step(w: Waves) -> None:
        lane = np.arange(w.lanes, dtype=np.uint64)
        below = (np.uint64(1) << lane) - np.uint64(1)
        part = (below >> np.uint64(32) if high else below).astype(np.uint32)
        write(w, np.bitwise_count(mask(w) & part).astype(np.uint32) + base(w))

    return step


def _nop(form: Form) -> Step:
    return lambda w: None


_BUILDERS: dict[str, Builder] = {
    "v_nop": _nop,
    "v_clrexcp": _nop,
    "v_pipeflush": _nop,
    "v_cndmask_b32": _cndmask,
    "v_cndmask_b16": _cndmask,
    "v_div_scale_f32": _div_scale,
    "v_div_scale_f64": _div_scale,
    "v_div_fmas_f32": _div_fmas,
    "v_div_fmas_f64": _div_fmas,
    "v_swap_b32": _swap,
    "v_bitop3_b32": _bitop3,
    "v_bitop3_b16": _bitop3,
    "v_mbcnt_lo_u32_b32": _mbcnt,
    "v_mbcnt_hi_u32_b32": _mbcnt,
    **dict.fromkeys(
        ("v_mad_u64_u32", "v_mad_i64_i32", "v_mad_co_u64_u32", "v_mad_co_i64_i32"), _mad_wide
    ),
    **{name: _carry_builder(name) for name in _CARRYING},
}


# Dual issue


def build_dual(form: Form) -> Step:
    """VOPD: both halves read their operands before either writes."""
    names = form.inst.name.split("::")
    x = _dual_half(form, names[0], "x", form.inst.get("vdstx"))
    y_register = form.inst.get("vdsty") << 1 | (form.inst.get("vdstx") & 1 ^ 1)
    y = _dual_half(form, names[1], "y", y_register)

    def step(w: Waves) -> None:
        write_x, write_y = x(w), y(w)
        write_x()
        write_y()

    return step


def _dual_half(
    form: Form, dual_name: str, half: str, register: int
) -> Callable[[Waves], Callable[[], None]]:
    name = dual_name.replace("v_dual_", "v_")
    codes = [form.inst.get(f"src{half}0"), form.inst.get(f"vsrc{half}1") + VECTOR]
    if name == "v_cndmask_b32":
        a, b = (register_source(form, code, U32) for code in codes)
        write = register_destination(form, register, U32)

        def choose(w: Waves) -> Callable[[], None]:
            value = np.where(w.mask(VCC), b(w), a(w))
            return lambda: write(w, value)

        return choose
    operation = TABLE.get(name)
    if operation is None:
        raise form.unsupported(dual_name)
    if operation.accumulates:
        codes.append(register + VECTOR)
    elif "fmamk" in name:
        codes = [codes[0], 255, codes[1]]
    elif "fmaak" in name:
        codes = [codes[0], codes[1], 255]
    kinds, compute = operation.operands, operation.compute
    reads = [
        flushed(register_source(form, code, kind), kind)
        for code, kind in zip(codes, kinds, strict=False)
    ]
    write_result = _dual_write(form, register, operation.result)

    def compute_half(w: Waves) -> Callable[[], None]:
        # A copy: a move's value is a view of a register that the other half may write.
        value = np.array(compute(*(read(w) for read in reads)))
        return lambda: write_result(w, value)

    return compute_half


def _dual_write(form: Form, register: int, kind: Kind) -> Callable[[Waves, Array], None]:
    write = register_destination(form, register, kind)
    if kind is not F32:
        return write

    def flush(w: Waves, value: Array) -> None:
        if w.mode.flush_out_32:
            tiny = np.abs(value) < np.float32(2.0**-126)
            value = np.where(tiny, np.copysign(np.float32(0), value), value)
        write(w, value)

    return flush
