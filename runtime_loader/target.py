"""Targets: AMDGPU target IDs (`gfx942`, `gfx942:sramecc+:xnack-`) and which runs where.

Rules and feature lists: LLVM AMDGPUUsage, "Target ID" and "Processors".
"""

from __future__ import annotations

import itertools

from runtime_loader.errors import FlycError
from runtime_loader.records import dataclass

# Processors that flyc builds for, with the target-ID features that each one has.
SUPPORTED: dict[str, tuple[str, ...]] = {
    "gfx90a": ("sramecc", "xnack"),
    "gfx942": ("sramecc", "xnack"),
    "gfx950": ("sramecc", "xnack"),
    "gfx1100": (),
    "gfx1201": (),
    "gfx1250": ("sramecc",),
}

_FEATURES = ("sramecc", "xnack")
_HEX = "0123456789abcdef"


class TargetError(FlycError):
    """A target ID is malformed, or names a feature that its processor lacks."""


@dataclass(frozen=True, order=True)
class Target:
    """A target ID: a processor, and the features that are fixed on (True) or off (False).

    A feature that is absent is "any" in a code object and "not supported" on a device.
    """

    processor: str
    features: tuple[tuple[str, bool], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read a target ID, as manifests write it and as `gcnArchName` reports it."""
        processor, *rest = text.split(":")
        if not _is_processor(processor):
            raise TargetError(f"{text!r} is not a target ID such as gfx942 or gfx942:xnack-")
        features: dict[str, bool] = {}
        for part in rest:
            name, state = part[:-1], part[-1:]
            if name not in _FEATURES or state not in ("+", "-"):
                raise TargetError(
                    f"target {text!r}: {part!r} is not xnack+, xnack-, sramecc+ or sramecc-"
                )
            if name in features:
                raise TargetError(f"target {text!r} names {name} twice")
            features[name] = state == "+"
        return cls(processor, tuple(sorted(features.items())))

    def check_supported(self) -> Target:
        """Return self, or raise `TargetError` if flyc does not build for it."""
        known = SUPPORTED.get(self.processor)
        if known is None:
            raise TargetError(
                f"flyc does not build for {self.processor}; it builds for {', '.join(SUPPORTED)}"
            )
        for feature, _ in self.features:
            if feature not in known:
                raise TargetError(f"target {self}: {self.processor} has no feature {feature}")
        return self

    def __str__(self) -> str:
        return "".join(
            [self.processor, *(f":{name}{'+' if on else '-'}" for name, on in self.features)]
        )

    def runs_on(self, device: Target) -> bool:
        """Whether a code object for this target may be loaded on `device`."""
        return self.processor == device.processor and set(self.features) <= set(device.features)

    def candidates(self) -> list[Target]:
        """For a device: the targets whose code objects it can load, most specific first."""
        return [
            Target(self.processor, chosen)
            for count in range(len(self.features), -1, -1)
            for chosen in itertools.combinations(self.features, count)
        ]


def _is_processor(text: str) -> bool:
    """Whether `text` is `gfx`, three to five hexadecimal digits, and perhaps `-` and a variant."""
    name, dash, variant = text.partition("-")
    digits = name.removeprefix("gfx")
    if digits == name or not 3 <= len(digits) <= 5 or digits.strip(_HEX):
        return False
    plain = variant.replace("-", "a")
    return not dash or (plain.isascii() and plain.isalnum() and plain == plain.lower())
