"""Fixtures of the launch tests: the HIP test device, code objects, and a bundle of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flyc_cli.bundle_writer import BundleContents, write_bundle
from runtime_loader import hip, native
from runtime_loader.specialisation import Specialisation
from tests.hip_device.compile_mlir import compile_mlir
from tests.hip_device.device import HipTestDevice
from tests.launch.samples import KERNELS, MI300, TARGETS, specialisation

pytest.register_assert_rewrite("tests.launch.oracle_bench")


@pytest.fixture(scope="session")
def code_objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return compile_mlir(KERNELS, TARGETS, tmp_path_factory.mktemp("code_objects"))


@pytest.fixture(scope="session")
def tensor_type(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Torch tensors of a device (`device_tensor_type`)."""
    from tests.native.device_tensor import device_tensor_type  # torch, which few tests need

    return device_tensor_type(tmp_path_factory.mktemp("tensors"))


@pytest.fixture(autouse=True, params=["native", "python"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every launch test runs natively, and with the Python code alone."""
    monkeypatch.setenv(native.VARIABLE, "1" if request.param == "native" else "0")
    return str(request.param)


@pytest.fixture
def device(hip_library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HipTestDevice]:
    """Two MI300s, a gfx1100 and a gfx1250, empty, with HIP not yet initialised by the loader."""
    monkeypatch.setenv(hip.LIBRARY_VARIABLE, str(hip_library))
    monkeypatch.setattr(hip, "_runtime", None)
    test_device = HipTestDevice(hip_library)
    test_device.configure(MI300, MI300, "gfx1100", "gfx1250")
    test_device.set_recording(True)
    yield test_device
    test_device.reset()


@pytest.fixture(scope="session")
def make_bundle(
    tmp_path_factory: pytest.TempPathFactory, code_objects: dict[str, bytes]
) -> Callable[..., Path]:
    """Write a bundle of specialisations whose code objects are among `code_objects`."""

    def make(*specs: Specialisation, name: str = "samples", **more: bytes) -> Path:
        by_hash = {
            hashlib.sha256(c).hexdigest(): c for c in (*code_objects.values(), *more.values())
        }
        used = {spec.code_object: by_hash[spec.code_object] for spec in specs}
        order = {spec.kernel: list(spec.params) for spec in specs}
        contents = BundleContents(name, {}, specs, used, parameter_order=order)
        return write_bundle(tmp_path_factory.mktemp("bundle"), contents).link

    return make


@pytest.fixture(scope="session")
def bundle_path(make_bundle: Callable[..., Path], code_objects: dict[str, bytes]) -> Path:
    """scale with N 64 and 128 for gfx942, 64 for gfx1100; 128 also for gfx942:xnack-."""
    return make_bundle(
        specialisation("gfx942", code_objects["gfx942"], N=64, dtype="f32"),
        specialisation("gfx942", code_objects["gfx942"], N=128, dtype="f32"),
        specialisation("gfx942:xnack-", code_objects["gfx942:xnack-"], N=128, dtype="f32"),
        specialisation("gfx1100", code_objects["gfx1100"], N=64, dtype="f32"),
        specialisation("gfx1100", code_objects["gfx1100"], kernel="rows", N=64, dtype="f32"),
    )
