"""Runs a kernel: sets registers up as its descriptor asks, and executes all workgroups.

Source: AMDGPUUsage, "Kernel Descriptor" and "Initial Kernel Execution State".
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from tests.hip_device.interpreter.errors import NotModelledError
from tests.hip_device.interpreter.image import Image
from tests.hip_device.interpreter.lds import WorkgroupMemory
from tests.hip_device.interpreter.memory import GlobalMemory
from tests.hip_device.interpreter.program import Program
from tests.hip_device.interpreter.scheduler import Schedule, Scheduler
from tests.hip_device.interpreter.state import POISON, Mode, Surroundings, Waves
from tests.hip_device.interpreter.targets import Processor, processor
from tests.hip_device.interpreter.vector_memory import SCRATCH_BASE

Three = tuple[int, int, int]

_TTMP7, _TTMP9 = 108 + 7, 108 + 9
# Waves that run in one chunk: enough to make the cost of Python small, few enough for the caches.
CHUNK_WAVES = 64
STEP_LIMIT = 20_000_000
# Firmware that preloads kernarg skips this much of code that would load it.
_PRELOAD_PROLOGUE = 256


@dataclass(frozen=True)
class Descriptor:
    """The fields of a kernel descriptor that say how waves begin."""

    registers: int
    acc_base: int
    lanes: int
    mode: Mode
    user_sgprs: int
    properties: int
    preload: tuple[int, int]  # first dword and number of dwords
    scratch: int
    lds: int
    workgroup_ids: tuple[bool, bool, bool]
    scratch_offset: bool

    @classmethod
    def read(cls, data: bytes, target: Processor) -> Descriptor:
        lds, scratch = struct.unpack_from("<II", data, 0)
        rsrc3, rsrc1, rsrc2 = struct.unpack_from("<III", data, 44)
        properties, preload = struct.unpack_from("<HH", data, 56)
        lanes = 32 if not target.is_cdna and properties >> 10 & 1 else 64
        if rsrc1 >> 12 & 0xF:
            raise NotModelledError("the kernel asks for a rounding mode other than to nearest")
        if properties >> 11 & 1:
            raise NotModelledError("the kernel uses a dynamic stack")
        granule = 8 if target.is_cdna or lanes == 32 else 4
        registers = ((rsrc1 & 0x3F) + 1) * granule
        mode = (rsrc1 >> 16 & 0xF) << 4 | (rsrc1 >> 21 & 1) << 8 | (rsrc1 >> 23 & 1) << 9
        return cls(
            registers=registers,
            acc_base=((rsrc3 & 0x3F) + 1) * 4 if target.is_cdna else registers,
            lanes=lanes,
            mode=Mode.from_bits(mode),
            user_sgprs=rsrc2 >> 1 & 0x1F,
            properties=properties,
            preload=(preload >> 7, preload & 0x7F),
            scratch=scratch,
            lds=lds,
            workgroup_ids=(bool(rsrc2 >> 7 & 1), bool(rsrc2 >> 8 & 1), bool(rsrc2 >> 9 & 1)),
            scratch_offset=bool(rsrc2 & 1) and not target.flat_scratch_architected,
        )


@dataclass
class Counters:
    """What a launch did: instructions of waves by class, bytes moved, barriers passed by waves."""

    instructions: Counter[str] = field(default_factory=Counter)
    bytes_loaded: int = 0
    bytes_stored: int = 0
    barriers: int = 0
    workgroups: int = 0
    waves: int = 0

    @property
    def total(self) -> int:
        return sum(self.instructions.values())

    def __str__(self) -> str:
        classes = ", ".join(f"{name} {n}" for name, n in sorted(self.instructions.items()))
        return (
            f"{self.workgroups} workgroups, {self.waves} waves, {self.total} instructions "
            f"({classes}), {self.bytes_loaded} bytes loaded, {self.bytes_stored} stored, "
            f"{self.barriers} barriers"
        )


class CodeObjectProgram:
    """A code object that is ready to run; decoded instructions are kept between launches."""

    def __init__(self, code_object: bytes) -> None:
        self.image = Image(code_object)
        self.processor = processor(self.image.target.processor)
        self.program = Program(self.image, self.processor)
        self._granules: dict[str, int] = {}

    def race_granule(self, kernel: str) -> int:
        """The narrowest LDS access of a kernel, in bytes and at most 4."""
        found = self._granules.get(kernel)
        if found is None:
            names = [inst.name for inst in self.program.listing(*self.image.extent(kernel))]
            lds = [name for name in names if name.startswith("ds_")]
            found = 4
            if any(re.search(r"_[bui]8(_|$)", name) for name in lds):
                found = 1
            elif any(re.search(r"_[bui]16(_d16|$)", name) for name in lds):
                found = 2
            self._granules[kernel] = found
        return found


@dataclass(frozen=True)
class Request:
    """One launch: `grid` counts workgroups, `block` workitems; `code_base` is the load address."""

    kernel: str
    grid: Three
    block: Three
    kernarg: bytes
    dynamic_lds: int = 0
    code_base: int = 0


def run(
    code: CodeObjectProgram,
    request: Request,
    memory: GlobalMemory,
    schedule: Schedule = Schedule(),  # noqa: B008 - frozen
    *,
    detect_races: bool = True,
    limit: int = STEP_LIMIT,
) -> Counters:
    """Execute a launch to its end. Raises `InterpreterError`.

    Memory holds what was written until then, as on a device that stops at a fault.
    """
    return _Launch(code, request, memory, schedule, detect_races).run(limit)


class _Launch:
    def __init__(
        self,
        code: CodeObjectProgram,
        request: Request,
        memory: GlobalMemory,
        schedule: Schedule,
        detect_races: bool,
    ) -> None:
        self._code, self._request, self._schedule = code, request, schedule
        self._memory = memory
        metadata = code.image.kernels[request.kernel]
        self._descriptor = Descriptor.read(metadata.descriptor, code.processor)
        # FlyDSL leaves the descriptor's LDS size zero; the metadata has it.
        static = max(self._descriptor.lds, int(metadata.metadata[".group_segment_fixed_size"]))
        self._lds_size = static + request.dynamic_lds
        self._granule = code.race_granule(request.kernel) if detect_races else 0
        self._entry = code.image.entry(request.kernel)
        self._kernarg = _padded(request.kernarg)
        self._packet = self._dispatch_packet()
        x, y, z = request.block
        self._threads = x * y * z
        self._waves_a_group = -(-self._threads // self._descriptor.lanes)

    def run(self, limit: int) -> Counters:
        request, memory = self._request, self._memory
        counters = Counters(workgroups=int(np.prod(request.grid, dtype=np.int64)))
        counters.waves = counters.workgroups * self._waves_a_group
        loaded, stored = memory.bytes_loaded, memory.bytes_stored
        owned = [
            memory.add_array(self._kernarg, "the kernarg segment"),
            memory.add_array(self._packet, "the dispatch packet"),
        ]
        executed: Counter[int] = Counter()
        try:
            for groups in self._chunks(counters.workgroups):
                counters.barriers += self._run_chunk(groups, executed, limit)
        finally:
            for allocation in owned:
                memory.remove(allocation)
        counters.instructions = self._code.program.classes(executed)
        counters.bytes_loaded = memory.bytes_loaded - loaded
        counters.bytes_stored = memory.bytes_stored - stored
        return counters

    def _chunks(self, total: int) -> list[np.ndarray]:
        size = max(1, CHUNK_WAVES // self._waves_a_group)
        chunks = [np.arange(at, min(at + size, total)) for at in range(0, total, size)]
        return chunks[::-1] if self._schedule.kind == "reverse" else chunks

    def _run_chunk(self, groups: np.ndarray, executed: Counter[int], limit: int) -> int:
        request, program = self._request, self._code.program
        scheduler = Scheduler(
            program, request.kernel, self._schedule, len(groups), self._waves_a_group
        )
        scheduler.executed = executed
        waves = self._waves(groups)
        waves.around = Surroundings(
            memory=self._memory,
            lds=WorkgroupMemory(len(groups), self._lds_size, self._granule),
            code_base=request.code_base,
            arrived=scheduler.arrived,
        )
        scheduler.run(waves, limit)
        return scheduler.barriers

    def _waves(self, groups: np.ndarray) -> Waves:
        descriptor, per_group = self._descriptor, self._waves_a_group
        count, lanes = len(groups) * per_group, descriptor.lanes
        waves = Waves(count, lanes, descriptor.registers, descriptor.acc_base, descriptor.mode)
        waves.workgroup = np.repeat(np.arange(len(groups)), per_group)
        waves.number = np.tile(np.arange(per_group), len(groups))
        if descriptor.scratch:
            size = (descriptor.scratch + 15) // 16 * 4
            waves.scratch = np.full((count, lanes, size), POISON, np.uint32).view(np.uint8)
        item = waves.number[:, None] * lanes + np.arange(lanes)
        waves.set_exec(item < self._threads)
        x, y, _ = self._request.block
        waves.vgpr[0] = item % x | item // x % y << 10 | item // (x * y) << 20
        self._set_scalars(waves, np.repeat(groups, per_group))
        waves.pc = self._entry + (_PRELOAD_PROLOGUE if descriptor.preload[1] else 0)
        return waves

    def _set_scalars(self, waves: Waves, group: np.ndarray) -> None:
        descriptor, target = self._descriptor, self._code.processor
        user = self._user_data()
        if len(user) > descriptor.user_sgprs:
            raise NotModelledError(
                f"{self._request.kernel}: {len(user)} user SGPRs are enabled, "
                f"{descriptor.user_sgprs} are allocated"
            )
        waves.sgpr[:, : len(user)] = np.array(user, np.uint32)
        nx, ny, _ = self._request.grid
        ids = (group % nx, group // nx % ny, group // (nx * ny))
        if target.workgroup_ids_in_ttmp:
            waves.sgpr[:, _TTMP9] = ids[0]
            waves.sgpr[:, _TTMP7] = ids[1] | ids[2] << 16
            return
        register = descriptor.user_sgprs
        for enabled, number in zip(descriptor.workgroup_ids, ids, strict=True):
            if enabled:
                waves.sgpr[:, register] = number
                register += 1
        if descriptor.scratch_offset:
            waves.sgpr[:, register] = 0

    def _user_data(self) -> list[int]:
        """The user SGPRs, in the order in which AMDGPUUsage lists them."""
        descriptor = self._descriptor
        words: list[int] = []

        def address(value: int) -> list[int]:
            return [value & 0xFFFFFFFF, value >> 32]

        properties = descriptor.properties
        if properties & 1:
            words += [*address(SCRATCH_BASE), 0xFFFFFFFF, 0]
        if properties >> 1 & 1:
            words += address(self._packet.ctypes.data)
        if properties >> 2 & 1:
            raise NotModelledError(f"{self._request.kernel}: the queue pointer")
        if properties >> 3 & 1:
            words += address(self._kernarg.ctypes.data)
        if properties >> 4 & 1:
            words += [0, 0]
        if properties >> 5 & 1:
            words += [0, 0]
        if properties >> 6 & 1:
            words += [descriptor.scratch]
        first, count = descriptor.preload
        if count:
            preloaded = self._kernarg.view(np.uint32)[first : first + count]
            words += [int(word) for word in preloaded]
        return words

    def _dispatch_packet(self) -> np.ndarray:
        """The AQL packet (HSA runtime specification, hsa_kernel_dispatch_packet_t)."""
        grid = [n * b for n, b in zip(self._request.grid, self._request.block, strict=True)]
        packet = struct.pack(
            "<HHHHHHIIIII8xQ16x",
            2, 3, *self._request.block, 0, *(g & 0xFFFFFFFF for g in grid),
            self._descriptor.scratch, self._lds_size, self._kernarg.ctypes.data,
        )  # fmt: skip
        return np.frombuffer(packet, np.uint8).copy()


def _padded(kernarg: bytes) -> np.ndarray:
    """The segment at an address of 16 bytes' alignment, filled up to whole 16 bytes."""
    size = max((len(kernarg) + 15) // 16 * 16, 16)
    words = np.full(size // 4 + 4, POISON, np.uint32)
    skip = -words.ctypes.data % 16
    segment = words.view(np.uint8)[skip : skip + size]
    segment[: len(kernarg)] = np.frombuffer(kernarg, np.uint8)
    return segment
