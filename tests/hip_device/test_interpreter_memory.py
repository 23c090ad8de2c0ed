"""Loads, stores and atomics on global memory, buffers, LDS and scratch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.hip_device.interpreter.assembled import (
    encode,
    execute,
    get_vector,
    half,
    opcode,
    waves,
)
from tests.hip_device.interpreter.lds import LdsRangeError
from tests.hip_device.interpreter.memory import AddressError, GlobalMemory
from tests.hip_device.interpreter.targets import PROCESSORS

from tinygrad.renderer.amd.dsl import NULL, Reg, s, v  # isort: skip

pytestmark = pytest.mark.device

_RANDOM = np.random.default_rng(22)
_PROCESSORS = ["gfx90a", "gfx942", "gfx1100", "gfx1201"]


def _lanes(processor: str) -> int:
    return 64 if PROCESSORS[processor].is_cdna else 32


def _name(processor: str, prefix: str, cdna: str, rdna: str) -> str:
    return f"{prefix}_{cdna if PROCESSORS[processor].is_cdna else rdna}"


def _off(processor: str) -> int:
    return 0x7F if PROCESSORS[processor].is_cdna else 124


def _load(
    processor: str, name: str, target: Reg, address: Reg, offset: int = 0, base: Reg | None = None
) -> Any:
    scalar = _off(processor) if base is None else base
    if processor == "gfx1201":
        return encode(processor, name, vdst=target, vaddr=address, saddr=scalar, ioffset=offset)
    return encode(processor, name, vdst=target, addr=address, saddr=scalar, offset=offset)


def _store(processor: str, name: str, address: Reg, data: Reg, offset: int = 0) -> Any:
    if processor == "gfx1201":
        fields = {"vaddr": address, "vsrc": data, "ioffset": offset}
    else:
        fields = {"addr": address, "data": data, "offset": offset}
    return encode(processor, name, saddr=_off(processor), **fields)


class Arena:
    """Random bytes in tracked memory, and the address of each lane's 16 of them."""

    def __init__(self, processor: str, step: int = 16) -> None:
        lanes = _lanes(processor)
        self.octets = _RANDOM.integers(0, 256, 2 * lanes * step, dtype=np.uint8)
        self.before = self.octets.copy()
        self.memory = GlobalMemory()
        self.memory.add_array(self.octets, "the arena")
        self.offset = (np.arange(2 * lanes) * step).reshape(2, lanes)
        self.address = (self.octets.ctypes.data + self.offset).astype(np.uint64)

    def at(self, extra: int, dtype: Any) -> np.ndarray:
        """The numbers (2, L) that lie `extra` bytes into each lane's part."""
        size = np.dtype(dtype).itemsize
        index = (self.offset + extra)[..., None] + np.arange(size)
        return self.octets[index].view(dtype)[..., 0]


@pytest.mark.parametrize("processor", _PROCESSORS)
def test_global_loads_of_every_width(processor: str) -> None:
    arena = Arena(processor)
    for cdna, rdna, dtype in (
        ("ubyte", "u8", np.uint8),
        ("sbyte", "i8", np.int8),
        ("ushort", "u16", np.uint16),
        ("sshort", "i16", np.int16),
        ("dword", "b32", np.uint32),
        ("dwordx2", "b64", np.uint64),
    ):
        w = waves(processor, vector={2: arena.address}, memory=arena.memory)
        name = _name(processor, "global_load", cdna, rdna)
        wide = np.dtype(dtype).itemsize == 8
        execute(processor, w, [_load(processor, name, v[4:5] if wide else v[4], v[2:3], 4)])
        expected = arena.at(4, dtype)
        if wide:
            np.testing.assert_array_equal(get_vector(w, 4, np.uint64), expected)
        else:
            np.testing.assert_array_equal(w.vgpr[4], expected.astype(np.int64).astype(np.uint32))
    w = waves(processor, vector={2: arena.address}, memory=arena.memory)
    name = _name(processor, "global_load", "dwordx4", "b128")
    execute(processor, w, [_load(processor, name, v[4:7], v[2:3])])
    for k in range(4):
        np.testing.assert_array_equal(w.vgpr[4 + k], arena.at(4 * k, np.uint32))


