"""Cooperative launches, which FlyDSL's Python does not have: from an MLIR file to HIP."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyc_cli import Kernel, Manifest, build
from runtime_loader import hip
from runtime_loader.loader import load
from tests.hip_device.device import HipTestDevice

pytestmark = [pytest.mark.compile, pytest.mark.device]

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "axpy.mlir"
ARGS = {"x": {"pointer": "f32"}, "y": {"pointer": "f32"}, "a": "f32", "n": "i32"}


def test_a_module_can_launch_cooperatively(
    tmp_path: Path, hip_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = EXAMPLE.read_text().replace(
        "%n : i32)\n    return", "%n : i32) {cooperative}\n    return"
    )
    (tmp_path / "axpy.mlir").write_text(text)
    manifest = Manifest(
        "cooperative", kernels=[Kernel("axpy", mlir="axpy.mlir", args=ARGS)], targets=["gfx942"]
    )
    path = build(manifest, tmp_path / "out", base=tmp_path).path

    monkeypatch.setenv(hip.LIBRARY_VARIABLE, str(hip_library))
    monkeypatch.setattr(hip, "_runtime", None)
    device = HipTestDevice(hip_library)
    device.configure("gfx942")
    with load(path) as bundle:
        bundle.kernel("axpy")(4096, 8192, 1.0, 300)
    (launch,) = device.launches()
    assert launch.cooperative
    assert (launch.grid, launch.block) == ((2, 1, 1), (256, 1, 1))
    device.reset()
