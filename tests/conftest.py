"""What all tests share: a store of their own, and one HIP test device."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hip_device.build import build


@pytest.fixture(scope="session", autouse=True)
def own_store() -> Iterator[None]:
    """A store of this session's own, for every `flyc build` without `--cache-dir`."""
    with tempfile.TemporaryDirectory(prefix="flyc-store-") as directory:
        before = os.environ.get("FLYC_CACHE_DIR")
        os.environ["FLYC_CACHE_DIR"] = directory
        yield
        if before is None:
            del os.environ["FLYC_CACHE_DIR"]
        else:
            os.environ["FLYC_CACHE_DIR"] = before


@pytest.fixture(scope="session")
def hip_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The HIP test device's library, one for the process: FlyDSL's runtime takes whichever library
    of that name was loaded first."""
    return build(tmp_path_factory.mktemp("hip"))
