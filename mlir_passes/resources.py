"""What a kernel takes from the hardware, from its metadata note and its kernel descriptor.

Sources: AMDGPUUsage, "Kernel Descriptor" (register granules); LLVM's AMDGPU subtarget (registers
per SIMD, allocation granule, waves per SIMD; AMDGPUSubtarget.cpp, getOccupancyWithWorkGroupSizes:
what LDS leaves room for). The tests compare the waves with what LLVM's own kernel-resource-usage
remarks report.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runtime_loader.code_object import KernelMetadata
from runtime_loader.specialisation import Resources

_RSRC1 = slice(48, 52)
_VGPR_BLOCKS = 0x3F


# Bytes of LDS that LLVM counts with for the four SIMDs that share it.
_LDS = {
    "gfx90a": 64 << 10,
    "gfx942": 64 << 10,
    "gfx950": 160 << 10,
    "gfx1100": 128 << 10,
    "gfx1201": 128 << 10,
    "gfx1250": 320 << 10,
}
_SIMDS = 4
# CDNA has 800 SGPRs for each SIMD, and more than this many leave room for 7 waves only.
_SGPRS_OF_ALL_WAVES = 100


@dataclass(frozen=True)
class _RegisterFile:
    """Per SIMD: VGPRs of one lane, allocation granule, granule of the descriptor's count."""

    vgprs: int
    granule: int
    encoding: int
    max_waves: int


_CDNA = _RegisterFile(vgprs=512, granule=8, encoding=8, max_waves=8)
_RDNA_WAVE32 = _RegisterFile(vgprs=1536, granule=24, encoding=8, max_waves=16)
_RDNA_WAVE64 = _RegisterFile(vgprs=768, granule=12, encoding=4, max_waves=16)
_GFX1250 = _RegisterFile(vgprs=1024, granule=16, encoding=16, max_waves=16)

# (processor, wavefront size) of everything that flyc builds for.
_FILES = {
    **{(processor, 64): _CDNA for processor in ("gfx90a", "gfx942", "gfx950")},
    **{(processor, 32): _RDNA_WAVE32 for processor in ("gfx1100", "gfx1201")},
    **{(processor, 64): _RDNA_WAVE64 for processor in ("gfx1100", "gfx1201")},
    ("gfx1250", 32): _GFX1250,
}


def kernel_resources(kernel: KernelMetadata, processor: str) -> Resources:
    """Read the resources of one kernel built for `processor`."""
    note = kernel.metadata
    wavefront = int(note[".wavefront_size"])
    file = _FILES[processor, wavefront]
    blocks = int.from_bytes(kernel.descriptor[_RSRC1], "little") & _VGPR_BLOCKS
    encoded = (blocks + 1) * file.encoding
    allocated = -(-encoded // file.granule) * file.granule
    x, y, z = (int(size) for size in note.get(".reqd_workgroup_size", (0, 0, 0)))
    return Resources(
        vgprs=int(note[".vgpr_count"]),
        agprs=int(note.get(".agpr_count", 0)),
        sgprs=int(note[".sgpr_count"]),
        vgpr_spills=int(note.get(".vgpr_spill_count", 0)),
        sgpr_spills=int(note.get(".sgpr_spill_count", 0)),
        lds=int(note[".group_segment_fixed_size"]),
        scratch=int(note[".private_segment_fixed_size"]),
        wavefront=wavefront,
        workgroup=(x, y, z),
        max_workgroup=int(note[".max_flat_workgroup_size"]),
        allocated_vgprs=allocated,
        waves_per_simd=max(
            1,
            min(
                file.max_waves,
                file.vgprs // allocated,
                _waves_of_lds(note, processor, wavefront),
                7 if file is _CDNA and int(note[".sgpr_count"]) > _SGPRS_OF_ALL_WAVES else 99,
            ),
        ),
    )


def _waves_of_lds(note: dict[str, Any], processor: str, wavefront: int) -> int:
    """The waves of a SIMD for whose workgroups there is LDS, rounded up."""
    lds = int(note[".group_segment_fixed_size"])
    workgroups = _LDS[processor] // max(lds, 1)
    waves_each = -(-int(note[".max_flat_workgroup_size"]) // wavefront)
    return -(-workgroups * waves_each // _SIMDS)
