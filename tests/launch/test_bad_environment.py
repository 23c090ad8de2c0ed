"""HIP libraries that lack a symbol, calls that fail, devices that go, bundles that change."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import runtime_loader as rt
from runtime_loader import hip
from runtime_loader.bundle_file import BundleFile
from runtime_loader.kernel import Kernel
from tests.hip_device.device import HipTestDevice
from tests.launch.samples import MI300, specialisation
from tests.launch.test_graphs import x
from tests.launch.test_launch import Array

pytestmark = [pytest.mark.device, pytest.mark.compile]

# Every call of a first launch, with the device given and not the current one.
LOADING = {
    "hipInit",
    "hipGetDevice",
    "hipGetDeviceCount",
    "hipGetDevicePropertiesR0600",
    "hipSetDevice",
    "hipStreamIsCapturing",
    "hipModuleLoadData",
    "hipModuleGetFunction",
}
LAUNCHING = {"hipGetDevice", "hipStreamGetDevice", "hipModuleLaunchKernel"}


def calls_of(device: HipTestDevice, action: Callable[[], object]) -> dict[str, int]:
    """How often an action calls each function of HIP."""
    before = device.calls()
    action()
    counts = {name: count - before.get(name, 0) for name, count in device.calls().items()}
    return {name: count for name, count in counts.items() if count}


def fails(device: HipTestDevice, call: str, nth: int, action: Callable[[], object]) -> None:
    """From its nth time on, a call fails, and the action with it."""
    device.fail(call, 999, nth=nth, repeat=True)
    with pytest.raises((rt.HipError, rt.HipUnavailableError)) as caught:
        action()
    device.clear_failures()
    assert f"{call} failed with hipErrorUnknown (999" in str(caught.value)


def test_each_call_of_a_load_can_fail(device: HipTestDevice, bundle_path: Path) -> None:
    def load() -> Kernel:
        return rt.load(bundle_path).kernel("scale", N=64, device=1)

    counts = calls_of(device, load)
    assert set(counts) == LOADING
    for call, nth in [(name, n + 1) for name in LOADING for n in range(counts[name])]:
        device.reset()
        device.configure(MI300, MI300)
        hip._runtime = None
        fails(device, call, nth, load)
        if (call, nth) != ("hipSetDevice", counts["hipSetDevice"]):  # the way back
            assert hip.runtime().current_device() == 0
        hip.runtime().set_device(1)
        load()(x(device=1), 1, 1.0)
        assert [launch.device for launch in device.launches()] == [1, 1]
        assert device.live_modules() == 1


@pytest.mark.parametrize("watched", [False, True])
def test_each_call_of_a_launch_can_fail(
    device: HipTestDevice, bundle_path: Path, watched: bool
) -> None:
    """`watched`: of a kernel that has to know of captures."""
    bundle = rt.Bundle(BundleFile.open(bundle_path), keep=not watched)
    kernel = bundle.kernel("scale", N=64, device=1)
    hip.runtime().set_device(1)
    stream = device.create("hipStreamCreate")

    def launch() -> None:
        kernel(x(device=1), 1, 1.0, stream)

    launch()  # counts the devices, once
    counts = calls_of(device, launch)
    assert set(counts) == LAUNCHING | ({"hipStreamIsCapturing"} if watched else set())
    device.take_launches()
    for call, nth in [(name, n + 1) for name in counts for n in range(counts[name])]:
        fails(device, call, nth, launch)
        made = nth - 1 if call == "hipModuleLaunchKernel" else 0
        assert len(device.take_launches()) == made
        launch()
        assert len(device.take_launches()) == 2


def test_the_second_of_two_launches_can_fail(device: HipTestDevice, bundle_path: Path) -> None:
    kernel = rt.load(bundle_path).kernel("scale", N=64)
    device.fail("hipModuleLaunchKernel", 1, nth=2)
    with pytest.raises(rt.HipError, match=r"while launching pair of scale\(N=64"):
        kernel(Array(4096, (1, 64)), 1, 1.0)
    assert [launch.kernel for launch in device.launches()] == ["scale"]


def test_the_stream_cannot_be_asked(device: HipTestDevice, bundle_path: Path) -> None:
    kernel = rt.load(bundle_path).kernel("scale", N=64)
    stream = device.create("hipStreamCreate")
    device.fail("hipStreamGetDevice", 400, repeat=True)
    with pytest.raises(rt.HipError, match=rf"while using stream {stream:#x}"):
        kernel(Array(4096, (1, 64)), 1, 1.0, stream)
    assert device.launches() == ()


def test_a_device_lost_mid_run(device: HipTestDevice, bundle_path: Path) -> None:
    bundle = rt.load(bundle_path)
    kernel = bundle.kernel("scale", N=64)
    kernel(Array(4096, (1, 64)), 1, 1.0)
    device.take_launches()
    device.lose_device(0)
    for _ in range(2):
        with pytest.raises(rt.HipError) as caught:
            kernel(Array(4096, (1, 64)), 1, 1.0)
        assert caught.value.code == 719
        with pytest.raises(rt.HipError, match="719"):
            bundle.kernel("scale", N=128)
    device.check("hipSetDevice", 1)
    bundle.kernel("scale", N=64, device=1)(Array(4096, (1, 64), device=1), 1, 1.0)
    assert {launch.device for launch in device.launches()} == {1}


STAND_IN = """
int hipInit(unsigned flags) { return 0; }
const char *hipGetErrorName(int code) { return "hipErrorStandIn"; }
const char *hipGetErrorString(int code) { return "stand-in"; }
int hipModuleLaunchKernel(void) { return 0; }
int hipGetDevice(int *device) { *device = 0; return 0; }
int hipGetDeviceCount(int *count) { *count = 1; return 0; }
int hipGetDevicePropertiesR0600(char *properties, int device) {
    for (int i = 0; "gfx942"[i]; i++) properties[1160 + i] = "gfx942"[i];
    return 0;
}
int hipModuleLoadData(void **module, const void *image) { *module = (void *)1; return 0; }
int hipModuleGetFunction(void **function, void *module, const char *name) { return 0; }
"""


@pytest.mark.parametrize(
    "symbol",
    [
        "hipInit",
        "hipGetErrorName",
        "hipModuleLaunchKernel",
        "hipGetDevice",
        "hipGetDeviceCount",
        "hipModuleLoadData",
        "hipModuleGetFunction",
    ],
)
def test_a_library_without_a_symbol(
    bundle_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, symbol: str
) -> None:
    source, library = tmp_path / "hip.c", tmp_path / "libamdhip64.so"
    lines = [line for line in STAND_IN.splitlines() if f" {symbol}(" not in line.replace("*", " ")]
    assert len(lines) == len(STAND_IN.splitlines()) - 1
    source.write_text("\n".join(lines))
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", library], check=True)
    monkeypatch.setenv(hip.LIBRARY_VARIABLE, str(library))
    monkeypatch.setattr(hip, "_runtime", None)
    with pytest.raises(rt.HipUnavailableError, match=rf"{library} has no symbol {symbol}: it is"):
        rt.load(bundle_path).kernel("scale", N=64)


def test_a_library_that_is_none(
    bundle_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libamdhip64.so").write_text("not a library")
    monkeypatch.setenv(hip.LIBRARY_VARIABLE, str(tmp_path / "libamdhip64.so"))
    monkeypatch.setattr(hip, "_runtime", None)
    with pytest.raises(rt.HipUnavailableError, match=r"FLYC_HIP_LIBRARY=.* cannot be loaded"):
        rt.load(bundle_path).kernel("scale", N=64)


def test_a_bundle_replaced_while_mapped(
    device: HipTestDevice, make_bundle: Callable[..., Path], code_objects: dict[str, bytes]
) -> None:
    """By renaming, as publishing does: who has the old one goes on with it, and sees no other."""
    old, new = (
        make_bundle(specialisation("gfx942", code_objects["gfx942"], N=columns))
        for columns in (64, 32)
    )
    bundle = rt.load(old)
    new.resolve().replace(old.resolve())
    bundle.kernel("scale", N=64)(Array(4096, (1, 64)), 1, 1.0)
    with pytest.raises(rt.MissError):
        bundle.kernel("scale", N=32)
    assert rt.load(old).kernel("scale").specialisation.params == {"N": 32}


def test_two_bundles_that_disagree_about_one_kernel(
    device: HipTestDevice, make_bundle: Callable[..., Path], code_objects: dict[str, bytes]
) -> None:
    """Each bundle's own plan and signature hold for its kernels, though they share the module."""
    first = specialisation("gfx942", code_objects["gfx942"], N=64)
    entry = first.signature[0]
    other_form = type(entry)(**(vars(entry) | {"align": 256}))
    second = type(first)(**(vars(first) | {"signature": (other_form, *first.signature[1:])}))
    kernels = [rt.load(make_bundle(spec)).kernel("scale") for spec in (first, second)]
    kernels[0](Array(4112, (1, 64)), 1, 1.0)
    with pytest.raises(rt.ArgumentError, match="aligned to 256 bytes"):
        kernels[1](Array(4112, (1, 64)), 1, 1.0)
    assert len(device.launches()) == 2
    assert device.live_modules() == 1
    stray = SimpleNamespace(cuda_stream=3)
    with pytest.raises(rt.HipError):
        kernels[0](Array(4112, (1, 64)), 1, 1.0, stray)