@pytest.mark.parametrize("processor", _PROCESSORS)
def test_d16_loads_keep_the_other_half(processor: str) -> None:
    arena = Arena(processor)
    old = np.full((2, _lanes(processor)), 0x11112222, np.uint32)
    w = waves(processor, vector={2: arena.address, 4: old, 5: old}, memory=arena.memory)
    low = _name(processor, "global_load", "short_d16", "d16_b16")
    high = _name(processor, "global_load", "short_d16_hi", "d16_hi_b16")
    execute(
        processor,
        w,
        [_load(processor, low, v[4], v[2:3], 2), _load(processor, high, v[5], v[2:3], 6)],
    )
    np.testing.assert_array_equal(half(w, 4, dtype=np.uint16), arena.at(2, np.uint16))
    np.testing.assert_array_equal(half(w, 5, high=True, dtype=np.uint16), arena.at(6, np.uint16))
    assert (half(w, 4, high=True, dtype=np.uint16) == 0x1111).all()
    assert (half(w, 5, dtype=np.uint16) == 0x2222).all()


@pytest.mark.parametrize("processor", _PROCESSORS)
@pytest.mark.parametrize("extra", [0, 1, 2])
def test_stores_write_their_bytes_alone(processor: str, extra: int) -> None:
    """Sub-dword stores leave their neighbours, inactive lanes everything; alignment is free."""
    active = np.arange(_lanes(processor)) % 3 != 0
    data = _RANDOM.integers(0, 1 << 32, (2, _lanes(processor)), dtype=np.uint32)
    for cdna, rdna, size, shift in (
        ("byte", "b8", 1, 0),
        ("short", "b16", 2, 0),
        ("short_d16_hi", "d16_hi_b16", 2, 16),
        ("dword", "b32", 4, 0),
    ):
        arena = Arena(processor)
        w = waves(
            processor, vector={2: arena.address, 4: data}, exec_mask=active, memory=arena.memory
        )
        name = _name(processor, "global_store", cdna, rdna)
        execute(processor, w, [_store(processor, name, v[2:3], v[4], 4 + extra)])
        expected = arena.before.copy()
        for row, lane in np.argwhere(np.broadcast_to(active, data.shape)):
            at = int(arena.offset[row, lane]) + 4 + extra
            value = int(data[row, lane]) >> shift
            expected[at : at + size] = list(value.to_bytes(8, "little")[:size])
        np.testing.assert_array_equal(arena.octets, expected)


@pytest.mark.parametrize("processor", _PROCESSORS)
def test_scalar_base_and_negative_offset(processor: str) -> None:
    arena = Arena(processor)
    base = arena.octets.ctypes.data
    w = waves(
        processor,
        vector={2: arena.offset.astype(np.uint32)},
        scalar={8: base + 8},
        memory=arena.memory,
    )
    name = _name(processor, "global_load", "dword", "b32")
    execute(processor, w, [_load(processor, name, v[4], v[2], -8, base=s[8])])
    np.testing.assert_array_equal(w.vgpr[4], arena.at(0, np.uint32))


@pytest.mark.parametrize("processor", ["gfx942", "gfx1201"])
def test_an_access_outside_is_a_fault_with_its_lane(processor: str) -> None:
    arena = Arena(processor)
    address = arena.address.copy()
    address[1, 7] = arena.octets.ctypes.data + arena.octets.nbytes - 2
    w = waves(processor, vector={2: address}, memory=arena.memory)
    name = _name(processor, "global_load", "dword", "b32")
    with pytest.raises(AddressError, match="at the end of the arena") as caught:
        execute(processor, w, [_load(processor, name, v[4], v[2:3])])
    assert caught.value.where == (1, 7)
    # A lane that is not active may hold any address.
    active = np.ones(address.shape, bool)
    active[1, 7] = False
    w = waves(processor, vector={2: address}, exec_mask=active, memory=arena.memory)
    execute(processor, w, [_load(processor, name, v[4], v[2:3])])


def test_accesses_to_several_allocations_at_once() -> None:
    parts = [np.arange(64, dtype=np.uint32) + 1000 * k for k in range(3)]
    memory = GlobalMemory()
    for k, part in enumerate(parts):
        memory.add_array(part, f"part {k}")
    which = np.arange(128).reshape(2, 64) % 3
    base = np.array([p.ctypes.data for p in parts], np.uint64)[which]
    w = waves("gfx942", vector={2: base + np.arange(64, dtype=np.uint64) * 4}, memory=memory)
    execute("gfx942", w, [_load("gfx942", "global_load_dword", v[4], v[2])])
    np.testing.assert_array_equal(w.vgpr[4], np.arange(64) + 1000 * which)


