"""Which lane reads from which: DPP controls, SDWA fields, ds_swizzle patterns."""

from __future__ import annotations

import functools

import numpy as np

from tests.hip_device.interpreter.decode import Instruction
from tests.hip_device.interpreter.errors import NotModelledError
from tests.hip_device.interpreter.values import Array

ROW = 16


def sdwa_field(select: int) -> tuple[int, int]:
    """Shift and width in bits of an SDWA selection."""
    if select > 6:
        raise NotModelledError(f"SDWA selection {select} is reserved")
    return {0: (0, 8), 1: (8, 8), 2: (16, 8), 3: (24, 8), 4: (0, 16), 5: (16, 16), 6: (0, 32)}[
        select
    ]


def bound_control(inst: Instruction) -> bool:
    """Whether lanes with no valid source read zero instead of being disabled."""
    return bool(inst.get("bc")) if inst.variant == "DPP16" else True


def dpp_lanes(inst: Instruction, lanes: int) -> Array:
    """For each lane, the lane that source 0 comes from (L,)."""
    return _dpp(inst, lanes)[0]


def dpp_reach(inst: Instruction, lanes: int) -> tuple[Array, Array]:
    """For each lane: whether its source lane exists, and whether the masks enable it."""
    return _dpp(inst, lanes)[1:]


def fetches_inactive(inst: Instruction) -> bool:
    if inst.variant == "DPP16":
        return bool(inst.get("fi"))
    return inst.get("src0") == 234  # DPP8FI


def _dpp(inst: Instruction, lanes: int) -> tuple[Array, Array, Array]:
    if inst.variant == "DPP8":
        selectors = tuple(inst.get(f"lane_sel_{i}") for i in range(8))
        return _dpp8(selectors, lanes)
    rdna = "fi" in inst.fields
    return _dpp16(inst.get("dpp"), inst.get("row_mask"), inst.get("bank_mask"), lanes, rdna)


@functools.cache
def _dpp8(selectors: tuple[int, ...], lanes: int) -> tuple[Array, Array, Array]:
    lane = np.arange(lanes)
    source = (lane & ~7) + np.array(selectors)[lane & 7]
    always = np.ones(lanes, bool)
    return source, always, always


@functools.cache
def _dpp16(
    control: int, row_mask: int, bank_mask: int, lanes: int, rdna: bool
) -> tuple[Array, Array, Array]:
    lane = np.arange(lanes)
    source = dpp_pattern(control, lanes, rdna)
    enabled = (row_mask >> (lane // ROW) & 1 & (bank_mask >> (lane % ROW // 4))).astype(bool)
    return np.where(source < 0, 0, source), source >= 0, enabled


def dpp_pattern(control: int, lanes: int, rdna: bool) -> Array:
    """The source lane of each lane under a DPP16 control; -1 where there is none."""
    lane = np.arange(lanes)
    row, within = lane & ~(ROW - 1), lane & (ROW - 1)
    amount = control & 15
    if control < 0x100:
        return (lane & ~3) + (control >> 2 * (lane & 3) & 3)
    if 0x101 <= control <= 0x10F:
        return np.where(within + amount < ROW, lane + amount, -1)
    if 0x111 <= control <= 0x11F:
        return np.where(within >= amount, lane - amount, -1)
    if 0x121 <= control <= 0x12F:
        return row + (within - amount) % ROW
    if control == 0x140:
        return row + (ROW - 1 - within)
    if control == 0x141:
        return (lane & ~7) + (7 - (lane & 7))
    if 0x150 <= control <= 0x15F:
        return row + amount
    if rdna:
        if 0x160 <= control <= 0x16F:
            return row + (within ^ amount)
        raise NotModelledError(f"DPP control 0x{control:x} does not exist on RDNA")
    whole_wave = {
        0x130: np.where(lane + 1 < lanes, lane + 1, -1),
        0x134: (lane + 1) % lanes,
        0x138: lane - 1,
        0x13C: (lane - 1) % lanes,
        0x142: np.where(row > 0, row - 1, -1),
        0x143: np.where(lane >= 32, 31, -1),
    }
    if control not in whole_wave:
        raise NotModelledError(f"DPP control 0x{control:x} is reserved")
    return whole_wave[control]


def swizzle_pattern(offset: int, lanes: int) -> Array:
    """The source lane of each lane under ds_swizzle_b32's offset."""
    lane = np.arange(lanes)
    half, within = lane & ~31, lane & 31
    if offset >= 0xE000:
        return half + _fft(within, offset & 31)
    if offset >= 0xC000:
        amount = offset >> 5 & 31
        if offset >> 10 & 1:
            amount = -amount
        keep = offset & 31
        return half + ((within & keep) | ((within + amount) & 31 & ~keep))
    if offset & 0x8000:
        return (lane & ~3) + (offset >> 2 * (lane & 3) & 3)
    both, either, flip = offset & 31, offset >> 5 & 31, offset >> 10 & 31
    return half + (((within & both) | either) ^ flip)


def _fft(within: Array, mask: int) -> Array:
    reverse = np.array([int(f"{i:05b}"[::-1], 2) for i in range(32)])
    return (reverse[within] >> mask.bit_count()) | (within & mask)
