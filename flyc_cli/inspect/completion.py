"""Names for shell completion, out of a bundle; anything that goes wrong completes to nothing."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from flyc_cli.inspect.bundle import looks_like_bundle, open_bundle
from flyc_cli.text import shown_value
from runtime_loader.catalogue import Catalogue
from runtime_loader.errors import FlycError

# A shell waits for the answer: look at this many specialisations at most.
_VARIANTS = 2000


def kernel_names(path: Any) -> list[str]:
    """The kernels of the bundle at `path`."""
    if not path or not looks_like_bundle(Path(path)):
        return []
    try:
        with open_bundle(Path(path)) as file:
            return Catalogue(file).kernels()
    except FlycError:
        return []


def parameter_values(path: Any, kernel: Any) -> list[str]:
    """`NAME=VALUE` for every parameter value of a kernel."""
    if not path or not kernel or not looks_like_bundle(Path(path)):
        return []
    try:
        with open_bundle(Path(path)) as file:
            variants = itertools.islice(Catalogue(file).variants(kernel), _VARIANTS)
            found = {
                f"{name}={shown_value(value)}": None
                for params, _ in variants
                for name, value in params.items()
            }
            return sorted(found)
    except FlycError:
        return []