def _atomic(processor: str, name: str) -> Any:
    if processor == "gfx1201":
        fields = {"vaddr": v[2], "vsrc": v[4], "th": 1}
    else:
        fields = {"addr": v[2], "data": v[4]}
        fields["sc0" if PROCESSORS[processor].is_cdna else "glc"] = 1
    return encode(processor, name, vdst=v[6], saddr=_off(processor), **fields)


@pytest.mark.parametrize("processor", _PROCESSORS)
def test_atomics_see_every_lane(processor: str) -> None:
    """All lanes add to one number: each gets a different old value."""
    lanes = _lanes(processor)
    cell = np.array([5], np.uint32)
    memory = GlobalMemory()
    memory.add_array(cell, "the cell")
    address = np.full((2, lanes), cell.ctypes.data, np.uint64)
    ones = np.ones((2, lanes), np.uint32)
    w = waves(processor, vector={2: address, 4: ones}, memory=memory)
    cdna = PROCESSORS[processor].is_cdna
    execute(processor, w, [_atomic(processor, "global_atomic_add" + ("" if cdna else "_u32"))])
    assert int(cell[0]) == 5 + 2 * lanes
    assert sorted(w.vgpr[6].ravel()) == list(range(5, 5 + 2 * lanes))
    numbers = np.arange(2 * lanes, dtype=np.float32).reshape(2, lanes)
    cell.view(np.float32)[0] = 0.5
    w = waves(processor, vector={2: address, 4: numbers}, memory=memory)
    execute(processor, w, [_atomic(processor, "global_atomic_add_f32")])
    assert cell.view(np.float32)[0] == numbers.sum() + 0.5


# Buffers


def _buffer(processor: str, name: str, **fields: Any) -> Any:
    if processor == "gfx1201":
        offset = fields.pop("offset", 0)
        return opcode(processor, name)(
            vdata=fields.pop("vdata"), vaddr=v[2], rsrc=8, soffset=s[4], ioffset=offset, **fields
        )
    return opcode(processor, name)(vaddr=v[2], srsrc=s[8:11], soffset=s[4], **fields)


def _descriptor(base: int, size: int, stride: int = 0) -> dict[int, int]:
    return {8: base & 0xFFFFFFFF, 9: base >> 32 | stride << 16, 10: size, 11: 0x27000, 4: 8}


