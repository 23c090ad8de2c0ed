"""Global, flat, scratch and buffer accesses, and loads from them straight into LDS."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.hip_device.interpreter import atomics
from tests.hip_device.interpreter.accesses import (
    Access,
    data_row,
    extended,
    parse_access,
    stored_words,
    write_loaded,
)
from tests.hip_device.interpreter.memory import AddressError
from tests.hip_device.interpreter.octets import gather, scatter
from tests.hip_device.interpreter.operands import (
    PRIVATE_APERTURE,
    SHARED_APERTURE,
    Form,
    Read,
    pair,
    scalar_source,
    store_pair,
    store_register,
)
from tests.hip_device.interpreter.state import Step, Waves
from tests.hip_device.interpreter.values import U32, U64, Array

Addresses = Callable[[Waves], tuple[Array, Array]]  # addresses (W, L) uint64, active lanes (W, L)
Load = Callable[[Waves, int, int], list[Array]]  # words of (width, count) of the active lanes
Store = Callable[[Waves, int, list[Array]], None]

_CDNA_OFF = 0x7F
# The base of the buffer descriptor that gfx90a gets for scratch.
SCRATCH_BASE = 0x5ACE_0003_0000


def _signed(value: int, bits: int) -> int:
    return value - (value >> (bits - 1) << bits)


def _offset(form: Form) -> int:
    """The immediate byte offset."""
    inst = form.inst
    if "ioffset" in inst.fields:
        return _signed(inst.get("ioffset"), 24)
    if inst.encoding == "MUBUF" or (inst.encoding == "FLAT" and form.processor.is_cdna):
        return inst.get("offset")
    return _signed(inst.get("offset"), 13)


def _scalar_base(form: Form) -> int | None:
    """The register of the scalar address; None if it is off."""
    code = form.inst.get("saddr")
    off = _CDNA_OFF if form.processor.is_cdna else form.processor.null
    return None if code == off else code


def _vector_address(form: Form) -> int:
    inst = form.inst
    return inst.get("vaddr") if "vaddr" in inst.fields else inst.get("addr")


def _active(w: Waves) -> Array | None:
    return None if w.exec_full else w.exec


def _global_addresses(form: Form) -> Read:
    register, offset = _vector_address(form), np.int64(_offset(form)).view(np.uint64)
    scalar = _scalar_base(form)
    if scalar is None or (form.inst.encoding == "FLAT" and form.processor.family != "rdna4"):
        return lambda w: pair(w, register) + offset
    base = scalar_source(form, scalar, U64)
    return lambda w: w.vgpr[register] + (base(w) + offset)[:, None]


# Global and flat


def build(form: Form) -> Step | None:
    """The step of a GLOBAL, FLAT, SCRATCH or MUBUF instruction; None if it is not known."""
    inst = form.inst
    prefix, _, rest = inst.name.partition("_")
    if inst.name in _CACHE_CONTROL:
        return lambda w: None
    verb, _, suffix = rest.partition("_")
    access = _access_of(prefix, verb)
    if prefix == "buffer":
        return _build_buffer(form, verb, suffix)
    if verb == "atomic":
        return _build_atomic(form, suffix, prefix == "flat")
    if suffix.startswith("lds_"):
        found = parse_access(suffix.removeprefix("lds_"))
        return None if found is None else _global_to_lds(form, found)
    found = parse_access(suffix)
    if found is None or access is None:
        return None
    load, store = access(form)
    return _load_step(form, found, load) if verb == "load" else _store_step(form, found, store)


_CACHE_CONTROL = frozenset(
    {
        "buffer_gl0_inv", "buffer_gl1_inv", "buffer_inv", "buffer_wbl2", "buffer_wbinvl1",
        "buffer_wbinvl1_vol", "global_inv", "global_wb", "global_wbinv",
    }
)  # fmt: skip


def _access_of(prefix: str, verb: str) -> Callable[[Form], tuple[Load, Store]] | None:
    if verb not in ("load", "store"):
        return None
    return {"global": _global_access, "flat": _flat_access, "scratch": _scratch_access}.get(prefix)


def _load_step(form: Form, access: Access, load: Load) -> Step:
    row = data_row(form, form.inst.get("vdst"))
    width, count = access.width, access.count
    return lambda w: write_loaded(w, access, row(w), load(w, width, count))


def _store_step(form: Form, access: Access, store: Store) -> Step:
    inst = form.inst
    row = data_row(form, inst.get("vsrc") if "vsrc" in inst.fields else inst.get("data"))
    width = access.width
    return lambda w: store(w, width, stored_words(w, access, row(w)))


def _global_access(form: Form) -> tuple[Load, Store]:
    addresses = _global_addresses(form)

    def load(w: Waves, width: int, count: int) -> list[Array]:
        return w.around.memory.load(addresses(w), _active(w), width, count)

    def store(w: Waves, width: int, words: list[Array]) -> None:
        w.around.memory.store(addresses(w), _active(w), width, words)

    return load, store


def _flat_access(form: Form) -> tuple[Load, Store]:
    """Flat addresses reach LDS and scratch through their apertures."""
    addresses = _global_addresses(form)
    place = form.inst.address

    def in_aperture(address: Array, aperture: int) -> Array:
        return address >> np.uint64(32) == np.uint64(aperture >> 32)

    def load(w: Waves, width: int, count: int) -> list[Array]:
        address = addresses(w)
        shared = in_aperture(address, SHARED_APERTURE) & w.exec
        private = in_aperture(address, PRIVATE_APERTURE) & w.exec
        if not shared.any() and not private.any():
            return w.around.memory.load(address, _active(w), width, count)
        low = address & np.uint64(0xFFFFFFFF)
        result = w.around.memory.load(address, w.exec & ~shared & ~private, width, count)
        if shared.any():
            with _Lanes(w, shared):
                parts = w.around.lds.load(w, low, width, count, place)
            result = [np.where(shared, p, r) for p, r in zip(parts, result, strict=True)]
        if private.any():
            parts = _scratch_load(w, low.astype(np.int64), private, width, count)
            result = [np.where(private, p, r) for p, r in zip(parts, result, strict=True)]
        return result

    def store(w: Waves, width: int, words: list[Array]) -> None:
        address = addresses(w)
        shared = in_aperture(address, SHARED_APERTURE) & w.exec
        private = in_aperture(address, PRIVATE_APERTURE) & w.exec
        low = address & np.uint64(0xFFFFFFFF)
        if shared.any():
            with _Lanes(w, shared):
                w.around.lds.store(w, low, width, words, place)
        if private.any():
            _scratch_store(w, low.astype(np.int64), private, width, words)
        w.around.memory.store(address, w.exec & ~shared & ~private, width, words)

    return load, store


class _Lanes:
    """Narrows EXEC for the time of one access."""

    def __init__(self, w: Waves, mask: Array) -> None:
        self._w, self._mask = w, mask

    def __enter__(self) -> None:
        w = self._w
        self._before = w.exec, w.exec_full
        w.exec, w.exec_full = self._mask, False

    def __exit__(self, *_: object) -> None:
        self._w.exec, self._w.exec_full = self._before


# Scratch


def _scratch_index(w: Waves, offset: Array, mask: Array, size: int) -> Array:
    """Byte positions in the waves' scratch memory; each lane has its own."""
    per_lane = w.scratch.shape[2]
    outside = ((offset < 0) | (offset + size > per_lane)) & mask
    if outside.any():
        where = tuple(int(i) for i in np.argwhere(outside)[0])
        raise AddressError(
            int(offset[where]), size, where, f"outside the lane's {per_lane} bytes of scratch"
        )
    lane = np.arange(w.count * w.lanes).reshape(w.count, w.lanes)
    return lane * per_lane + np.where(mask, offset, 0)


