"""LDS instructions, and those that use the LDS crossbar to move data between lanes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.hip_device.interpreter import atomics, lanes
from tests.hip_device.interpreter.accesses import (
    data_row,
    parse_access,
    stored_words,
    write_loaded,
)
from tests.hip_device.interpreter.operands import Form, pair, store_pair, store_register
from tests.hip_device.interpreter.state import Step, Waves
from tests.hip_device.interpreter.values import Array


def build(form: Form) -> Step | None:
    """The step of a DS instruction; None if it is not known."""
    name = form.inst.name.removeprefix("ds_")
    if form.inst.get("gds"):
        raise form.unsupported("GDS")
    if name == "nop":
        return lambda w: None
    if name in _BUILDERS:
        return _BUILDERS[name](form)
    two = _two_addresses(form, name)
    if two is not None:
        return two
    verb, _, suffix = name.partition("_")
    access = parse_access(suffix)
    if access is not None and verb in ("read", "load"):
        row = data_row(form, form.inst.get("vdst"))
        address, place = _address(form), form.inst.address
        width, count = access.width, access.count

        def load(w: Waves) -> None:
            words = w.around.lds.load(w, address(w), width, count, place)
            write_loaded(w, access, row(w), words)

        return load
    if access is not None and verb in ("write", "store"):
        row = data_row(form, form.inst.get("data0"))
        address, place = _address(form), form.inst.address

        def store(w: Waves) -> None:
            words = stored_words(w, access, row(w))
            w.around.lds.store(w, address(w), access.width, words, place)

        return store
    atomic = atomics.parse_atomic(name)
    return None if atomic is None else _atomic(form, atomic, "_rtn" in name)


def _address(form: Form) -> Callable[[Waves], Array]:
    inst = form.inst
    register = inst.get("addr")
    offset = np.int64(inst.get("offset1") << 8 | inst.get("offset0"))
    return lambda w: w.vgpr[register].astype(np.int64) + offset


def _two_addresses(form: Form, name: str) -> Step | None:
    """read2, write2 and their stride-64 forms: two offsets in units of the element."""
    renamed = name.replace("load_2addr", "read2").replace("store_2addr", "write2")
    renamed = renamed.replace("_stride64", "st64")
    verb, _, suffix = renamed.partition("_")
    if verb.removesuffix("st64") not in ("read2", "write2") or suffix not in ("b32", "b64"):
        return None
    inst = form.inst
    words = 1 if suffix == "b32" else 2
    unit = 4 * words * (64 if verb.endswith("st64") else 1)
    register, place = inst.get("addr"), inst.address
    offsets = [inst.get("offset0") * unit, inst.get("offset1") * unit]
    if verb.startswith("read2"):
        row = data_row(form, inst.get("vdst"))

        def read(w: Waves) -> None:
            base, first = w.vgpr[register].astype(np.int64), row(w)
            loaded = [w.around.lds.load(w, base + off, 4, words, place) for off in offsets]
            for k, word in enumerate(loaded[0] + loaded[1]):
                store_register(w, first + k, word)

        return read
    rows = [data_row(form, inst.get("data0")), data_row(form, inst.get("data1"))]

    def write(w: Waves) -> None:
        base = w.vgpr[register].astype(np.int64)
        for off, row in zip(offsets, rows, strict=True):
            data = [w.vgpr[row(w) + k] for k in range(words)]
            w.around.lds.store(w, base + off, 4, data, place)

    return write


def _atomic(form: Form, atomic: atomics.Atomic, returns: bool) -> Step:
    inst = form.inst
    size = np.dtype(atomic.dtype).itemsize
    address, place = _address(form), inst.address
    rows = [data_row(form, inst.get("data0")), data_row(form, inst.get("data1"))]
    target = data_row(form, inst.get("vdst"))
    # CDNA's compare-and-store takes the comparison first, RDNA's the new value.
    data_first = not form.processor.is_cdna or not atomic.compares

    def step(w: Waves) -> None:
        index = w.around.lds.atomic_index(w, address(w), size, place)
        first, second = rows if data_first else rows[::-1]
        read = pair if size == 8 else _single
        data = read(w, first(w))
        compare = read(w, second(w)) if atomic.compares else None
        before = atomics.apply(atomic, w.around.lds.octets, index, w.exec, data, compare)
        if returns:
            (store_pair if size == 8 else store_register)(w, target(w), before)

    return step


def _single(w: Waves, row: int) -> Array:
    return w.vgpr[row]


def _from_lanes(w: Waves, row: int, source: Array, fetch_inactive: bool = False) -> Array:
    """Each lane's value from the lane `source` (L,) or (W, L); inactive lanes give zero."""
    source = np.broadcast_to(source, (w.count, w.lanes))
    value = np.take_along_axis(w.vgpr[row], source, axis=1)
    if w.exec_full or fetch_inactive:
        return value
    return np.where(np.take_along_axis(w.exec, source, axis=1), value, np.uint32(0))


