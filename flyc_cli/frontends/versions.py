"""The FlyDSL versions that flyc is checked on, where they can be read without importing FlyDSL."""

from __future__ import annotations

import warnings

CHECKED_VERSIONS = ("0.3.1", "0.3.4", "0.4.2", "0.5.0")


class FlydslVersionWarning(UserWarning):
    """FlyDSL is not one of the versions that flyc was checked on."""


def warn_if_unchecked(version: str) -> None:
    """Warn about a FlyDSL that flyc was not checked on; it may work all the same."""
    if version not in CHECKED_VERSIONS:
        warnings.warn(
            f"FlyDSL {version} is not a version that flyc was checked on ({checked_versions()}); "
            "what it builds may differ, so test it before you deploy it",
            FlydslVersionWarning,
            stacklevel=3,
        )


def checked_versions() -> str:
    return ", ".join(CHECKED_VERSIONS)
