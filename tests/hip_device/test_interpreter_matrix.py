"""MFMA and WMMA against numpy's product, with matrices laid out element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.hip_device.interpreter.assembled import encode, execute, waves
from tests.hip_device.interpreter.small_floats import small_float
from tests.hip_device.interpreter.state import Waves
from tests.hip_device.interpreter.targets import PROCESSORS
from tests.hip_device.interpreter.values import decode_bf16

from tinygrad.renderer.amd.dsl import v  # isort: skip

pytestmark = pytest.mark.device

_RANDOM = np.random.default_rng(23)
_A, _B, _C, _D = 16, 48, 80, 144


def _codes(shape: tuple[int, ...], kind: str, ocp: bool) -> tuple[np.ndarray, np.ndarray]:
    """Random elements: their bits and their numbers."""
    if kind == "i8":
        numbers = _RANDOM.integers(-128, 128, shape)
        return numbers.astype(np.int8).view(np.uint8), numbers.astype(np.float64)
    if kind in ("fp8", "bf8"):
        form = small_float(kind, ocp)
        bits = _RANDOM.integers(0, 0x60, shape).astype(np.uint8)
        return bits, form.decode(bits).astype(np.float64)
    numbers = _RANDOM.standard_normal(shape)
    if kind == "bf16":
        bits = (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return bits, decode_bf16(bits).astype(np.float64)
    dtype, unsigned = {
        "f16": (np.float16, np.uint16),
        "f32": (np.float32, np.uint32),
        "f64": (np.float64, np.uint64),
    }[kind]
    rounded = numbers.astype(dtype)
    return rounded.view(unsigned), rounded.astype(np.float64)


def _put(w: Waves, register: int, lane: int, element: int, bits: int, size: int) -> None:
    """Put one element into a lane's registers, which hold them one after another."""
    at = element * size
    octets = w.vgpr[:, 0, lane].copy().view(np.uint8)
    octets[register * 4 + at : register * 4 + at + size] = list(int(bits).to_bytes(size, "little"))
    w.vgpr[:, 0, lane] = octets.view(np.uint32)


def _numbers_at(w: Waves, register: int, kind: str) -> np.ndarray:
    """What each lane holds from `register` on: (registers, lanes)."""
    if kind == "f64":
        words = np.ascontiguousarray(w.vgpr[register : register + 32, 0].T)
        return words.view(np.float64).T
    source = w.f32 if kind == "f32" else w.i32
    return source[register : register + 32, 0]


# name, rows = columns, k, blocks, element of A and B, result
_MFMA = [
    ("v_mfma_f32_16x16x16_f16", 16, 16, 1, "f16", "f32", "gfx90a gfx942 gfx950"),
    ("v_mfma_f32_16x16x16_bf16", 16, 16, 1, "bf16", "f32", "gfx90a gfx942"),
    ("v_mfma_f32_32x32x8_f16", 32, 8, 1, "f16", "f32", "gfx90a gfx942"),
    ("v_mfma_f32_32x32x8_bf16", 32, 8, 1, "bf16", "f32", "gfx90a gfx950"),
    ("v_mfma_f32_32x32x4_2b_f16", 32, 4, 2, "f16", "f32", "gfx90a gfx942"),
    ("v_mfma_f32_16x16x4_4b_f16", 16, 4, 4, "f16", "f32", "gfx942"),
    ("v_mfma_f32_4x4x4_16b_f16", 4, 4, 16, "f16", "f32", "gfx942"),
    ("v_mfma_f32_32x32x2_f32", 32, 2, 1, "f32", "f32", "gfx90a gfx942"),
    ("v_mfma_f32_16x16x4_f32", 16, 4, 1, "f32", "f32", "gfx942"),
    ("v_mfma_f32_32x32x1_2b_f32", 32, 1, 2, "f32", "f32", "gfx942"),
    ("v_mfma_f64_16x16x4_f64", 16, 4, 1, "f64", "f64", "gfx90a gfx942 gfx950"),
    ("v_mfma_f64_4x4x4_4b_f64", 4, 4, 4, "f64", "f64", "gfx942"),
    ("v_mfma_i32_16x16x32_i8", 16, 32, 1, "i8", "i32", "gfx942"),
    ("v_mfma_i32_32x32x16_i8", 32, 16, 1, "i8", "i32", "gfx942"),
    ("v_mfma_f32_16x16x32_fp8_fp8", 16, 32, 1, "fp8", "f32", "gfx942 gfx950"),
    ("v_mfma_f32_32x32x16_bf8_bf8", 32, 16, 1, "bf8", "f32", "gfx942 gfx950"),
    ("v_mfma_f32_16x16x32_f16", 16, 32, 1, "f16", "f32", "gfx950"),
    ("v_mfma_f32_16x16x32_bf16", 16, 32, 1, "bf16", "f32", "gfx950"),
    ("v_mfma_f32_32x32x16_f16", 32, 16, 1, "f16", "f32", "gfx950"),
    ("v_mfma_i32_16x16x64_i8", 16, 64, 1, "i8", "i32", "gfx950"),
]
_MFMA_CASES = [(target, *row[:-1]) for row in _MFMA for target in row[-1].split()]
# gfx90a has its own opcode for the bf16 forms that the tables know under another number.
_GFX90A_OPCODES = {"v_mfma_f32_16x16x16_bf16": 0x67, "v_mfma_f32_32x32x8_bf16": 0x66}


