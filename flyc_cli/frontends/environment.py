"""The environment variables that decide what FlyDSL compiles; a build depends on none of them."""

from __future__ import annotations

from collections.abc import Mapping

# LLVM_GFX1250_ANY_XNACK_CODEGEN changes code; the others of LLVM change what it prints.
_PREFIXES = ("FLYDSL_", "LLVM_")
_NAMES = ("ARCH", "COMPILE_ONLY", "HSA_OVERRIDE_GFX_VERSION")


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of `environment` that FlyDSL and LLVM do not read as settings."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _NAMES and not name.startswith(_PREFIXES)
    }
