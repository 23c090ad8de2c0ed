"""Scalar loads: s_load and s_buffer_load."""

from __future__ import annotations

import numpy as np

from tests.hip_device.interpreter.accesses import Access, extended, parse_access
from tests.hip_device.interpreter.operands import Form, Read, scalar_source
from tests.hip_device.interpreter.state import Step, Waves
from tests.hip_device.interpreter.values import U32

_IGNORED = ("s_dcache_", "s_gl1_inv", "s_prefetch_", "s_atc_probe", "s_buffer_prefetch")


def build(form: Form) -> Step | None:
    """The step of an SMEM instruction; None if it is not known."""
    inst = form.inst
    if inst.name.startswith(_IGNORED):
        return lambda w: None
    buffer = inst.name.startswith("s_buffer_load_")
    access = parse_access(
        inst.name.removeprefix("s_").removeprefix("buffer_").removeprefix("load_")
    )
    if access is None or "_load_" not in inst.name:
        return None
    return _buffer_load(form, access) if buffer else _load(form, access)


def _offset(form: Form) -> tuple[int, Read | None]:
    """The immediate offset, and the register that is added to it."""
    inst = form.inst
    cdna = form.processor.is_cdna
    name, bits = ("ioffset", 24) if "ioffset" in inst.fields else ("offset", 21)
    constant = inst.get(name)
    constant -= constant >> (bits - 1) << bits
    if cdna and not inst.get("imm"):
        # Without an immediate, the offset field names the register.
        return 0, scalar_source(form, inst.get("offset") & 0x7F, U32)
    if cdna and not inst.get("soffset_en"):
        return constant, None
    code = inst.get("soffset")
    if code == form.processor.null:
        return constant, None
    return constant, scalar_source(form, code, U32)


def _write(form: Form, w: Waves, access: Access, words: list[np.ndarray]) -> None:
    register = form.inst.get("sdata")
    for k, word in enumerate(words):
        w.sgpr[:, register + k] = extended(access, word)


def _load(form: Form, access: Access) -> Step:
    pair = form.inst.get("sbase")
    constant, register = _offset(form)
    form.check_scalar(form.inst.get("sdata"), 32 * access.count)
    # The hardware ignores the two low bits of an address of whole words.
    whole = ~np.uint64(3) if access.width == 4 else ~np.uint64(0)
    offset = np.int64(constant).view(np.uint64)

    def step(w: Waves) -> None:
        address = w.sgpr64[:, pair] + offset
        if register is not None:
            address = address + register(w)
        words = w.around.memory.load(address & whole, None, access.width, access.count)
        _write(form, w, access, words)

    return step


def _buffer_load(form: Form, access: Access) -> Step:
    first = form.inst.get("sbase") << 1
    constant, register = _offset(form)

    def step(w: Waves) -> None:
        words = [w.sgpr[:, first + k].astype(np.int64) for k in range(3)]
        base = words[0] | (words[1] & 0xFFFF) << 32
        stride = words[1] >> 16 & 0x3FFF
        limit = words[2] * np.maximum(stride, 1)
        offset = np.full(w.count, constant, np.int64)
        if register is not None:
            offset = offset + register(w)
        loaded = []
        for k in range(access.count):
            at = offset + k * access.width
            inside = at + access.width <= limit
            address = (base + at).view(np.uint64)
            loaded.append(w.around.memory.load(address, inside, access.width, 1)[0])
        _write(form, w, access, loaded)

    return step
