"""Fixtures of the device's own tests: the built library, a clean device, compiled launchers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.hip_device.compile_sample import CompiledSample, compile_sample
from tests.hip_device.device import HipTestDevice

MI300X = "gfx942:sramecc+:xnack-"


@pytest.fixture(scope="session")
def loaded_device(hip_library: Path) -> HipTestDevice:
    return HipTestDevice(hip_library)


@pytest.fixture
def device(loaded_device: HipTestDevice) -> Iterator[HipTestDevice]:
    """Two devices of one kind, with nothing allocated."""
    loaded_device.configure(MI300X, MI300X)
    yield loaded_device
    loaded_device.reset()


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], CompiledSample]:
    """Compiles a launcher of sample_kernels for a target, each once a session."""

    @cache
    def compiled(name: str, target: str) -> CompiledSample:
        return compile_sample(name, target, tmp_path_factory.mktemp(f"{name}-{target}"))

    return compiled


@pytest.fixture(scope="session")
def hsaco(sample: Callable[[str, str], CompiledSample]) -> bytes:
    """The code object of the `scale` launcher for gfx942; its kernel is scale_kernel_0."""
    return sample("scale", "gfx942").hsaco
