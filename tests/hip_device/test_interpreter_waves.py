"""Waves together: barriers, divergence, schedules, races, poison, and what is told when it fails.

The kernels are assembled by hand; a kernel is a list of instructions, or of labels to jump to.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.hip_device.interpreter.assembled import KEEP_DENORMALS, encode, opcode
from tests.hip_device.interpreter.control import END
from tests.hip_device.interpreter.errors import (
    HangError,
    MemoryFaultError,
    NotModelledError,
    RaceError,
)
from tests.hip_device.interpreter.lds import WorkgroupMemory
from tests.hip_device.interpreter.memory import GlobalMemory
from tests.hip_device.interpreter.program import Program
from tests.hip_device.interpreter.scheduler import ALL_SCHEDULES, Schedule, Scheduler
from tests.hip_device.interpreter.state import POISON, Surroundings, Waves
from tests.hip_device.interpreter.targets import PROCESSORS

from tinygrad.renderer.amd.dsl import s, v  # isort: skip

pytestmark = pytest.mark.device

_WAVES, _GROUPS = 4, 3


class _Assembled:
    """Stands for a code object's image."""

    def __init__(self, code: bytes) -> None:
        self._code = code

    def code(self, address: int, size: int) -> bytes:
        return self._code[address : address + size]


def _run(
    processor: str, instructions: list[Any], schedule: Schedule, *, limit: int = 10_000
) -> tuple[Waves, WorkgroupMemory]:
    """Run a kernel whose v0 is the lane, s0 the wave's number, and v1 the place 4 * workitem.

    Gives the waves as they were at the start, whose registers show what lockstep did.
    """
    lanes = 64 if PROCESSORS[processor].is_cdna else 32
    program = Program(
        _Assembled(b"".join(i.to_bytes() for i in instructions)), PROCESSORS[processor]
    )  # type: ignore[arg-type]
    waves = Waves(_WAVES * _GROUPS, lanes, 16, 16, KEEP_DENORMALS)
    waves.workgroup = np.repeat(np.arange(_GROUPS), _WAVES)
    waves.number = np.tile(np.arange(_WAVES), _GROUPS)
    waves.set_exec(np.ones((waves.count, lanes), bool))
    waves.vgpr[0] = np.arange(lanes)
    waves.sgpr[:, 0] = waves.number
    waves.vgpr[1] = 4 * (waves.number[:, None] * lanes + np.arange(lanes))
    lds = WorkgroupMemory(_GROUPS, 4 * _WAVES * lanes, 4)
    scheduler = Scheduler(program, "kernel", schedule, _GROUPS, _WAVES)
    waves.around = Surroundings(GlobalMemory(), lds, 0, scheduler.arrived)
    scheduler.run(waves, limit)
    return waves, lds


def _store(processor: str, data: int, **fields: Any) -> Any:
    name = "ds_write_b32" if PROCESSORS[processor].is_cdna else "ds_store_b32"
    return encode(processor, name, addr=v[1], data0=v[data], **fields)


def _barrier(processor: str) -> list[Any]:
    if processor == "gfx1201":
        return [
            encode(processor, "s_barrier_signal", ssrc0=193),
            encode(processor, "s_barrier_wait", simm16=0xFFFF),
        ]
    return [encode(processor, "s_barrier")]


def _neighbour(processor: str) -> list[Any]:
    """Read what the next wave wrote: the address wraps around the workgroup."""
    lanes = 64 if PROCESSORS[processor].is_cdna else 32
    add = "v_add_u32_e32" if PROCESSORS[processor].is_cdna else "v_add_nc_u32_e32"
    load = "ds_read_b32" if PROCESSORS[processor].is_cdna else "ds_load_b32"
    return [
        opcode(processor, add)(v[2], 4 * lanes, v[1]),
        opcode(processor, "v_and_b32_e32")(v[2], 4 * lanes * _WAVES - 1, v[2]),
        encode(processor, load, vdst=v[3], addr=v[2]),
    ]


def _end(processor: str) -> Any:
    return encode(processor, "s_endpgm")


_TARGETS = ["gfx90a", "gfx1100", "gfx1201"]


@pytest.mark.parametrize("processor", _TARGETS)
@pytest.mark.parametrize("schedule", ALL_SCHEDULES, ids=str)
def test_a_barrier_orders_waves(processor: str, schedule: Schedule) -> None:
    _, lds = _run(
        processor,
        [
            _store(processor, 1),
            *_barrier(processor),
            *_neighbour(processor),
            *_barrier(processor),
            _store(processor, 3),
            _end(processor),
        ],
        schedule,
    )
    lanes = 64 if PROCESSORS[processor].is_cdna else 32
    found = lds.octets.view(np.uint32).reshape(_GROUPS, _WAVES * lanes)
    expected = np.roll(4 * np.arange(_WAVES * lanes), -lanes)
    np.testing.assert_array_equal(found, np.broadcast_to(expected, found.shape))


@pytest.mark.parametrize("processor", _TARGETS)
@pytest.mark.parametrize("schedule", ALL_SCHEDULES, ids=str)
@pytest.mark.parametrize("missing", ["first", "second"])
def test_a_missing_barrier_is_a_race(processor: str, schedule: Schedule, missing: str) -> None:
    """Read after write without the first barrier, write after read without the second."""
    first = [] if missing == "first" else _barrier(processor)
    second = [] if missing == "second" else _barrier(processor)
    kernel = [
        _store(processor, 1), *first, *_neighbour(processor), *second, _store(processor, 3),
        _end(processor),
    ]  # fmt: skip
    with pytest.raises(RaceError) as caught:
        _run(processor, kernel, schedule)
    message = str(caught.value)
    read, write = ("ds_read", "ds_write") if processor == "gfx90a" else ("ds_load", "ds_store")
    assert f"[{read}" in message
    assert f"[{write}" in message
    assert "no barrier between" in message


