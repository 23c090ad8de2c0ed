"""A kernel's instructions as steps, decoded and built when they are first reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from tests.hip_device.interpreter import (
    control,
    cross_lane,
    data_share,
    matrix,
    packed,
    scalar,
    scalar_memory,
    small_float_conversions,
    vector,
    vector_memory,
)
from tests.hip_device.interpreter.decode import Instruction, decode
from tests.hip_device.interpreter.errors import (
    InterpreterError,
    MemoryFaultError,
    NotModelledError,
)
from tests.hip_device.interpreter.image import Image
from tests.hip_device.interpreter.lds import LdsRaceError, LdsRangeError
from tests.hip_device.interpreter.memory import AddressError
from tests.hip_device.interpreter.operands import Form
from tests.hip_device.interpreter.state import Step, Waves
from tests.hip_device.interpreter.targets import Processor

# Who builds the steps of an encoding, in order; each gives None for what it does not know.
_BUILDERS: dict[str, tuple[Callable[[Form], Step | None], ...]] = {
    "SOP1": (scalar.build, control.build),
    "SOP2": (scalar.build,),
    "SOPC": (scalar.build,),
    "SOPK": (scalar.build, control.build),
    "SOPP": (control.build,),
    "SMEM": (scalar_memory.build,),
    "VOP1": (cross_lane.build, small_float_conversions.build, vector.build),
    "VOP2": (small_float_conversions.build, vector.build),
    "VOP3": (cross_lane.build, small_float_conversions.build, vector.build),
    "VOP3SD": (vector.build,),
    "VOPC": (vector.build,),
    "VOPD": (vector.build_dual,),
    "VOP3P": (matrix.build, packed.build),
    "VOP3PX2": (matrix.build,),
    "DS": (data_share.build,),
    "FLAT": (vector_memory.build,),
    "GLOBAL": (vector_memory.build,),
    "SCRATCH": (vector_memory.build,),
    "MUBUF": (vector_memory.build,),
}

# Instruction classes that counters tell apart.
_CLASSES = {
    "SOP1": "scalar", "SOP2": "scalar", "SOPC": "scalar", "SOPK": "scalar", "SOPP": "control",
    "SMEM": "scalar memory", "DS": "lds", "FLAT": "vector memory", "GLOBAL": "vector memory",
    "SCRATCH": "vector memory", "MUBUF": "vector memory",
}  # fmt: skip


class Program:
    """The code of one code object on one processor. Addresses count from the load base."""

    def __init__(self, image: Image, processor: Processor) -> None:
        self.processor = processor
        self._image = image
        self._instructions: dict[int, Instruction] = {}
        self._steps: dict[int, tuple[Step, int]] = {}

    def instruction(self, address: int) -> Instruction:
        """The instruction at an address."""
        found = self._instructions.get(address)
        if found is None:
            window = self._image.code(address, 16)
            if len(window) < 4:
                raise NotModelledError(f"execution left the code, at 0x{address:x}")
            found = self._instructions[address] = decode(window, address, self.processor)
        return found

    def listing(self, start: int, end: int) -> Iterator[Instruction]:
        """The instructions from `start` to `end`, one after another."""
        while start < end:
            inst = self.instruction(start)
            yield inst
            start += inst.size

    def step(self, address: int) -> tuple[Step, int]:
        """What to do at an address, and where the next instruction is."""
        found = self._steps.get(address)
        if found is None:
            inst = self.instruction(address)
            found = self._steps[address] = build_step(inst, self.processor), address + inst.size
        return found

    def explain(self, kernel: str, w: Waves, error: Exception) -> InterpreterError:
        """An error in the current instruction, told with kernel, instruction, wave and lane."""
        inst = self._instructions.get(w.pc)
        place = f"{kernel}: [{inst or f'0x{w.pc:x}'}]"
        if isinstance(error, LdsRaceError):
            first, second = (str(self.instruction(at)) for at in error.race.places)
            return error.as_race(kernel, (first, second))
        if isinstance(error, AddressError | LdsRangeError):
            where = error.where
            lane = f", lane {where[1]}" if len(where) > 1 else ""
            return MemoryFaultError(f"{place}, {w.wave_name(where[0])}{lane}: {error}")
        if isinstance(error, InterpreterError):
            return type(error)(f"{place}: {error}")
        return NotModelledError(f"{place}: {type(error).__name__}: {error}")

    def classes(self, executed: Counter[int]) -> Counter[str]:
        """Counts by instruction class, from counts by address."""
        counts: Counter[str] = Counter()
        for address, count in executed.items():
            inst = self.instruction(address)
            name = _CLASSES.get(inst.encoding, "vector")
            if inst.name.startswith(("v_mfma", "v_wmma", "v_smfmac", "v_swmmac")):
                name = "matrix"
            counts[name] += count
        return counts


def build_step(inst: Instruction, processor: Processor) -> Step:
    """The step of an instruction; `NotModelledError` if nothing implements it."""
    form = Form(inst, processor)
    for builder in _BUILDERS.get(inst.encoding, ()):
        step = builder(form)
        if step is not None:
            return step
    raise NotModelledError(f"{inst.name} ({inst.encoding}) is not implemented")
