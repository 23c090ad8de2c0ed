"""Scalar instructions and branches against models of single numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.hip_device.interpreter.assembled import execute, opcode, waves
from tests.hip_device.interpreter.control import DIVERGED
from tests.hip_device.interpreter.decode import decode
from tests.hip_device.interpreter.errors import NotModelledError
from tests.hip_device.interpreter.program import build_step
from tests.hip_device.interpreter.targets import PROCESSORS

from tinygrad.renderer.amd.dsl import EXEC, EXEC_LO, s  # isort: skip

pytestmark = pytest.mark.device

U32, U64 = 0xFFFFFFFF, (1 << 64) - 1
_EDGES = [0, 1, 31, 32, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x00FF00FF, 0x00070005]
_PAIRS = [(a, b) for a in _EDGES for b in _EDGES]


def signed(value: int, bits: int = 32) -> int:
    value &= (1 << bits) - 1
    return value - (value >> (bits - 1) << bits)


# What an instruction gives: the result, and SCC (None where it keeps it).
_MODELS: dict[str, Callable[[int, int], tuple[int, bool | None]]] = {
    "s_add_u32": lambda a, b: (a + b, a + b > U32),
    "s_sub_u32": lambda a, b: (a - b, a < b),
    "s_add_i32": lambda a, b: (a + b, signed(a) + signed(b) != signed(a + b)),
    "s_sub_i32": lambda a, b: (a - b, signed(a) - signed(b) != signed(a - b)),
    "s_min_i32": lambda a, b: (min(signed(a), signed(b)), signed(a) < signed(b)),
    "s_max_u32": lambda a, b: (max(a, b), a > b),
    "s_and_b32": lambda a, b: (a & b, a & b != 0),
    "s_or_b32": lambda a, b: (a | b, a | b != 0),
    "s_xor_b32": lambda a, b: (a ^ b, a ^ b != 0),
    "s_nand_b32": lambda a, b: (~(a & b), ~(a & b) & U32 != 0),
    "s_lshl_b32": lambda a, b: (a << (b & 31), (a << (b & 31)) & U32 != 0),
    "s_lshr_b32": lambda a, b: (a >> (b & 31), a >> (b & 31) != 0),
    "s_ashr_i32": lambda a, b: (signed(a) >> (b & 31), signed(a) >> (b & 31) != 0),
    "s_mul_i32": lambda a, b: (a * b, None),
    "s_mul_hi_u32": lambda a, b: (a * b >> 32, None),
    "s_mul_hi_i32": lambda a, b: (signed(a) * signed(b) >> 32, None),
    "s_bfm_b32": lambda a, b: (((1 << (a & 31)) - 1) << (b & 31), None),
    "s_bfe_u32": lambda a, b: _bfe(a, b, False),
    "s_bfe_i32": lambda a, b: _bfe(a, b, True),
    "s_pack_ll_b32_b16": lambda a, b: (a & 0xFFFF | b << 16, None),
    "s_pack_hh_b32_b16": lambda a, b: (a >> 16 | b & 0xFFFF0000, None),
    "s_absdiff_i32": lambda a, b: (
        abs(signed(a - b)), abs(signed(a - b)) != 0
    ),
}  # fmt: skip
_RDNA4_NAMES = {
    "s_add_u32": "s_add_co_u32", "s_sub_u32": "s_sub_co_u32", "s_add_i32": "s_add_co_i32",
    "s_sub_i32": "s_sub_co_i32",
}  # fmt: skip


def _bfe(a: int, control: int, sign: bool) -> tuple[int, bool]:
    offset, width = control & 31, min(control >> 16 & 0x7F, 32)
    whole = signed(a) if sign else a
    field = whole >> offset & ((1 << width) - 1)
    result = signed(field, width) if sign and width else field
    return result, result & U32 != 0


@pytest.mark.parametrize("processor", ["gfx942", "gfx1100", "gfx1201"])
@pytest.mark.parametrize("name", _MODELS)
def test_two_operands(processor: str, name: str) -> None:
    a, b = (np.array(x, np.uint64) for x in zip(*_PAIRS, strict=True))
    before = np.arange(len(a)) % 2 == 1
    w = waves(processor, scalar={4: a, 6: b}, count=len(a), scc=before)
    encoded = _RDNA4_NAMES.get(name, name) if processor == "gfx1201" else name
    execute(processor, w, [opcode(processor, encoded)(s[8], s[4], s[6])])
    for row, (x, y) in enumerate(_PAIRS):
        result, scc = _MODELS[name](x, y)
        assert int(w.sgpr[row, 8]) == result & U32, (x, y)
        assert bool(w.scc[row]) == (before[row] if scc is None else scc), (x, y)


_WIDE = [0, 1, 0x80000000, 1 << 63, U64, 0x0123456789ABCDEF]
_WIDE_MODELS: dict[str, Callable[[int], int]] = {
    "s_not_b64": lambda a: ~a,
    "s_brev_b64": lambda a: int(f"{a:064b}"[::-1], 2),
    "s_bcnt1_i32_b64": int.bit_count,
    "s_ff1_i32_b64": lambda a: (a & -a).bit_length() - 1 if a else -1,
    "s_flbit_i32_b64": lambda a: 64 - a.bit_length() if a else -1,
}


@pytest.mark.parametrize("name", _WIDE_MODELS)
def test_one_wide_operand(name: str) -> None:
    a = np.array(_WIDE, np.uint64)
    w = waves("gfx942", count=len(a))
    w.sgpr64[:, 2] = a
    narrow = "_i32_" in name
    execute("gfx942", w, [opcode("gfx942", name)(s[8] if narrow else s[8:9], s[4:5])])
    found = w.sgpr[:, 8] if narrow else w.sgpr64[:, 4]
    limit = U32 if narrow else U64
    assert [int(x) for x in found] == [_WIDE_MODELS[name](x) & limit for x in _WIDE]


@pytest.mark.parametrize("processor", ["gfx90a", "gfx1100"])
def test_wide_addition_by_carry(processor: str) -> None:
    a, b = 0xFFFFFFFF_FFFFFFFE, 0x00000001_00000003
    w = waves(processor, scalar={4: a, 6: b})
    add, carry = opcode(processor, "s_add_u32"), opcode(processor, "s_addc_u32")
    execute(processor, w, [add(s[8], s[4], s[6]), carry(s[9], s[5], s[7])])
    assert int(w.sgpr64[0, 4]) == (a + b) & U64
    assert w.scc.all()


def test_immediates_are_signed() -> None:
    w = waves("gfx942", scalar={4: 5})
    execute(
        "gfx942",
        w,
        [
            opcode("gfx942", "s_movk_i32")(s[8], 0xFFFE),
            opcode("gfx942", "s_addk_i32")(s[4], 0xFFFF),
            opcode("gfx942", "s_cmpk_gt_i32")(s[4], 0xFFFF),
        ],
    )
    assert int(w.sgpr[0, 8]) == 0xFFFFFFFE
    assert int(w.sgpr[0, 4]) == 4
    assert w.scc.all()


@pytest.mark.parametrize(("processor", "bits"), [("gfx942", 64), ("gfx1100", 32)])
def test_exec_is_saved_and_narrowed(processor: str, bits: int) -> None:
    wide = bits == 64
    active = np.arange(bits) % 3 > 0
    w = waves(processor, exec_mask=active, scalar={4: 0x0F0F0F0F0F0F0F0F & ((1 << bits) - 1)})
    mask = w.mask(4).copy()
    target, source = (s[8:9], s[4:5]) if wide else (s[8], s[4])
    execute(processor, w, [opcode(processor, f"s_and_saveexec_b{bits}")(target, source)])
    np.testing.assert_array_equal(w.exec, mask & active)
    np.testing.assert_array_equal(w.mask(8), np.broadcast_to(active, w.exec.shape))
    every = EXEC if wide else EXEC_LO
    execute(processor, w, [opcode(processor, f"s_or_b{bits}")(every, every, target)])
    np.testing.assert_array_equal(w.exec, np.broadcast_to(active, w.exec.shape))


def test_a_branch_that_waves_disagree_on() -> None:
    w = waves("gfx942", scc=np.array([True, False]))
    data = opcode("gfx942", "s_cbranch_scc1")(0xFFFE).to_bytes()
    step = build_step(decode(data, 0x100, PROCESSORS["gfx942"]), PROCESSORS["gfx942"])
    assert step(w) == DIVERGED
    assert w.taken.tolist() == [True, False]
    assert w.taken_target == 0x100 + 4 - 8
    w.scc = np.array([True, True])
    assert step(w) == 0xFC
    w.scc = np.array([False, False])
    assert step(w) is None


def test_mode_register() -> None:
    w = waves("gfx942")
    name = opcode("gfx942", "s_setreg_imm32_b32")
    # hwreg(HW_REG_MODE, 4, 2): the denormals of float32.
    field = 1 | 4 << 6 | (2 - 1) << 11
    execute(
        "gfx942", w, [name(simm16=field, literal=0), opcode("gfx942", "s_getreg_b32")(s[4], field)]
    )
    assert w.mode.flush_in_32
    assert w.mode.flush_out_32
    assert int(w.sgpr[0, 4]) == 0
    rounding = 1 | 0 << 6 | (2 - 1) << 11
    with pytest.raises(NotModelledError, match="rounding mode"):
        execute("gfx942", w, [name(simm16=rounding, literal=1)])


def test_scalar_floats_on_rdna4() -> None:
    values = np.array([1.5, -2.0], np.float32)
    w = waves("gfx1201", scalar={4: values.view(np.uint32), 6: 0x40400000})
    execute(
        "gfx1201",
        w,
        [
            opcode("gfx1201", "s_mul_f32")(s[8], s[4], s[6]),
            opcode("gfx1201", "s_cvt_i32_f32")(s[9], s[8]),
        ],
    )
    assert w.sgpr[:, 8].view(np.float32).tolist() == [4.5, -6.0]
    assert w.sgpr[:, 9].view(np.int32).tolist() == [4, -6]