def _scratch_load(w: Waves, offset: Array, mask: Array, width: int, count: int) -> list[Array]:
    if not mask.any():
        return [np.zeros(mask.shape, np.uint32) for _ in range(count)]
    index = _scratch_index(w, offset, mask, width * count)
    return gather(w.scratch.reshape(-1), index, width, count)


def _scratch_store(w: Waves, offset: Array, mask: Array, width: int, words: list[Array]) -> None:
    if mask.any():
        index = _scratch_index(w, offset, mask, width * len(words))[mask]
        scatter(w.scratch.reshape(-1), index, width, [word[mask] for word in words])


def _scratch_access(form: Form) -> tuple[Load, Store]:
    inst = form.inst
    scalar, register, constant = _scalar_base(form), _vector_address(form), _offset(form)
    if not form.processor.flat_scratch_architected:
        raise form.unsupported(f"scratch memory on {form.processor.name}")
    base = None if scalar is None else scalar_source(form, scalar, U32)
    uses_vector = bool(inst.get("sve"))

    def offsets(w: Waves) -> Array:
        offset = np.full((w.count, w.lanes), constant, np.int64)
        if base is not None:
            offset += base(w).view(np.int32)[:, None]
        if uses_vector:
            offset += w.i32[register]
        return offset

    return (
        lambda w, width, count: _scratch_load(w, offsets(w), w.exec, width, count),
        lambda w, width, words: _scratch_store(w, offsets(w), w.exec, width, words),
    )


