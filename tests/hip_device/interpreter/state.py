"""The architectural state of a batch of waves that execute the same instruction together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tests.hip_device.interpreter.values import Array

if TYPE_CHECKING:
    from tests.hip_device.interpreter.lds import WorkgroupMemory
    from tests.hip_device.interpreter.memory import GlobalMemory

# What registers and LDS hold before they are written: a NaN as f32, f64, two f16 or two bf16.
POISON = 0xFFF7FFF7

SCALARS = 128
VCC, EXEC = 106, 126


@dataclass(frozen=True)
class Mode:
    """The part of the MODE register that changes results: which denormals are flushed to zero."""

    flush_in_32: bool = False
    flush_out_32: bool = False
    flush_in_16_64: bool = False
    flush_out_16_64: bool = False
    ieee: bool = True
    dx10_clamp: bool = True
    bits: int = 0

    @classmethod
    def from_bits(cls, bits: int) -> Mode:
        """From the register's layout: denormals in bits 7:4, dx10_clamp bit 8, ieee bit 9."""
        return cls(
            flush_in_32=not bits >> 4 & 1,
            flush_out_32=not bits >> 5 & 1,
            flush_in_16_64=not bits >> 6 & 1,
            flush_out_16_64=not bits >> 7 & 1,
            dx10_clamp=bool(bits >> 8 & 1),
            ieee=bool(bits >> 9 & 1),
            bits=bits,
        )


@dataclass(frozen=True)
class Surroundings:
    """What the waves of one launch share: memory, LDS and where the code is loaded."""

    memory: GlobalMemory
    lds: WorkgroupMemory
    code_base: int
    arrived: Callable[[Waves], None]


class Waves:
    """W waves of L lanes at one program counter.

    `vgpr` is (registers, W, L) uint32 with `f32` and `i32` as views of it; accumulation registers
    start at row `acc_base`. `sgpr` is (W, 128) uint32 by scalar operand code, `sgpr64` its view in
    pairs. `exec` is the execution mask as booleans (W, L), kept equal to operands 126 and 127.
    `workgroup` and `number` say which wave of which workgroup a row is; `signals` and `waits`
    count the barriers it signalled and passed.
    """

    def __init__(self, count: int, lanes: int, registers: int, acc_base: int, mode: Mode) -> None:
        self.count, self.lanes = count, lanes
        self.acc_base = acc_base
        self.mode = mode
        self.pc = 0
        self.vgpr = np.full((registers, count, lanes), POISON, np.uint32)
        self.sgpr = np.full((count, SCALARS), POISON, np.uint32)
        self.scc = np.zeros(count, bool)
        self.exec = np.zeros((count, lanes), bool)
        self.workgroup = np.zeros(count, np.int64)
        self.number = np.zeros(count, np.int64)
        self.signals = np.zeros(count, np.int64)
        self.waits = np.zeros(count, np.int64)
        self.scratch = np.zeros((count, lanes, 0), np.uint8)
        self.around: Surroundings
        self.taken: Array = self.scc
        self.taken_target = 0
        self.dpp_valid: Array = self.exec
        self._adopt()

    def _adopt(self) -> None:
        """Refresh what is derived from the arrays."""
        self.f32 = self.vgpr.view(np.float32)
        self.i32 = self.vgpr.view(np.int32)
        self.u16 = self.vgpr.view(np.uint16)
        self.sgpr64 = self.sgpr.view(np.uint64)
        self.exec_full = bool(self.exec.all())

    _PER_WAVE = (
        "sgpr", "scc", "exec", "workgroup", "number", "signals", "waits", "scratch",
    )  # fmt: skip

    def select(self, chosen: Array) -> Waves:
        """The waves where `chosen` (W,) is true, as a batch of its own."""
        part = object.__new__(Waves)
        part.__dict__.update(self.__dict__)
        part.count = int(np.count_nonzero(chosen))
        part.vgpr = np.ascontiguousarray(self.vgpr[:, chosen])
        for name in self._PER_WAVE:
            setattr(part, name, np.ascontiguousarray(getattr(self, name)[chosen]))
        part._adopt()
        return part

    @staticmethod
    def join(parts: list[Waves]) -> Waves:
        """One batch of several that stand at the same place."""
        whole = object.__new__(Waves)
        whole.__dict__.update(parts[0].__dict__)
        whole.count = sum(part.count for part in parts)
        whole.vgpr = np.concatenate([part.vgpr for part in parts], axis=1)
        for name in Waves._PER_WAVE:
            setattr(whole, name, np.concatenate([getattr(part, name) for part in parts]))
        whole._adopt()
        return whole

    def mask(self, register: int) -> Array:
        """A lane mask held in scalar registers, as booleans (W, L)."""
        if self.lanes == 64:
            words = np.ascontiguousarray(self.sgpr64[:, register >> 1])
        else:
            words = np.ascontiguousarray(self.sgpr[:, register])
        octets = words.view(np.uint8).reshape(self.count, self.lanes // 8)
        return np.unpackbits(octets, axis=1, bitorder="little").view(bool)

    def mask_is_empty(self, register: int) -> Array:
        """For each wave, whether a lane mask held in scalar registers is zero (W,)."""
        if self.lanes == 64:
            return self.sgpr64[:, register >> 1] == 0
        return self.sgpr[:, register] == 0

    def mask_bits(self, mask: Array) -> Array:
        """A lane mask (W, L) as integers (W,): uint64 for 64 lanes, uint32 for 32."""
        octets = np.packbits(np.ascontiguousarray(mask), axis=1, bitorder="little")
        return octets.view(np.uint64 if self.lanes == 64 else np.uint32)[:, 0]

    def set_mask(self, register: int, mask: Array) -> None:
        """Write a lane mask (W, L) to scalar registers."""
        if register == EXEC:
            self.set_exec(mask)
        elif self.lanes == 64:
            self.sgpr64[:, register >> 1] = self.mask_bits(mask)
        else:
            self.sgpr[:, register] = self.mask_bits(mask)

    def set_exec(self, mask: Array) -> None:
        self.exec = mask
        self.exec_full = bool(mask.all())
        if self.lanes == 64:
            self.sgpr64[:, EXEC >> 1] = self.mask_bits(mask)
        else:
            self.sgpr[:, EXEC] = self.mask_bits(mask)

    def exec_changed(self) -> None:
        """EXEC's scalar registers were written."""
        self.exec = self.mask(EXEC)
        self.exec_full = bool(self.exec.all())

    def wave_name(self, row: int) -> str:
        return f"workgroup {int(self.workgroup[row])}, wave {int(self.number[row])}"


# Runs one instruction. The result is None to go on behind it, the address to go on at, or one of
# the negative values of control.py.
Step = Callable[[Waves], "int | None"]
