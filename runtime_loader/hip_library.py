"""Finds the HIP runtime library."""

from __future__ import annotations

import os
from ctypes import CDLL

from runtime_loader.errors import HipUnavailableError

VARIABLE = "FLYC_HIP_LIBRARY"
NAMES = ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so")


def find_library() -> tuple[CDLL, str]:
    """The library, loaded, and its path or name.

    `FLYC_HIP_LIBRARY` names it; otherwise one that the process has already loaded (torch brings its
    own) goes before the system's. Raises `HipUnavailableError`.
    """
    override = os.environ.get(VARIABLE)
    if override:
        try:
            return CDLL(override), override
        except OSError as error:
            raise HipUnavailableError(f"{VARIABLE}={override} cannot be loaded: {error}") from None
    for name in NAMES:
        try:
            return CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW), name
        except OSError:
            continue
    failures = []
    for name in NAMES:
        try:
            return CDLL(name), name
        except OSError as error:
            failures.append(f"\n  {name}: {error}")
    raise HipUnavailableError(
        "no HIP runtime library could be loaded; tried:"
        + "".join(failures)
        + f"\nInstall ROCm's HIP runtime, or set {VARIABLE} to its libamdhip64.so"
    )