def _result_place(size: int, blocks: int, kind: str, lane: int, register: int) -> tuple[int, ...]:
    """Block, row and column of a result register."""
    if size == 4:
        if kind == "f64":
            return lane // 4 % blocks, lane // 16, lane % 4
        return lane // 4, register, lane % 4
    if kind == "f64":
        return 0, 4 * register + lane // 16, lane % 16
    if size == 32:
        block, within = divmod(register, 16)
        return block, 8 * (within // 4) + 4 * (lane // 32) + within % 4, lane % 32
    block, within = divmod(register, 4)
    return block, 4 * (lane // 16) + within, lane % 16


@pytest.mark.parametrize("accumulators", [False, True])
@pytest.mark.parametrize(
    ("processor", "name", "size", "depth", "blocks", "kind", "result"), _MFMA_CASES
)
def test_mfma(
    processor: str, name: str, size: int, depth: int, blocks: int, kind: str, result: str,
    accumulators: bool,
) -> None:  # fmt: skip
    """With A, C and D in vector or in accumulation registers, whatever EXEC says."""
    ocp = PROCESSORS[processor].ocp_fp8
    a_bits, a = _codes((blocks, size, depth), kind, ocp)
    b_bits, b = _codes((blocks, size, depth), kind, ocp)
    c = _RANDOM.integers(-9, 9, (blocks, size, size)).astype(np.float64)
    w = waves(processor, count=1, exec_mask=np.arange(64) < 3)
    offset = 256 if accumulators else 0
    held = depth * size * blocks // 64
    octets = a_bits.itemsize
    for block, row, k in np.ndindex(a.shape):
        lane = row + size * (block + blocks * (k // held))
        _put(w, _A + offset, lane, k % held, a_bits[block, row, k], octets)
        _put(w, _B, lane, k % held, b_bits[block, row, k], octets)
    count = size * size * blocks // 64
    dtype = {"f32": np.float32, "f64": np.float64, "i32": np.int32}[result]
    for lane in range(64):
        for register in range(count):
            value = dtype(c[_result_place(size, blocks, result, lane, register)])
            bits = int.from_bytes(value.tobytes(), "little")
            _put(w, _C + offset, lane, register, bits, value.nbytes)
    inst = encode(
        processor, name, vdst=v[_D], src0=256 + _A, src1=256 + _B, src2=256 + _C,
        acc=int(accumulators), acc_cd=int(accumulators),
    )  # fmt: skip
    if processor == "gfx90a" and name in _GFX90A_OPCODES:
        inst._raw = inst._raw & ~(0x7F << 16) | _GFX90A_OPCODES[name] << 16
    execute(processor, w, [inst])
    expected = a @ b.swapaxes(1, 2) + c
    found = _numbers_at(w, _D + offset, result)
    for lane in range(64):
        for register in range(count):
            place = _result_place(size, blocks, result, lane, register)
            np.testing.assert_allclose(found[register, lane], expected[place], rtol=2e-6, atol=1e-4)


def test_mfma_with_a_constant_for_c() -> None:
    w = waves("gfx942", count=1)
    w.vgpr[_A], w.vgpr[_A + 1] = 0x3C003C00, 0x3C003C00  # ones
    w.vgpr[_B], w.vgpr[_B + 1] = 0x40004000, 0x40004000  # twos
    name = "v_mfma_f32_16x16x16_f16"
    execute(
        "gfx942", w, [encode("gfx942", name, vdst=v[_D], src0=256 + _A, src1=256 + _B, src2=242)]
    )
    assert (w.f32[_D : _D + 4] == 33).all()


@pytest.mark.parametrize(("code", "per_element"), [(0, 8), (4, 4)])
def test_scaled_mfma(code: int, per_element: int) -> None:
    """Ones times ones under block scales of 2 and 4; VOP3PX2 is two instructions in one."""
    w = waves("gfx950", count=1)
    one = {0: 0x38, 4: 0x22}[code]
    for k in range(per_element):
        w.vgpr[_A + k] = w.vgpr[_B + k] = one * 0x01010101
    w.vgpr[5], w.vgpr[6] = 128, 129 << 8
    inst = encode(
        "gfx950", "v_mfma_scale_f32_16x16x128_f8f6f4", vdst=v[_D], src0=256 + _A, src1=256 + _B,
        src2=128, cbsz=code, blgp=code, scale_src0=256 + 5, scale_src1=256 + 6, opsel=2,
        x2encoding=0xD3AC,
    )  # fmt: skip
    execute("gfx950", w, [inst])
    assert (w.f32[_D : _D + 4] == 128 * 2 * 4).all()


def test_accumulation_registers_are_a_file_of_their_own() -> None:
    w = waves("gfx942", vector={1: np.full(64, 11, np.uint32), 256 + 3: np.full(64, 22, np.uint32)})
    execute(
        "gfx942",
        w,
        [
            encode("gfx942", "v_accvgpr_write", vdst=v[5], src0=256 + 1),
            encode("gfx942", "v_accvgpr_read", vdst=v[6], src0=256 + 3),
            encode("gfx942", "v_accvgpr_mov_b32_e32", vdst=v[7], src0=256 + 3),
        ],
    )
    assert (w.vgpr[256 + 5] == 11).all()
    assert (w.vgpr[6] == 22).all()
    assert (w.vgpr[256 + 7] == 22).all()


@pytest.mark.parametrize("processor", ["gfx90a", "gfx942"])
def test_lds_data_in_accumulation_registers(processor: str) -> None:
    place = (np.arange(64) * 4).astype(np.uint32)
    w = waves(processor, vector={2: place, 256 + 4: place + 1, 4: place * 0}, count=1, lds_size=256)
    execute(
        processor,
        w,
        [
            encode(processor, "ds_write_b32", addr=v[2], data0=v[4], acc=1),
            encode(processor, "ds_read_b32", addr=v[2], vdst=v[5], acc=1),
        ],
    )
    np.testing.assert_array_equal(w.vgpr[256 + 5][0], place + 1)


# WMMA: 16 x 16 results


def _wmma_row(processor: str, lanes: int, lane: int, register: int) -> int:
    """The row that a result register of a lane holds, as AMD's matrix instruction calculator says:
    on RDNA4 the lane groups of a wave of 64 start at rows 0, 8, 4 and 12."""
    groups = lanes // 16
    if processor == "gfx1100":
        return register * groups + lane // 16
    return (0, 8, 4, 12)[lane // 16] + register


@pytest.mark.parametrize("processor", ["gfx1100", "gfx1201"])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("lanes", [32, 64])
def test_wmma_to_float(processor: str, kind: str, lanes: int) -> None:
    a_bits, a = _codes((16, 16), kind, True)
    b_bits, b = _codes((16, 16), kind, True)
    c = _RANDOM.integers(-9, 9, (16, 16)).astype(np.float64)
    w = waves(processor, count=1, lanes=lanes)
    held = 16 if processor == "gfx1100" else 16 * 16 // lanes
    for lane in range(lanes):
        for k in range(held):
            at = k if processor == "gfx1100" else lane // 16 * held + k
            _put(w, _A, lane, k, a_bits[lane % 16, at], 2)
            _put(w, _B, lane, k, b_bits[lane % 16, at], 2)
        for register in range(256 // lanes):
            row = _wmma_row(processor, lanes, lane, register)
            w.f32[_C + register, 0, lane] = c[row, lane % 16]
    name = f"v_wmma_f32_16x16x16_{kind}"
    execute(processor, w, [_wmma(processor, name)])
    expected = a @ b.T + c
    for lane in range(lanes):
        for register in range(256 // lanes):
            row = _wmma_row(processor, lanes, lane, register)
            np.testing.assert_allclose(
                w.f32[_D + register, 0, lane], expected[row, lane % 16], rtol=1e-6, atol=1e-5
            )


def _wmma(processor: str, name: str, **fields: Any) -> Any:
    sources = {"src0": 256 + _A, "src1": 256 + _B, "src2": 256 + _C}
    return encode(processor, name, vdst=v[_D], opsel_hi=3, opsel_hi2=1, **sources, **fields)


@pytest.mark.parametrize("processor", ["gfx1100", "gfx1201"])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("lanes", [32, 64])
def test_wmma_of_integers(processor: str, signed: bool, lanes: int) -> None:
    a, b = (_RANDOM.integers(0, 256, (16, 16)) for _ in range(2))
    w = waves(processor, count=1, lanes=lanes)
    held = 16 if processor == "gfx1100" else 16 * 16 // lanes
    for lane in range(lanes):
        for k in range(held):
            at = k if processor == "gfx1100" else lane // 16 * held + k
            _put(w, _A, lane, k, a[lane % 16, at], 1)
            _put(w, _B, lane, k, b[lane % 16, at], 1)
    w.vgpr[_C : _C + 8] = 7
    execute(processor, w, [_wmma(processor, "v_wmma_i32_16x16x16_iu8", neg=3 if signed else 0)])
    if signed:
        a, b = ((x ^ 128) - 128 for x in (a, b))
    expected = a @ b.T + 7
    for lane in range(lanes):
        for register in range(256 // lanes):
            row = _wmma_row(processor, lanes, lane, register)
            assert int(w.i32[_D + register, 0, lane]) == expected[row, lane % 16]


@pytest.mark.parametrize("processor", ["gfx1100", "gfx1201"])
@pytest.mark.parametrize("lanes", [32, 64])
def test_wmma_to_half(processor: str, lanes: int) -> None:
    """RDNA3 writes one half of each register, RDNA4 packs two rows."""
    a, b, c = (_RANDOM.integers(-8, 8, (16, 16)) for _ in range(3))
    w = waves(processor, count=1, lanes=lanes)
    packs = processor == "gfx1201"
    held = 16 * 16 // lanes if packs else 16
    rows = 256 // lanes
    w.vgpr[_C : _C + 8] = w.vgpr[_D : _D + 8] = 0x12341234

    def place(lane: int, n: int) -> tuple[int, int]:
        """The half, counted from the first register on, of a lane's n-th row; and that row."""
        return n if packs else 2 * n, _wmma_row(processor, lanes, lane, n)

    for lane in range(lanes):
        for k in range(held):
            at = lane // 16 * held + k if packs else k
            for first, matrix in ((_A, a), (_B, b)):
                bits = np.float16(matrix[lane % 16, at]).view(np.uint16)
                _put(w, first, lane, k, int(bits), 2)
        for n in range(rows):
            half, row = place(lane, n)
            _put(w, _C, lane, half, int(np.float16(c[row, lane % 16]).view(np.uint16)), 2)
    execute(processor, w, [_wmma(processor, "v_wmma_f16_16x16x16_f16", neg=0)])
    expected = a @ b.T + c
    words = rows // 2 if packs else rows
    for lane in range(lanes):
        for n in range(rows):
            half, row = place(lane, n)
            found = w.vgpr[_D + half // 2, 0, lane] >> np.uint32(half % 2 * 16)
            assert np.uint16(found & 0xFFFF).view(np.float16) == expected[row, lane % 16]
            if not packs:
                assert w.vgpr[_D + n, 0, lane] >> 16 == 0x1234
        assert (w.vgpr[_D + words : _D + 8, 0, lane] == 0x12341234).all()


# Packed math


@pytest.mark.parametrize("processor", ["gfx942", "gfx1100", "gfx1201"])
def test_packed_halves_with_selection(processor: str) -> None:
    a, b = (_RANDOM.standard_normal((2, 32, 2)).astype(np.float16) for _ in range(2))
    lanes = 64 if PROCESSORS[processor].is_cdna else 32
    a, b = (np.resize(x, (2, lanes, 2)) for x in (a, b))
    w = waves(processor, vector={1: a.view(np.uint32)[..., 0], 2: b.view(np.uint32)[..., 0]})
    plain = {"opsel_hi": 3, "opsel_hi2": 1}
    add = {"vdst": v[3], "src0": 256 + 1, "src1": 256 + 2}
    execute(
        processor,
        w,
        [
            encode(processor, "v_pk_add_f16", **add, **plain),
            encode(processor, "v_pk_mul_f16", **{**add, "vdst": v[4]}, opsel=1, opsel_hi=2, neg=2),
        ],
    )
    found = [np.ascontiguousarray(w.vgpr[k]).view(np.float16).reshape(2, lanes, 2) for k in (3, 4)]
    np.testing.assert_array_equal(found[0], a + b)
    expected = np.stack([a[..., 1] * -b[..., 0], a[..., 0] * b[..., 1]], axis=-1)
    np.testing.assert_array_equal(found[1], expected)


@pytest.mark.parametrize("processor", ["gfx90a", "gfx942", "gfx950"])
def test_packed_singles(processor: str) -> None:
    a, b, c = (_RANDOM.standard_normal((2, 64, 2)).astype(np.float32) for _ in range(3))
    pairs = {
        2: a.view(np.uint64)[..., 0],
        4: b.view(np.uint64)[..., 0],
        6: c.view(np.uint64)[..., 0],
    }
    w = waves(processor, vector=pairs)
    sources = {"src0": 256 + 2, "src1": 256 + 4, "src2": 256 + 6}
    execute(
        processor,
        w,
        [
            encode(processor, "v_pk_add_f32", vdst=v[8], **sources, opsel_hi=3, opsel_hi2=1),
            encode(
                processor, "v_pk_fma_f32", vdst=v[10], **sources, opsel=2, opsel_hi=1, opsel_hi2=1
            ),
        ],
    )
    np.testing.assert_array_equal(np.stack([w.f32[8], w.f32[9]], axis=-1), a + b)
    crossed = a.astype(np.float64) * b[..., ::-1] + c
    np.testing.assert_array_equal(np.stack([w.f32[10], w.f32[11]], axis=-1), crossed.astype("f4"))


@pytest.mark.parametrize("processor", ["gfx942", "gfx1100"])
def test_mixed_precision_fma(processor: str) -> None:
    lanes = 64 if PROCESSORS[processor].is_cdna else 32
    a = _RANDOM.standard_normal((2, lanes, 2)).astype(np.float16)
    b, c = (_RANDOM.standard_normal((2, lanes)).astype(np.float32) for _ in range(2))
    w = waves(processor, vector={1: a.view(np.uint32)[..., 0], 2: b, 3: c, 5: b * 0})
    sources = {"src0": 256 + 1, "src1": 256 + 2, "src2": 256 + 3, "opsel": 1, "opsel_hi": 1}
    prefix = "v_mad_mix" if PROCESSORS[processor].is_cdna else "v_fma_mix"
    execute(
        processor,
        w,
        [
            encode(processor, f"{prefix}_f32", vdst=v[4], **sources),
            encode(processor, f"{prefix}hi_f16", vdst=v[5], **sources),
        ],
    )
    exact = a[..., 1].astype(np.float64) * b + c
    np.testing.assert_array_equal(w.f32[4], exact.astype(np.float32))
    upper = np.ascontiguousarray(w.u16[5][:, 1::2]).view(np.float16)
    np.testing.assert_array_equal(upper, exact.astype(np.float16))


@pytest.mark.parametrize("processor", ["gfx942", "gfx1201"])
def test_dot_products(processor: str) -> None:
    a, b = (_RANDOM.integers(0, 1 << 32, (2, 64), dtype=np.uint32) for _ in range(2))
    c = _RANDOM.integers(-1000, 1000, (2, 64)).astype(np.int32)
    w = waves(processor, vector={1: a, 2: b, 3: c}, lanes=64)
    cdna = PROCESSORS[processor].is_cdna
    name = "v_dot4_i32_i8" if cdna else "v_dot4_i32_iu8"
    sources = {"src0": 256 + 1, "src1": 256 + 2, "src2": 256 + 3, "opsel_hi": 3, "opsel_hi2": 1}
    execute(processor, w, [encode(processor, name, vdst=v[4], neg=0 if cdna else 3, **sources)])
    parts = [x.view(np.int8).reshape(2, 64, 4).astype(np.int64) for x in (a, b)]
    np.testing.assert_array_equal(w.i32[4], (parts[0] * parts[1]).sum(axis=2) + c)