# Atomics


def _returns(form: Form) -> bool:
    inst = form.inst
    if form.processor.family == "rdna4":
        return bool(inst.get("th") & 1)
    return bool(inst.get("sc0") if form.processor.is_cdna else inst.get("glc"))


def _atomic_operands(w: Waves, atomic: atomics.Atomic, row: int) -> tuple[Array, Array | None]:
    """Data, and what to compare with: it follows the data."""
    if np.dtype(atomic.dtype).itemsize == 8:
        return pair(w, row), pair(w, row + 2) if atomic.compares else None
    return w.vgpr[row], w.vgpr[row + 1] if atomic.compares else None


def run_atomic(
    w: Waves, atomic: atomics.Atomic, address: Array, mask: Array, data_row: int
) -> Array:
    """An atomic on global memory; gives the old values (W, L)."""
    data, compare = _atomic_operands(w, atomic, data_row)
    size = np.dtype(atomic.dtype).itemsize
    before = np.zeros(address.shape, np.uint64 if size == 8 else np.uint32)
    for octets, index, here in w.around.memory.cells(address, mask, size):
        before[here] = atomics.apply(atomic, octets, index, here, data, compare)[here]
    return before


def _build_atomic(form: Form, suffix: str, flat: bool) -> Step | None:
    atomic = atomics.parse_atomic(suffix)
    if atomic is None:
        return None
    inst = form.inst
    addresses = _global_addresses(form)
    source = data_row(form, inst.get("vsrc") if "vsrc" in inst.fields else inst.get("data"))
    target, returns = data_row(form, inst.get("vdst")), _returns(form)
    wide = np.dtype(atomic.dtype).itemsize == 8

    def step(w: Waves) -> None:
        address = addresses(w)
        if flat and (address >> np.uint64(33) == np.uint64(SHARED_APERTURE >> 33))[w.exec].any():
            raise form.unsupported("a flat atomic on LDS or scratch")
        before = run_atomic(w, atomic, address, w.exec, source(w))
        if returns:
            (store_pair if wide else store_register)(w, target(w), before)

    return step


# Loads into LDS


def _lds_target(w: Waves, form: Form, access: Access, offset: int) -> Array:
    """LDS addresses of a direct load: M0, the offset, and one slot a lane."""
    base = (w.sgpr[:, form.processor.m0] & np.uint32(0xFFFF)).astype(np.int64)
    slot = max(access.size, 4)
    return base[:, None] + offset + np.arange(w.lanes) * slot


def _global_to_lds(form: Form, access: Access) -> Step:
    addresses, offset, place = _global_addresses(form), _offset(form), form.inst.address

    def step(w: Waves) -> None:
        words = w.around.memory.load(addresses(w), _active(w), access.width, access.count)
        words = [extended(access, word) for word in words]
        w.around.lds.store(w, _lds_target(w, form, access, offset), 4, words, place)

    return step


# Buffers


class _Descriptor:
    """The fields of a buffer resource descriptor, (W, 1) each."""

    def __init__(self, w: Waves, register: int) -> None:
        words = [w.sgpr[:, register + k][:, None].astype(np.int64) for k in range(4)]
        self.base = words[0] | (words[1] & 0xFFFF) << 32
        self.stride = words[1] >> 16 & 0x3FFF
        self.swizzled = (words[1] >> 30).any()
        self.records = words[2]
        self.flags = words[3]


def _build_buffer(form: Form, verb: str, suffix: str) -> Step | None:
    inst = form.inst
    if verb == "atomic":
        atomic = atomics.parse_atomic(suffix)
        if atomic is None:
            return None
        return _buffer_atomic(form, atomic)
    access = parse_access(suffix)
    if access is None or verb not in ("load", "store"):
        return None
    if inst.get("tfe"):
        raise form.unsupported("TFE")
    row = data_row(form, inst.get("vdata"))
    addresses = _buffer_addresses(form, access.width, access.count)
    if verb == "load" and inst.get("lds"):
        return _buffer_to_lds(form, access, addresses)
    if verb == "load":
        return lambda w: write_loaded(w, access, row(w), _buffer_load(w, access, addresses(w)))
    return lambda w: _buffer_store(w, access, addresses(w), stored_words(w, access, row(w)))


