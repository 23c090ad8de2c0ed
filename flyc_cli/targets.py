"""The targets that flyc builds for, as `flyc targets` lists them."""

from __future__ import annotations

from dataclasses import dataclass

from runtime_loader.target import SUPPORTED

# Architecture and the wavefront size that FlyDSL compiles for (AMDGPUUsage, "Processors";
# flydsl.runtime.device, `get_warp_size` and `is_rdna_arch`).
_ARCHITECTURES = {
    "gfx90a": ("CDNA2", 64),
    "gfx942": ("CDNA3", 64),
    "gfx950": ("CDNA4", 64),
    "gfx1100": ("RDNA3", 32),
    "gfx1201": ("RDNA4", 32),
    "gfx1250": ("CDNA5", 32),
}


@dataclass(frozen=True)
class SupportedTarget:
    """A processor: work-items in a wavefront, and the features that a target ID may fix."""

    processor: str
    architecture: str
    wavefront: int
    features: tuple[str, ...]


def supported_targets() -> tuple[SupportedTarget, ...]:
    """All of them, older ones first."""
    return tuple(
        SupportedTarget(processor, *_ARCHITECTURES[processor], features)
        for processor, features in SUPPORTED.items()
    )
