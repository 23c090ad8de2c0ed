"""Builds of the tests keep what they make away from the store of whoever runs them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest


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