def _buffer_register(form: Form) -> int:
    inst = form.inst
    return inst.get("rsrc") if "rsrc" in inst.fields else inst.get("srsrc") << 2


BufferAddresses = Callable[[Waves], tuple[Array, list[Array], bool]]


def _buffer_addresses(form: Form, width: int, count: int) -> BufferAddresses:
    """Addresses (W, L), for each word the lanes that are in bounds, and whether it is scratch.

    A raw buffer (stride 0, or no index) bounds each word by its bytes; a structured one bounds the
    index by the number of records, and the offset by the stride.
    """
    inst = form.inst
    register, constant = _buffer_register(form), _offset(form)
    vector = inst.get("vaddr")
    scalar = scalar_source(form, inst.get("soffset"), U32)
    indexed, offset_given = bool(inst.get("idxen")), bool(inst.get("offen"))

    def addresses(w: Waves) -> tuple[Array, list[Array], bool]:
        descriptor = _Descriptor(w, register)
        scalar_offset = scalar(w).astype(np.int64)[:, None]
        offset = np.full((w.count, w.lanes), constant, np.int64)
        if offset_given:
            offset += w.vgpr[vector + int(indexed)]
        if (descriptor.base == SCRATCH_BASE).all():
            return (offset + scalar_offset).view(np.uint64), [w.exec] * count, True
        if descriptor.swizzled or ((descriptor.flags >> 23 & 1).any() and form.processor.is_cdna):
            raise form.unsupported("a swizzled buffer")
        index = w.vgpr[vector].astype(np.int64) if indexed else np.zeros_like(offset)
        structured = indexed & (descriptor.stride > 0)
        inside = []
        for k in range(count):
            end = offset + (k + 1) * width
            raw_ok = end + scalar_offset <= descriptor.records
            structured_ok = (index < descriptor.records) & (end <= descriptor.stride)
            inside.append(np.where(structured, structured_ok, raw_ok) & w.exec)
        address = descriptor.base + index * descriptor.stride + offset + scalar_offset
        return address.view(np.uint64), inside, False

    return addresses


def _buffer_load(w: Waves, access: Access, where: tuple[Array, list[Array], bool]) -> list[Array]:
    address, inside, scratch = where
    if scratch:
        return _scratch_load(w, address.view(np.int64), w.exec, access.width, access.count)
    if bool(inside[-1].all()):
        return w.around.memory.load(address, None, access.width, access.count)
    return [
        w.around.memory.load(address + np.uint64(k * access.width), mask, access.width, 1)[0]
        for k, mask in enumerate(inside)
    ]


def _buffer_store(
    w: Waves, access: Access, where: tuple[Array, list[Array], bool], words: list[Array]
) -> None:
    address, inside, scratch = where
    if scratch:
        _scratch_store(w, address.view(np.int64), w.exec, access.width, words)
        return
    for k, (mask, word) in enumerate(zip(inside, words, strict=True)):
        w.around.memory.store(address + np.uint64(k * access.width), mask, access.width, [word])


def _buffer_to_lds(form: Form, access: Access, addresses: BufferAddresses) -> Step:
    offset, place = _offset(form), form.inst.address

    def step(w: Waves) -> None:
        words = [extended(access, word) for word in _buffer_load(w, access, addresses(w))]
        w.around.lds.store(w, _lds_target(w, form, access, offset), 4, words, place)

    return step


def _buffer_atomic(form: Form, atomic: atomics.Atomic) -> Step:
    inst = form.inst
    size = np.dtype(atomic.dtype).itemsize
    addresses = _buffer_addresses(form, size, 1)
    row, returns = data_row(form, inst.get("vdata")), _returns(form)

    def step(w: Waves) -> None:
        address, (mask,), scratch = addresses(w)
        if scratch:
            raise form.unsupported("an atomic on scratch")
        before = run_atomic(w, atomic, address, mask, row(w))
        if returns:
            (store_pair if size == 8 else store_register)(w, row(w), before)

    return step
