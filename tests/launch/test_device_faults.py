"""Device faults: what the first error and later ones say, and launches that wait (`FLYC_SYNC`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import runtime_loader as rt
from runtime_loader import hip
from runtime_loader.plan import Block, End, Launch, LaunchPlan, Op
from tests.hip_device.device import HipTestDevice
from tests.launch.samples import specialisation
from tests.launch.test_graphs import NON_BLOCKING, captured, replay, x

pytestmark = [pytest.mark.device, pytest.mark.compile]

FAULTS = [214, 700, 702, 710, 719]


def message(call: Callable[[], object]) -> str:
    with pytest.raises(rt.HipError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("code", FAULTS)
def test_a_fault_names_the_last_launches_once(
    device: HipTestDevice, bundle_path: Path, code: int
) -> None:
    bundle = rt.load(bundle_path)
    first, second = bundle.kernel("scale", N=64), bundle.kernel("scale", N=128)
    elsewhere = bundle.kernel("scale", N=64, device=1)
    device.check("hipSetDevice", 1)
    elsewhere(x(device=1), 1, 1.0)
    device.check("hipSetDevice", 0)
    first(x(), 1, 1.0)
    second(x(128), 1, 1.0)
    bound = first.bind(parts=1)
    bound(x(), 1.0)
    device.lose_device(0, code)
    name = device.error_name(code)
    said = message(lambda: second(x(128), 1, 1.0))
    doing = f"launching scale of {second.label} on {second.device}"
    assert said.startswith(f"hipModuleLaunchKernel failed with {name} ({code}: ")
    assert said.endswith(
        f"while {doing}. device 0 is lost: a kernel that ran before failed on it. The last "
        f"launches were, latest first: {first.label}; {second.label}. Run with FLYC_SYNC=1 to "
        "learn which launch it is, and end this process"
    )
    since = rf"device 0 is lost since \d\d:\d\d:\d\d, when {re.escape(f'{doing}: {name}')}\. End "
    for call in (
        lambda: first(x(), 1, 1.0),
        lambda: first.bind()(x(), 1, 1.0),
        lambda: bundle.kernel("scale", N=64, device=0)(x(), 1, 1.0),
    ):
        later = message(call)
        assert re.search(since, later)
        assert "latest first" not in later
    device.check("hipSetDevice", 1)
    elsewhere(x(device=1), 1, 1.0)
    device.lose_device(1, code)
    assert f"latest first: {elsewhere.label}. Run" in message(
        lambda: elsewhere(x(device=1), 1, 1.0)
    )


def test_a_fault_that_every_later_call_meets(device: HipTestDevice, bundle_path: Path) -> None:
    bundle = rt.load(bundle_path)
    kernel = bundle.kernel("scale", N=64)
    kernel(x(), 1, 1.0)
    device.fail("hipModuleLaunchKernel", 700)
    assert f"latest first: {kernel.label}. Run" in message(lambda: kernel(x(), 1, 1.0))
    for call in (
        lambda: kernel(x(), 1, 1.0),
        lambda: kernel.bind(x())(1, 1.0),
        lambda: bundle.kernel("scale", N=128, device=0),
    ):
        assert "device 0 is lost since" in message(call)


def test_a_fault_that_no_launch_here_caused(device: HipTestDevice, bundle_path: Path) -> None:
    bundle = rt.load(bundle_path)
    hip.runtime().device(0)
    device.lose_device(0)
    said = message(lambda: bundle.kernel("scale", N=64))
    assert "device 0 is lost: a kernel that ran before failed on it. No kernel of this" in said


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch, device: HipTestDevice) -> HipTestDevice:
    """The test device, for launches that wait."""
    monkeypatch.setenv(hip.SYNC_VARIABLE, "1")
    return device


def test_launches_that_wait(waiting: HipTestDevice, bundle_path: Path) -> None:
    """Whichever implementation was asked for."""
    kernel = rt.load(bundle_path).kernel("scale", N=64)
    stream = waiting.create("hipStreamCreate")
    for number in range(4):
        before = waiting.calls().get("hipStreamSynchronize", 0)
        (kernel.bind(parts=1)(x(), 1.0, stream) if number else kernel(x(), 1, 1.0, stream))
        assert waiting.calls()["hipStreamSynchronize"] - before == 4  # around each of two launches
    assert len(waiting.launches()) == 8


@pytest.mark.parametrize(
    ("nth", "doing"),
    [
        (1, "waiting for what ran before launching scale of"),
        (2, "launching scale of scale(N=64, dtype=f32) for gfx942 on device 0 (gfx942:sramecc+"),
        (4, "launching pair of"),
    ],
)
def test_waiting_finds_the_very_launch(
    waiting: HipTestDevice, bundle_path: Path, nth: int, doing: str
) -> None:
    kernel = rt.load(bundle_path).kernel("scale", N=64)
    waiting.fail("hipStreamSynchronize", 719, nth=nth)
    said = message(lambda: kernel(x(), 1, 1.0))
    assert "hipStreamSynchronize failed with hipErrorLaunchFailure (719: " in said
    assert f"while {doing}" in said
    if nth > 1:
        assert ", until its end. device 0 is lost. Launches wait for their end (FLYC_SYNC)" in said
    assert len(waiting.launches()) == nth // 2


@pytest.mark.parametrize("how", [{"cooperative": True}, {"cluster": (6, 6, 6)}])
def test_launches_with_attributes_wait_too(
    waiting: HipTestDevice,
    make_bundle: Callable[..., Path],
    code_objects: dict[str, bytes],
    how: dict[str, Any],
) -> None:
    target = "gfx1250" if "cluster" in how else "gfx942"
    ordinal = 3 if "cluster" in how else 0
    ops = (Op("sext", "i64", (1,)), Op("const", "i32", constant=1))
    plan = LaunchPlan(
        ("ptr", "i32", "i32", "f32", "ptr"),
        (Block((), (*ops, Launch(1, (6, 6, 6), (6, 6, 6), 4, ((0,), (1, 5)), **how)), End()),),
    )
    spec = specialisation(target, code_objects[target], plan=plan, N=64)
    kernel = rt.load(make_bundle(spec)).kernel("scale", device=ordinal)
    waiting.check("hipSetDevice", ordinal)
    kernel(x(device=ordinal), 1, 1.0)
    assert waiting.calls()["hipStreamSynchronize"] == 2
    assert len(waiting.launches()) == 1


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_waiting_leaves_the_captures_of_other_streams_alone(
    waiting: HipTestDevice, bundle_path: Path, mode: int
) -> None:
    kernel = rt.load(bundle_path).kernel("scale", N=64)
    stream, other = (waiting.create("hipStreamCreateWithFlags", NON_BLOCKING) for _ in range(2))
    with captured(waiting, stream, mode) as graphs:
        kernel(x(), 1, 1.0, stream)
        kernel(x(), 1, 1.0, other)
    assert len(waiting.launches()) == 2
    replay(waiting, graphs[0])
    assert len(waiting.launches()) == 4


def test_captured_launches_do_not_wait(waiting: HipTestDevice, bundle_path: Path) -> None:
    kernel = rt.load(bundle_path).kernel("scale", N=64)
    stream = waiting.create("hipStreamCreateWithFlags", NON_BLOCKING)
    with captured(waiting, stream) as graphs:
        kernel(x(), 1, 1.0, stream)
    replay(waiting, graphs[0])
    assert len(waiting.launches()) == 2