@pytest.mark.parametrize("schedule", ALL_SCHEDULES, ids=str)
def test_waves_that_write_one_place_race(schedule: Schedule) -> None:
    """v0 is the lane: all waves write the same 64 bytes."""
    kernel = [encode("gfx942", "ds_write_b32", addr=v[0], data0=v[1], offset0=4), _end("gfx942")]
    with pytest.raises(RaceError, match="write by wave"):
        _run("gfx942", [opcode("gfx942", "v_lshlrev_b32_e32")(v[0], 2, v[0]), *kernel], schedule)


@pytest.mark.parametrize("schedule", ALL_SCHEDULES, ids=str)
def test_atomics_do_not_race(schedule: Schedule) -> None:
    kernel = [
        opcode("gfx942", "v_mov_b32_e32")(v[2], 0),
        encode("gfx942", "ds_and_b32", addr=v[2], data0=v[2]),
        encode("gfx942", "ds_add_u32", addr=v[2], data0=v[0]),
        _end("gfx942"),
    ]
    _run("gfx942", kernel, schedule)


@pytest.mark.parametrize("schedule", ALL_SCHEDULES, ids=str)
def test_waves_part_and_meet_again(schedule: Schedule) -> None:
    """Waves 0 and 1 take a loop as many times as their number; then all write."""
    kernel = [
        opcode("gfx942", "v_mov_b32_e32")(v[3], 0),
        encode("gfx942", "s_cmp_eq_u32", ssrc0=s[0], ssrc1=128),
        encode("gfx942", "s_cbranch_scc1", simm16=3),
        opcode("gfx942", "v_add_u32_e32")(v[3], s[0], v[3]),
        encode("gfx942", "s_sub_u32", sdst=s[0], ssrc0=s[0], ssrc1=129),
        encode("gfx942", "s_branch", simm16=0xFFFF - 5 + 1),
        _store("gfx942", 3),
        _end("gfx942"),
    ]
    _, lds = _run("gfx942", kernel, schedule)
    found = lds.octets.view(np.uint32).reshape(_GROUPS, _WAVES, 64)
    expected = np.array([n * (n + 1) // 2 for n in range(_WAVES)])[None, :, None]
    np.testing.assert_array_equal(found, np.broadcast_to(expected, found.shape))


def test_a_barrier_that_some_never_reach_is_a_hang() -> None:
    """Wave 0 waits twice; the others loop for ever, or end (which counts as arriving)."""
    twice = [
        encode("gfx942", "s_cmp_eq_u32", ssrc0=s[0], ssrc1=128),
        encode("gfx942", "s_cbranch_scc0", simm16=1),
        encode("gfx942", "s_barrier"),
        _end("gfx942"),
    ]
    _run("gfx942", twice, Schedule())
    twice[3] = encode("gfx942", "s_branch", simm16=0xFFFF)
    with pytest.raises(HangError, match="no end in sight"):
        _run("gfx942", twice, Schedule())


def test_a_signal_without_a_wait_is_a_hang() -> None:
    """On RDNA4 waiting without having signalled leaves the barrier incomplete."""
    kernel = [encode("gfx1201", "s_barrier_wait", simm16=0xFFFF), _end("gfx1201")]
    with pytest.raises(HangError, match="waits at a barrier"):
        _run("gfx1201", kernel, Schedule())


def test_what_was_never_written_is_poison() -> None:
    kernel = [
        encode("gfx942", "ds_read_b32", vdst=v[5], addr=v[1]),
        opcode("gfx942", "v_mov_b32_e32")(v[6], v[9]),
        opcode("gfx942", "v_mov_b32_e32")(v[7], s[40]),
        _end("gfx942"),
    ]
    waves, _ = _run("gfx942", kernel, Schedule())
    for register in (5, 6, 7):
        assert (waves.vgpr[register] == POISON).all()
    poison = np.array([POISON, POISON], np.uint32)
    for dtype in (np.float16, np.float32, np.float64):
        assert np.isnan(poison.view(dtype)).all()


def test_a_fault_names_kernel_instruction_wave_and_lane() -> None:
    kernel = [
        opcode("gfx942", "v_mov_b32_e32")(v[2], 0),
        opcode("gfx942", "v_mov_b32_e32")(v[3], 0),
        encode("gfx942", "global_load_dword", vdst=v[4], addr=v[2], saddr=0x7F),
        _end("gfx942"),
    ]
    with pytest.raises(
        MemoryFaultError,
        match=r"kernel: \[global_load_dword .* at 0x8\], workgroup 0, wave 0, lane 0",
    ):
        _run("gfx942", kernel, Schedule())


def test_an_unknown_instruction_is_told_with_its_place() -> None:
    kernel = [encode("gfx942", "s_nop"), encode("gfx942", "s_trap", simm16=2), _end("gfx942")]
    with pytest.raises(NotModelledError, match=r"s_trap .* at 0x4\].*not implemented"):
        _run("gfx942", kernel, Schedule())


def test_code_that_is_no_instruction_is_refused() -> None:
    class Words:
        def to_bytes(self) -> bytes:
            return b"\xff\xff\xff\xff" * 2

    with pytest.raises(NotModelledError, match="no cdna instruction"):
        _run("gfx942", [Words()], Schedule())


def test_an_unknown_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match="'sideways'"):
        Schedule("sideways")
    assert END < 0
