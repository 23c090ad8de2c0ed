"""Vector instructions that move data between lanes or between vector and scalar registers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.hip_device.interpreter.matrix import accumulator_copy
from tests.hip_device.interpreter.operands import (
    VECTOR,
    Form,
    Read,
    scalar_destination,
    scalar_source,
    source_codes,
    store_register,
)
from tests.hip_device.interpreter.state import Step, Waves
from tests.hip_device.interpreter.values import U32, Array


def build(form: Form) -> Step | None:
    builder = _BUILDERS.get(form.inst.name)
    return None if builder is None else builder(form)


def _vector(form: Form, code: int) -> int:
    if code < VECTOR:
        raise form.unsupported("a scalar operand")
    return code - VECTOR


def _readfirstlane(form: Form) -> Step:
    write = scalar_destination(form, form.inst.get("vdst"), U32)
    code = source_codes(form)[0]
    if code < VECTOR:
        read = scalar_source(form, code, U32)
        return lambda w: write(w, read(w))
    register = code - VECTOR

    def step(w: Waves) -> None:
        # argmax finds the first active lane; lane 0 if none is.
        first = np.argmax(w.exec, axis=1)
        write(w, w.vgpr[register][np.arange(w.count), first])

    return step


def _lane_select(form: Form, code: int) -> Read:
    read = scalar_source(form, code, U32)
    return lambda w: np.broadcast_to(read(w) & np.uint32(w.lanes - 1), (w.count,))


def _readlane(form: Form) -> Step:
    codes = source_codes(form)
    register, select = _vector(form, codes[0]), _lane_select(form, codes[1])
    write = scalar_destination(form, form.inst.get("vdst"), U32)
    return lambda w: write(w, w.vgpr[register][np.arange(w.count), select(w)])


def _writelane(form: Form) -> Step:
    codes = source_codes(form)
    value, select = scalar_source(form, codes[0], U32), _lane_select(form, codes[1])
    register = form.inst.get("vdst")

    def step(w: Waves) -> None:
        w.vgpr[register][np.arange(w.count), select(w)] = value(w)

    return step


def _permlane(form: Form) -> Step:
    """v_permlane16 and permlanex16: any lane of the row, or of the other row of the pair."""
    inst = form.inst
    codes = source_codes(form)
    register = _vector(form, codes[0])
    across = "permlanex16" in inst.name
    fetch_inactive, bound_control = inst.get("opsel") & 1, inst.get("opsel") >> 1 & 1
    selectors = _selectors(form, codes)

    def step(w: Waves) -> None:
        lane = np.arange(w.lanes)
        row = lane & ~15
        source = (row ^ 16 if across else row) + selectors(w)
        value = np.take_along_axis(w.vgpr[register], source, axis=1)
        if fetch_inactive or w.exec_full:
            store_register(w, inst.get("vdst"), value)
            return
        valid = np.take_along_axis(w.exec, source, axis=1)
        kept = np.uint32(0) if bound_control else w.vgpr[inst.get("vdst")]
        store_register(w, inst.get("vdst"), np.where(valid, value, kept))

    return step


def _selectors(form: Form, codes: list[int]) -> Callable[[Waves], Array]:
    """The lane within the row that each lane selects (W, L)."""
    if "_var_" in form.inst.name:
        register = _vector(form, codes[1])
        return lambda w: (w.vgpr[register] & np.uint32(15)).astype(np.int64)
    low, high = (scalar_source(form, code, U32) for code in codes[1:3])

    def select(w: Waves) -> Array:
        both = low(w).astype(np.uint64) | high(w).astype(np.uint64) << np.uint64(32)
        shift = ((np.arange(w.lanes) & 15) * 4).astype(np.uint64)
        chosen = (both[:, None] >> shift & np.uint64(15)).astype(np.int64)
        return np.broadcast_to(chosen, (w.count, w.lanes))

    return select


def _permlane_swap(form: Form) -> Step:
    """Exchange the odd rows (halves) of vdst with the even ones of src0."""
    inst = form.inst
    distance = 16 if "permlane16" in inst.name else 32
    one, other = inst.get("vdst"), _vector(form, source_codes(form)[0])

    def step(w: Waves) -> None:
        if not w.exec_full:
            raise form.unsupported("a swap with inactive lanes")
        upper = (np.arange(w.lanes) & distance) != 0
        lower = np.flatnonzero(~upper)
        kept = w.vgpr[other][:, lower].copy()
        w.vgpr[other][:, lower] = w.vgpr[one][:, lower + distance]
        w.vgpr[one][:, lower + distance] = kept

    return step


_BUILDERS: dict[str, Callable[[Form], Step]] = {
    "v_accvgpr_mov_b32": accumulator_copy,
    "v_readfirstlane_b32": _readfirstlane,
    "v_readlane_b32": _readlane,
    "v_writelane_b32": _writelane,
    "v_permlane16_b32": _permlane,
    "v_permlanex16_b32": _permlane,
    "v_permlane16_var_b32": _permlane,
    "v_permlanex16_var_b32": _permlane,
    "v_permlane16_swap_b32": _permlane_swap,
    "v_permlane32_swap_b32": _permlane_swap,
}