def _swizzle(form: Form) -> Step:
    inst = form.inst
    offset = inst.get("offset1") << 8 | inst.get("offset0")
    source, target = data_row(form, inst.get("addr")), data_row(form, inst.get("vdst"))

    def step(w: Waves) -> None:
        pattern = lanes.swizzle_pattern(offset, w.lanes)
        store_register(w, target(w), _from_lanes(w, source(w), pattern))

    return step


def _bpermute(form: Form) -> Step:
    inst = form.inst
    address, register = _address(form), inst.get("data0")
    fetch_inactive = "_fi_" in inst.name

    def step(w: Waves) -> None:
        source = (address(w) >> 2) % w.lanes
        store_register(w, inst.get("vdst"), _from_lanes(w, register, source, fetch_inactive))

    return step


def _permute(form: Form) -> Step:
    """Each lane pushes its value to another; the highest lane wins, nothing pushed is zero."""
    inst = form.inst
    address, register = _address(form), inst.get("data0")

    def step(w: Waves) -> None:
        goal = (address(w) >> 2) % w.lanes
        result = np.zeros((w.count, w.lanes), np.uint32)
        for lane in range(w.lanes):
            rows = np.flatnonzero(w.exec[:, lane])
            result[rows, goal[rows, lane]] = w.vgpr[register][rows, lane]
        store_register(w, inst.get("vdst"), result)

    return step


def _add_tid(form: Form) -> Step:
    """LDS at M0 plus offset plus four bytes a lane."""
    inst = form.inst
    offset, place = inst.get("offset1") << 8 | inst.get("offset0"), inst.address
    loads = "read" in inst.name or "load" in inst.name
    row = data_row(form, inst.get("vdst") if loads else inst.get("data0"))

    def step(w: Waves) -> None:
        base = (w.sgpr[:, form.processor.m0] & np.uint32(0xFFFF)).astype(np.int64)[:, None]
        address = base + offset + np.arange(w.lanes) * 4
        if loads:
            store_register(w, row(w), w.around.lds.load(w, address, 4, 1, place)[0])
        else:
            w.around.lds.store(w, address, 4, [w.vgpr[row(w)]], place)

    return step


def _transposed(form: Form) -> Step:
    """ds_read_b*_tr_b*: 16 lanes load a matrix of 16 columns, rows in order of lanes.

    A lane then holds one column: its element j is row j.
    """
    inst = form.inst
    total = int(inst.name.split("_")[2][1:])
    bits = int(inst.name.split("_")[4][1:])
    words, elements = total // 32, total // bits
    address, place = _address(form), inst.address
    row = data_row(form, inst.get("vdst"))

    def step(w: Waves) -> None:
        loaded = w.around.lds.load(w, address(w), 4, words, place)
        # (W, groups, 16 lanes, elements), then rows of 16 columns, then columns.
        octets = np.stack(loaded, axis=-1).view(np.uint8)
        as_bits = np.unpackbits(octets, axis=-1, bitorder="little")
        matrix = as_bits.reshape(w.count, w.lanes // 16, elements, 16, bits)
        columns = np.ascontiguousarray(matrix.transpose(0, 1, 3, 2, 4))
        packed = np.packbits(columns.reshape(w.count, w.lanes, total), axis=-1, bitorder="little")
        result = packed.view(np.uint32)
        for k in range(words):
            store_register(w, row(w) + k, result[:, :, k])

    return step


_BUILDERS: dict[str, Callable[[Form], Step]] = {
    "swizzle_b32": _swizzle,
    "bpermute_b32": _bpermute,
    "bpermute_fi_b32": _bpermute,
    "permute_b32": _permute,
    "read_addtid_b32": _add_tid,
    "load_addtid_b32": _add_tid,
    "write_addtid_b32": _add_tid,
    "store_addtid_b32": _add_tid,
    "read_b64_tr_b4": _transposed,
    "read_b96_tr_b6": _transposed,
    "read_b64_tr_b8": _transposed,
    "read_b64_tr_b16": _transposed,
}