@pytest.mark.parametrize("processor", _PROCESSORS)
def test_buffer_bounds(processor: str) -> None:
    """Outside the descriptor's bytes loads give zero and stores do nothing: word by word."""
    arena = Arena(processor)
    lanes = _lanes(processor)
    limit = int(arena.offset[1, lanes // 2]) + 12
    scalar = _descriptor(arena.octets.ctypes.data, limit)
    offsets = arena.offset.astype(np.uint32)
    name = "buffer_load_dwordx2" if PROCESSORS[processor].is_cdna else "buffer_load_b64"
    w = waves(processor, vector={2: offsets}, scalar=scalar, memory=arena.memory)
    execute(processor, w, [_buffer(processor, name, vdata=v[4:5], offen=1)])
    for k in range(2):
        inside = arena.offset + 8 + 4 * k + 4 <= limit
        expected = np.where(inside, arena.at(8 + 4 * k, np.uint32), 0)
        np.testing.assert_array_equal(w.vgpr[4 + k], expected)
    name = "buffer_store_short" if PROCESSORS[processor].is_cdna else "buffer_store_b16"
    data = np.full((2, lanes), 0xABCD1234, np.uint32)
    w = waves(processor, vector={2: offsets, 4: data}, scalar=scalar, memory=arena.memory)
    execute(processor, w, [_buffer(processor, name, vdata=v[4], offen=1, offset=2)])
    inside = arena.offset + 10 + 2 <= limit
    expected = arena.before.copy()
    for at in (arena.offset + 10)[inside]:
        expected[at : at + 2] = [0x34, 0x12]
    np.testing.assert_array_equal(arena.octets, expected)


@pytest.mark.parametrize("processor", ["gfx942", "gfx1201"])
def test_structured_buffers_use_the_stride(processor: str) -> None:
    arena = Arena(processor)
    lanes = _lanes(processor)
    scalar = {**_descriptor(arena.octets.ctypes.data, lanes + 3, 16), 4: 0}
    index = np.arange(2 * lanes, dtype=np.uint32).reshape(2, lanes)
    name = "buffer_load_dword" if PROCESSORS[processor].is_cdna else "buffer_load_b32"
    w = waves(processor, vector={2: index}, scalar=scalar, memory=arena.memory)
    execute(processor, w, [_buffer(processor, name, vdata=v[4], idxen=1, offset=4)])
    expected = np.where(index < lanes + 3, arena.at(4, np.uint32), 0)
    np.testing.assert_array_equal(w.vgpr[4], expected)


@pytest.mark.parametrize("processor", ["gfx90a", "gfx950"])
def test_buffer_load_straight_to_lds(processor: str) -> None:
    arena = Arena(processor)
    scalar = {**_descriptor(arena.octets.ctypes.data, arena.octets.nbytes), 4: 0, 124: 256}
    offsets = arena.offset.astype(np.uint32)
    vector = {2: offsets[:1]}
    w = waves(processor, vector=vector, scalar=scalar, memory=arena.memory, lds_size=1024, count=1)
    load = _buffer(processor, "buffer_load_dword", vdata=v[0], offen=1, lds=1, offset=4)
    execute(processor, w, [load])
    found = w.around.lds.octets.view(np.uint32)[(256 + 4) // 4 :][:64]
    np.testing.assert_array_equal(found, arena.at(4, np.uint32)[0])


# Scalar loads


@pytest.mark.parametrize("processor", _PROCESSORS)
def test_scalar_loads(processor: str) -> None:
    data = _RANDOM.integers(0, 1 << 32, 32, dtype=np.uint32)
    memory = GlobalMemory()
    memory.add_array(data, "constants")
    w = waves(processor, scalar={4: data.ctypes.data}, memory=memory)
    name = opcode(processor, _name(processor, "s_load", "dwordx4", "b128"))
    if PROCESSORS[processor].is_cdna:
        load = name(sdata=s[8:11], sbase=s[4:5], offset=12, imm=1)
    elif processor == "gfx1100":
        load = name(sdata=s[8:11], sbase=s[4:5], offset=12, soffset=NULL)
    else:
        load = name(sdata=s[8:11], sbase=s[4:5], ioffset=12, soffset=NULL)
    execute(processor, w, [load])
    np.testing.assert_array_equal(w.sgpr[:, 8:12], np.broadcast_to(data[3:7], (2, 4)))


# LDS


def _lds_name(processor: str, verb: str, suffix: str) -> Any:
    names = {"load": "read", "store": "write"}
    verb = names[verb] if PROCESSORS[processor].is_cdna else verb
    return opcode(processor, f"ds_{verb}_{suffix}")


@pytest.mark.parametrize("processor", _PROCESSORS)
def test_lds_round_trip(processor: str) -> None:
    lanes = _lanes(processor)
    data = {4 + k: _RANDOM.integers(0, 1 << 32, (1, lanes), dtype=np.uint32) for k in range(4)}
    place = (np.random.default_rng(3).permutation(lanes) * 16).astype(np.uint32)
    w = waves(processor, vector={2: place, **data}, count=1, lds_size=16 * lanes + 16)
    execute(
        processor,
        w,
        [
            _lds_name(processor, "store", "b128")(addr=v[2], data0=v[4:7], offset0=16),
            _lds_name(processor, "load", "b128")(vdst=v[8:11], addr=v[2], offset0=16),
            _lds_name(processor, "load", "u16")(vdst=v[12], addr=v[2], offset0=18),
            _lds_name(processor, "load", "i8")(vdst=v[13], addr=v[2], offset0=19),
            _lds_name(processor, "store", "b16")(addr=v[2], data0=v[5], offset0=16),
            _lds_name(processor, "load", "b32")(vdst=v[14], addr=v[2], offset0=16),
        ],
    )
    for k in range(4):
        np.testing.assert_array_equal(w.vgpr[8 + k], data[4 + k])
    np.testing.assert_array_equal(w.vgpr[12], data[4] >> 16)
    octet = (data[4] >> 24).astype(np.int8).astype(np.int32).view(np.uint32)
    np.testing.assert_array_equal(w.vgpr[13], octet)
    np.testing.assert_array_equal(w.vgpr[14], (data[4] & 0xFFFF0000) | (data[5] & 0xFFFF))


@pytest.mark.parametrize("processor", ["gfx90a", "gfx1100"])
def test_lds_pairs(processor: str) -> None:
    lanes = _lanes(processor)
    content = np.arange(1024, dtype=np.uint32)
    place = (np.arange(lanes) * 8).astype(np.uint32)
    w = waves(processor, vector={2: place}, count=1, lds=content)
    cdna = PROCESSORS[processor].is_cdna
    two = opcode(processor, "ds_read2_b64" if cdna else "ds_load_2addr_b64")
    far = opcode(processor, "ds_read2st64_b32" if cdna else "ds_load_2addr_stride64_b32")
    execute(
        processor,
        w,
        [two(v[4:7], v[2], offset0=1, offset1=3), far(v[8:9], v[2], offset0=0, offset1=2)],
    )
    word = np.arange(lanes) * 2
    for k, extra in enumerate((2, 3, 6, 7)):
        np.testing.assert_array_equal(w.vgpr[4 + k][0], word + extra)
    np.testing.assert_array_equal(w.vgpr[9][0], word + 128)


@pytest.mark.parametrize("processor", ["gfx942", "gfx1201"])
def test_lds_atomics(processor: str) -> None:
    lanes = _lanes(processor)
    w = waves(
        processor,
        vector={2: np.zeros(lanes, np.uint32), 4: np.full(lanes, 2, np.uint32)},
        lds=np.array([10, 0, 0, 0], np.uint32),
    )
    add = opcode(processor, "ds_add_rtn_u32")
    execute(processor, w, [add(v[6], v[2], v[4])])
    assert int(w.around.lds.octets.view(np.uint32)[0]) == 10 + 4 * lanes
    assert sorted(w.vgpr[6].ravel()) == list(range(10, 10 + 4 * lanes, 2))


def test_lds_bounds() -> None:
    place = np.arange(64, dtype=np.uint32) * 4
    w = waves("gfx942", vector={2: place}, count=1, lds_size=252)
    with pytest.raises(LdsRangeError, match="LDS address 252 of 252"):
        execute("gfx942", w, [opcode("gfx942", "ds_read_b32")(v[4], v[2])])


@pytest.mark.parametrize(("bits", "size"), [(16, 64), (8, 64), (4, 64), (6, 96)])
def test_transposed_reads(bits: int, size: int) -> None:
    """By FlyDSL's layouts of the copy atom `cdna4.lds_read_trans`, in bits of 16 lanes.

    Lane t brings bits t * size on; bit b of its element k is then bit t * bits + k * 16 * bits + b
    of those of all.
    """
    octets = _RANDOM.integers(0, 256, 64 * size // 8, dtype=np.uint8)
    place = (np.arange(64) * (size // 8)).astype(np.uint32)
    w = waves("gfx950", vector={2: place}, count=1, lds=octets)
    execute(
        "gfx950", w, [opcode("gfx950", f"ds_read_b{size}_tr_b{bits}")(v[4 : 3 + size // 32], v[2])]
    )
    given = np.unpackbits(octets, bitorder="little").reshape(4, 16 * size)
    for lane in range(64):
        words = [int(w.vgpr[4 + word][0, lane]) for word in range(size // 32)]
        for at in range(size):
            source = lane % 16 * bits + at // bits * 16 * bits + at % bits
            assert words[at // 32] >> at % 32 & 1 == given[lane // 16, source]


# Scratch and flat


@pytest.mark.parametrize("processor", ["gfx942", "gfx1100", "gfx1201"])
def test_scratch_belongs_to_the_lane(processor: str) -> None:
    lanes = _lanes(processor)
    data = _RANDOM.integers(0, 1 << 32, (2, lanes), dtype=np.uint32)
    w = waves(processor, vector={4: data})
    w.scratch = np.zeros((2, lanes, 64), np.uint8)
    store = _name(processor, "scratch_store", "dword", "b32")
    load = _name(processor, "scratch_load", "dword", "b32")
    first = _store(processor, store, v[0], v[4], 20)
    second = _load(processor, load, v[5], v[0], 20)
    execute(processor, w, [first, second])
    np.testing.assert_array_equal(w.vgpr[5], data)
    np.testing.assert_array_equal(w.scratch[:, :, 20:24].view(np.uint32)[..., 0], data)


def test_flat_addresses_reach_lds() -> None:
    arena = Arena("gfx942")
    address = arena.address.copy()
    base = 0x5ACE0001 << 32
    address[0, ::2] = base + np.arange(32) * 4
    w = waves(
        "gfx942", vector={2: address}, memory=arena.memory, lds=np.arange(32, dtype=np.uint32)
    )
    execute("gfx942", w, [encode("gfx942", "flat_load_dword", vdst=v[4], addr=v[2])])
    expected = arena.at(0, np.uint32).copy()
    expected[0, ::2] = np.arange(32)
    np.testing.assert_array_equal(w.vgpr[4], expected)
