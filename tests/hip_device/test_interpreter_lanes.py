"""Instructions that move data between lanes: DPP, swizzles, permutes, reads of single lanes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.hip_device.interpreter.assembled import execute, opcode, waves
from tests.hip_device.interpreter.lanes import dpp_pattern, swizzle_pattern
from tests.hip_device.interpreter.targets import PROCESSORS

from tinygrad.renderer.amd.dsl import DPP, SDWA, Reg, s, v  # isort: skip

pytestmark = pytest.mark.device

_RANDOM = np.random.default_rng(21)
_DPP8 = Reg(233, 1)


def _values(lanes: int) -> np.ndarray:
    return _RANDOM.integers(0, 1 << 32, (2, lanes), dtype=np.uint32)


# Where lane i of 64 reads from, or None.
_PATTERNS: dict[int, Callable[[int], int | None]] = {
    0x1B: lambda i: i ^ 3,  # quad_perm [3, 2, 1, 0]
    0x4E: lambda i: i ^ 2,  # quad_perm [2, 3, 0, 1]
    0x101: lambda i: i + 1 if i % 16 < 15 else None,
    0x104: lambda i: i + 4 if i % 16 < 12 else None,
    0x111: lambda i: i - 1 if i % 16 else None,
    0x118: lambda i: i - 8 if i % 16 >= 8 else None,
    0x121: lambda i: i // 16 * 16 + (i - 1) % 16,
    0x128: lambda i: i // 16 * 16 + (i + 8) % 16,
    0x140: lambda i: i ^ 15,
    0x141: lambda i: i ^ 7,
}
_CDNA_PATTERNS: dict[int, Callable[[int], int | None]] = {
    0x130: lambda i: i + 1 if i < 63 else None,
    0x134: lambda i: (i + 1) % 64,
    0x138: lambda i: i - 1 if i else None,
    0x13C: lambda i: (i - 1) % 64,
    0x142: lambda i: i // 16 * 16 - 1 if i >= 16 else None,
    0x143: lambda i: 31 if i >= 32 else None,
    0x153: lambda i: i // 16 * 16 + 3,
}
_RDNA_PATTERNS: dict[int, Callable[[int], int | None]] = {
    0x153: lambda i: i // 16 * 16 + 3,
    0x165: lambda i: i ^ 5,
}


def _patterns(processor: str) -> dict[int, Callable[[int], int | None]]:
    own = _CDNA_PATTERNS if PROCESSORS[processor].is_cdna else _RDNA_PATTERNS
    return {**_PATTERNS, **own}


@pytest.mark.parametrize("processor", ["gfx942", "gfx1100", "gfx1201"])
@pytest.mark.parametrize("bound_control", [0, 1])
def test_dpp(processor: str, bound_control: int) -> None:
    """A lane without a source reads zero under bound_ctrl, and keeps its register otherwise."""
    lanes = 64 if PROCESSORS[processor].is_cdna else 32
    for control, model in _patterns(processor).items():
        source, old = _values(lanes), _values(lanes)
        w = waves(processor, vector={0: old, 1: source})
        move = opcode(processor, "v_mov_b32_e32")
        extra = {"dpp": control, "bc": bound_control, "row_mask": 15, "bank_mask": 15}
        execute(processor, w, [move(v[0], DPP, vsrc0=v[1], **extra)])
        for lane in range(lanes):
            at = model(lane)
            if at is None:
                expected = np.zeros(2, np.uint32) if bound_control else old[:, lane]
            else:
                expected = source[:, at]
            np.testing.assert_array_equal(w.vgpr[0][:, lane], expected, f"{control:#x} lane {lane}")


@pytest.mark.parametrize("processor", ["gfx942", "gfx1100"])
def test_dpp_masks_and_inactive_sources(processor: str) -> None:
    lanes = 64 if PROCESSORS[processor].is_cdna else 32
    source, old = _values(lanes), _values(lanes)
    active = np.arange(lanes) % 4 != 3
    w = waves(processor, vector={0: old, 1: source}, exec_mask=active)
    move = opcode(processor, "v_mov_b32_e32")
    execute(
        processor,
        w,
        [move(v[0], DPP, vsrc0=v[1], dpp=0x1B, bc=0, row_mask=1, bank_mask=0b0110)],
    )
    lane = np.arange(lanes)
    # Row 0 and banks 1 and 2 only; lane 0 of each four would read from the inactive lane 3.
    takes = active & (lane < 16) & (lane // 4 % 4 > 0) & (lane // 4 % 4 < 3) & (lane % 4 > 0)
    np.testing.assert_array_equal(w.vgpr[0], np.where(takes, source[:, lane ^ 3], old))


@pytest.mark.parametrize("processor", ["gfx1100", "gfx1201"])
def test_dpp8_and_fetch_inactive(processor: str) -> None:
    source, old = _values(32), _values(32)
    active = np.arange(32) % 2 == 0
    w = waves(processor, vector={0: old, 1: source}, exec_mask=active)
    move = opcode(processor, "v_mov_b32_e32")
    selectors = {f"lane_sel_{k}": 7 - k for k in range(8)}
    dpp8 = opcode(processor, "VOP1_DPP8")
    execute(processor, w, [dpp8(move(v[0], v[1]).op, v[0], _DPP8, vsrc0=v[1], **selectors)])
    lane = np.arange(32)
    # Lane i reads from lane 7 - i of its eight, which is odd and inactive: zero.
    np.testing.assert_array_equal(w.vgpr[0], np.where(active, 0, old))
    w = waves(processor, vector={0: old, 1: source}, exec_mask=active)
    extra = {"dpp": 0x1B, "fi": 1, "row_mask": 15, "bank_mask": 15}
    execute(processor, w, [move(v[0], DPP, vsrc0=v[1], **extra)])
    np.testing.assert_array_equal(w.vgpr[0], np.where(active, source[:, lane ^ 3], old))


def test_dpp_on_an_addition() -> None:
    """The step of a reduction: every lane adds its neighbour."""
    x = _RANDOM.standard_normal((2, 64)).astype(np.float32)
    w = waves("gfx942", vector={1: x})
    add = opcode("gfx942", "v_add_f32_e32")
    extra = {"dpp": 0x111, "bc": 1, "row_mask": 15, "bank_mask": 15}
    execute("gfx942", w, [add(v[0], DPP, v[1], vsrc0=v[1], **extra)])
    shifted = np.where(np.arange(64) % 16 == 0, 0, np.roll(x, 1, axis=1)).astype(np.float32)
    np.testing.assert_array_equal(w.f32[0], x + shifted)


def test_patterns_cover_every_lane_once() -> None:
    for control in (0x1B, 0x121, 0x140, 0x141):
        assert sorted(dpp_pattern(control, 64, rdna=False)) == list(range(64))


@pytest.mark.parametrize(
    ("offset", "model"),
    [
        (0x8000 | 0x1B, lambda i: i ^ 3),
        (0x401F, lambda i: i ^ 16),
        (0x041F, lambda i: i ^ 1),
        (0x001E, lambda i: i & ~1),
        (0x0200 | 0x1F, lambda i: i | 16),
        (0xC000 | 1 << 5, lambda i: i // 32 * 32 + (i + 1) % 32),
        (0xC000 | 1 << 10 | 2 << 5, lambda i: i // 32 * 32 + (i - 2) % 32),
        (0xE01F, lambda i: i),
        (0xE000, lambda i: i // 32 * 32 + int(f"{i % 32:05b}"[::-1], 2)),
    ],
)
def test_swizzle(offset: int, model: Callable[[int], int]) -> None:
    assert swizzle_pattern(offset, 64).tolist() == [model(i) for i in range(64)]
    source = _values(64)
    w = waves("gfx90a", vector={1: source})
    swizzle = opcode("gfx90a", "ds_swizzle_b32")
    execute("gfx90a", w, [swizzle(v[0], v[1], offset0=offset & 255, offset1=offset >> 8)])
    np.testing.assert_array_equal(w.vgpr[0], source[:, [model(i) for i in range(64)]])


@pytest.mark.parametrize("processor", ["gfx942", "gfx1201"])
def test_bpermute_and_permute(processor: str) -> None:
    lanes = 64 if PROCESSORS[processor].is_cdna else 32
    source = _values(lanes)
    order = np.stack([_RANDOM.permutation(lanes) for _ in range(2)])
    active = np.ones(lanes, bool)
    active[5] = False
    w = waves(processor, vector={0: source * 0 + 7, 1: order * 4, 2: source}, exec_mask=active)
    w.vgpr[1] = order * 4
    execute(processor, w, [opcode(processor, "ds_bpermute_b32")(v[0], v[1], v[2])])
    pulled = np.where(order == 5, 0, np.take_along_axis(source, order, axis=1))
    np.testing.assert_array_equal(w.vgpr[0], np.where(active, pulled, 7))
    w = waves(processor, vector={2: source})
    w.vgpr[1] = order * 4
    execute(processor, w, [opcode(processor, "ds_permute_b32")(v[0], v[1], v[2])])
    pushed = np.empty_like(source)
    np.put_along_axis(pushed, order, source, axis=1)
    np.testing.assert_array_equal(w.vgpr[0], pushed)


@pytest.mark.parametrize("processor", ["gfx90a", "gfx1100", "gfx1201"])
def test_single_lanes(processor: str) -> None:
    lanes = 64 if PROCESSORS[processor].is_cdna else 32
    source = _values(lanes)
    active = np.arange(lanes) > 6
    w = waves(processor, vector={1: source, 2: source}, exec_mask=active, scalar={4: 9, 5: 77})
    # tinygrad's CDNA tables write scalar targets of vector encodings as vector registers.
    target = v if PROCESSORS[processor].is_cdna else s
    execute(
        processor,
        w,
        [
            opcode(processor, "v_readfirstlane_b32_e32")(target[8], v[1]),
            opcode(processor, "v_readlane_b32")(target[9], v[1], s[4]),
            opcode(processor, "v_writelane_b32")(v[2], s[5], 3),
        ],
    )
    np.testing.assert_array_equal(w.sgpr[:, 8], source[:, 7])
    np.testing.assert_array_equal(w.sgpr[:, 9], source[:, 9])
    expected = source.copy()
    expected[:, 3] = 77  # whatever EXEC says
    np.testing.assert_array_equal(w.vgpr[2], expected)


@pytest.mark.parametrize("processor", ["gfx1100", "gfx1201"])
def test_permlane16(processor: str) -> None:
    source = _values(32)
    low, high = 0x76543210, 0xFEDCBA98
    w = waves(processor, vector={1: source}, scalar={4: high, 5: low})
    execute(
        processor,
        w,
        [
            opcode(processor, "v_permlane16_b32")(v[0], v[1], s[4], s[5]),
            opcode(processor, "v_permlanex16_b32")(v[2], v[1], s[5], s[4]),
        ],
    )
    lane = np.arange(32)
    np.testing.assert_array_equal(w.vgpr[0], source[:, lane ^ 8])
    np.testing.assert_array_equal(w.vgpr[2], source[:, lane ^ 16])


def test_permlane_swaps() -> None:
    a, b = _values(64), _values(64)
    for name, distance in (("v_permlane16_swap_b32_e32", 16), ("v_permlane32_swap_b32_e32", 32)):
        w = waves("gfx950", vector={0: a, 1: b})
        execute("gfx950", w, [opcode("gfx950", name)(v[0], v[1])])
        odd = np.arange(64) & distance != 0
        lane = np.arange(64)
        np.testing.assert_array_equal(w.vgpr[0], np.where(odd, b[:, lane ^ distance], a))
        np.testing.assert_array_equal(w.vgpr[1], np.where(odd, b, a[:, lane ^ distance]))


def test_sub_dword_selection() -> None:
    """SDWA takes bytes and words of the sources and places the result in a part of the target."""
    a, b, old = _values(64), _values(64), _values(64)
    w = waves("gfx942", vector={0: old, 1: a, 2: b})
    add = opcode("gfx942", "v_add_u32_e32")
    parts = {"src0_sel": 2, "src1_sel": 5, "dst_sel": 4, "dst_unused": 2}
    execute("gfx942", w, [add(v[0], SDWA, v[2], vsrc0=v[1], **parts)])
    total = (a >> 16 & 0xFF) + (b >> 16)
    np.testing.assert_array_equal(w.vgpr[0], (total & 0xFFFF) | (old & 0xFFFF0000))
    parts = {"src0_sel": 1, "src1_sel": 6, "dst_sel": 6, "src0_sext": 1}
    execute("gfx942", w, [add(v[3], SDWA, v[2], vsrc0=v[1], **parts)])
    extended = (a >> 8).astype(np.int8).astype(np.int32).view(np.uint32)
    np.testing.assert_array_equal(w.vgpr[3], extended + b)
