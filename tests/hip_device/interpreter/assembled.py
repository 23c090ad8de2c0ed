"""Runs hand-assembled instructions on given registers: how the interpreter itself is tested."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tinygrad.renderer.amd.dsl import FixedBitField, Reg, VGPRField

from tests.hip_device.interpreter.control import END
from tests.hip_device.interpreter.decode import decode
from tests.hip_device.interpreter.lds import WorkgroupMemory
from tests.hip_device.interpreter.memory import GlobalMemory
from tests.hip_device.interpreter.program import build_step
from tests.hip_device.interpreter.state import Mode, Surroundings, Waves
from tests.hip_device.interpreter.targets import PROCESSORS
from tests.hip_device.interpreter.values import Array

# Denormals are kept, as FlyDSL's kernels ask for.
KEEP_DENORMALS = Mode.from_bits(0x3F0)
FLUSH_DENORMALS = Mode.from_bits(0x300)


def opcode(processor: str, name: str) -> Any:
    """tinygrad's assembler function for an instruction, such as "v_add_f32_e32".

    Its tables write some names of VOP3 with a suffix and some without.
    """
    family = PROCESSORS[processor].family
    table = importlib.import_module(f"tinygrad.runtime.autogen.amd.{family}.ins")
    return getattr(table, name, None) or getattr(table, f"{name}_e64")


def encode(processor: str, name: str, **fields: Any) -> Any:
    """An instruction from its bit fields: registers, or raw numbers.

    Unlike `opcode`, nothing checks how many registers an operand has.
    """
    helper = opcode(processor, name)
    cls, op = helper.func, helper.args[0]
    inst = object.__new__(cls)
    inst._raw = 0
    for key, bits in cls._fields:
        value = fields.pop(key, op.value if key == "op" else 0)
        if isinstance(bits, FixedBitField):
            value = bits.default
        elif isinstance(value, Reg):
            value = value.offset - (256 if isinstance(bits, VGPRField) else 0)
        inst._raw |= (value & bits.mask) << bits.lo
    assert not fields, f"{name} has no fields {sorted(fields)}"
    return inst


def waves(
    processor: str,
    *,
    vector: Mapping[int, Array] | None = None,
    scalar: Mapping[int, int | Array] | None = None,
    exec_mask: Array | None = None,
    scc: Array | None = None,
    lanes: int | None = None,
    count: int = 2,
    lds: Array | None = None,
    lds_size: int = 0,
    memory: GlobalMemory | None = None,
    mode: Mode = KEEP_DENORMALS,
) -> Waves:
    """Waves with these registers; everything else is poison. Each is wave n of workgroup 0.

    `vector` gives (W, L) or (L,) arrays of any 32- or 64-bit type by register; accumulation
    registers are those from 256 on. `scalar` gives integers by operand code.
    """
    lanes = lanes or (64 if PROCESSORS[processor].is_cdna else 32)
    w = Waves(count, lanes, 512, 256, mode)
    w.number = np.arange(count)
    w.set_exec(np.ones((count, lanes), bool) if exec_mask is None else _wide(exec_mask, w))
    if scc is not None:
        w.scc = np.asarray(scc)
    for register, value in (vector or {}).items():
        set_vector(w, register, value)
    for code, number in (scalar or {}).items():
        values = np.broadcast_to(np.asarray(number, dtype=np.uint64), (count,))
        w.sgpr[:, code] = values & 0xFFFFFFFF
        if (values >> np.uint64(32)).any():
            w.sgpr[:, code + 1] = values >> np.uint64(32)
    share = WorkgroupMemory(1, lds_size if lds is None else lds.nbytes, 1)
    if lds is not None:
        share.octets[: lds.nbytes] = np.ascontiguousarray(lds).view(np.uint8).reshape(-1)
    w.around = Surroundings(memory or GlobalMemory(), share, 0x1000, lambda batch: None)
    return w


def _wide(value: Array, w: Waves) -> Array:
    return np.array(np.broadcast_to(value, (w.count, w.lanes)), order="C")


def set_vector(w: Waves, register: int, value: Array) -> None:
    wide = _wide(value, w)
    words = wide.view(np.uint32).reshape(w.count, w.lanes, -1)
    for k in range(words.shape[2]):
        w.vgpr[register + k] = words[:, :, k]


def get_vector(w: Waves, register: int, dtype: Any = np.uint32) -> Array:
    """A vector register (or pair) as (W, L) numbers."""
    count = np.dtype(dtype).itemsize // 4
    words = np.stack([w.vgpr[register + k] for k in range(count)], axis=-1)
    return words.view(dtype)[:, :, 0]


def half(w: Waves, register: int, high: bool = False, dtype: Any = np.float16) -> Array:
    """One half of a register as 16-bit numbers (W, L)."""
    return np.ascontiguousarray(w.u16[register][:, int(high) :: 2]).view(dtype)


def execute(processor: str, w: Waves, instructions: Sequence[Any]) -> Waves:
    """Assemble, decode and run instructions in a row (tinygrad `Inst` objects)."""
    address = 0
    with np.errstate(all="ignore"):
        for item in instructions:
            data = item.to_bytes()
            inst = decode(data + bytes(16), address, PROCESSORS[processor])
            assert inst.size == len(data), f"{inst} decoded as {inst.size} of {len(data)} bytes"
            result = build_step(inst, PROCESSORS[processor])(w)
            if result == END:
                break
            address += inst.size
    return w
