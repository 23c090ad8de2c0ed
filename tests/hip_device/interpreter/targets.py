"""The processors that can be interpreted, and the facts in which they differ.

Sources: AMDGPUUsage ("Processors", "Initial Kernel Execution State"), the ISA documents.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.hip_device.interpreter.errors import NotModelledError


@dataclass(frozen=True)
class Processor:
    """One processor.

    `family` names tinygrad's tables. `m0` and `null` are scalar operand codes (`null` is -1 where
    there is none). `ocp_fp8`: 8-bit floats follow the OCP formats, not the "fnuz" ones.
    """

    name: str
    family: str
    m0: int
    null: int
    flat_scratch_architected: bool
    workgroup_ids_in_ttmp: bool
    ocp_fp8: bool

    @property
    def is_cdna(self) -> bool:
        return self.family == "cdna"


def _cdna(name: str, *, architected: bool, ocp: bool) -> Processor:
    return Processor(name, "cdna", 124, -1, architected, False, ocp)


PROCESSORS = {
    processor.name: processor
    for processor in (
        _cdna("gfx90a", architected=False, ocp=False),
        _cdna("gfx942", architected=True, ocp=False),
        _cdna("gfx950", architected=True, ocp=True),
        Processor("gfx1100", "rdna3", 125, 124, True, False, True),
        Processor("gfx1201", "rdna4", 125, 124, True, True, True),
    )
}


def processor(name: str) -> Processor:
    """The processor called `name`; `NotModelledError` for one without instruction tables."""
    if name not in PROCESSORS:
        raise NotModelledError(
            f"execution on {name} is not modelled, only on {', '.join(PROCESSORS)}"
        )
    return PROCESSORS[name]
