"""`flyc run` on the HIP test device: what is launched, what is refused, what is left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flyc_cli.smoke.run import run
from runtime_loader import hip
from runtime_loader.errors import HipError
from tests.hip_device.device import HipTestDevice

pytestmark = [pytest.mark.compile, pytest.mark.device]

MI300 = "gfx942:sramecc+:xnack-"


@pytest.fixture
def on_device(hip_library: Path) -> dict[str, str]:
    return {"FLYC_HIP_LIBRARY": str(hip_library), "HIPTEST_DEVICES": f"{MI300},gfx950"}


@pytest.fixture
def bundle_path(built) -> Path:
    return built[0] / "samples.flybundle"


def test_a_smoke_test(flyc, bundle_path: Path, on_device: dict[str, str]) -> None:
    result = flyc("run", bundle_path, "scale", "N=128", "--iterations", 3, env=on_device)
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == f"scale(N=128) for gfx942 on device 0 ({MI300})"
    assert "  x: pointer to 1,048,576 f32" in lines
    assert "  factor: f32 1.0" in lines
    assert "  launch scale_kernel_0 grid (1, 1, 1) block (128, 1, 1) lds 0" in lines
    assert lines[-1].startswith("  3 iterations: min ")


def test_json(flyc, bundle_path: Path, on_device: dict[str, str]) -> None:
    args = ("--shape", "x=2x64", "--set", "factor=0.5", "--iterations", 2, "--json")
    result = flyc("run", bundle_path, "scale", "N=64", *args, env=on_device)
    report = json.loads(result.stdout)
    assert report["params"] == {"N": 64}
    assert report["arguments"]["x"] == "pointer to 128 f32"
    assert report["arguments"]["factor"] == "f32 0.5"
    assert report["iterations"] == 2
    assert 0 <= report["min"] <= report["median"]


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("scale",), 2, "needs one specialisation, and 2 fit"),
        (("scael",), 4, "did you mean 'scale'?"),
        (("scale", "N=65"), 4, "values of N: 64, 128"),
        (("scale", "N=64", "--device", "1"), 4, "tried targets: gfx950"),
        (("scale", "N=64", "--device", "2"), 3, "there is no device 2"),
        (("scale", "N=64", "--set", "faktor=1"), 2, "did you mean 'factor'?"),
        (("scale", "N=64", "--set", "factor=much"), 2, "'much' is not a value of type f32"),
        (("scale", "N=64", "--shape", "x=0y"), 2, "'0y' is not a shape"),
        (("scale", "N=64", "--shape", "factor=1"), 2, "--shape takes x"),
        (("scale", "N=64", "--shape", f"x={1 << 50}"), 3, "hipErrorOutOfMemory"),
    ],
)
def test_what_is_refused(flyc, bundle_path, on_device, args, code: int, said: str) -> None:
    result = flyc("run", bundle_path, *args, env=on_device)
    assert (result.returncode, result.stdout) == (code, "")
    assert said in result.stderr
    report = flyc("run", bundle_path, *args, "--json", env=on_device)
    assert (report.returncode, report.stderr) == (code, "")
    assert said in json.loads(report.stdout)["error"]["message"]


def test_no_device_and_no_library(flyc, bundle_path: Path, on_device: dict[str, str]) -> None:
    none = flyc("run", bundle_path, "scale", "N=64", env={**on_device, "HIPTEST_DEVICES": ""})
    assert (none.returncode, none.stdout) == (3, "")
    assert "no device" in none.stderr or "no usable device" in none.stderr
    missing = flyc("run", bundle_path, "scale", "N=64", env={"FLYC_HIP_LIBRARY": "/none.so"})
    assert missing.returncode == 3
    assert "FLYC_HIP_LIBRARY=/none.so cannot be loaded" in missing.stderr


def test_everything_is_freed(
    bundle_path: Path, hip_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(hip.LIBRARY_VARIABLE, str(hip_library))
    monkeypatch.setattr(hip, "_runtime", None)
    device = HipTestDevice(hip_library)
    device.configure(MI300)
    device.set_recording(True)

    def launch() -> None:
        run(bundle_path, "scale", {"N": "64"}, shapes={}, values={}, iterations=4)

    launch()
    launches = device.take_launches()
    assert len(launches) == 1 + 4
    assert {launch.kernel for launch in launches} == {"scale_kernel_0"}
    assert device.live_allocations() == 0
    device.fail("hipModuleLaunchKernel", 1, nth=3)
    with pytest.raises(HipError, match="hipErrorInvalidValue"):
        launch()
    assert device.live_allocations() == 0
    device.reset()
