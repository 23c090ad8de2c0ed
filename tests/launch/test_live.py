"""Exchanging a bundle while its kernels launch, are bound, and are held by captured graphs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from ctypes import byref, c_void_p
from pathlib import Path

import pytest

import runtime_loader as rt
from tests.hip_device.device import HipTestDevice
from tests.launch.samples import specialisation
from tests.launch.test_launch import Array

pytestmark = [pytest.mark.device, pytest.mark.compile]

X = Array(4096, (1, 64))


@pytest.fixture
def versions(make_bundle: Callable[..., Path], code_objects: dict[str, bytes]) -> tuple[Path, Path]:
    """Two versions of a bundle: the code of their kernel differs."""
    old, new = (code_objects[target] for target in ("gfx942:xnack-", "gfx942"))
    return (
        make_bundle(specialisation("gfx942:xnack-", old, N=64)),
        make_bundle(specialisation("gfx942", new, N=64), specialisation("gfx942", new, N=128)),
    )


def contents(device: HipTestDevice) -> list[str]:
    return [launch.code_sha256 for launch in device.take_launches()]


def test_calls_go_to_the_new_one_and_the_old_is_unloaded(
    device: HipTestDevice, versions: tuple[Path, Path]
) -> None:
    live = rt.Live(versions[0])
    kernel = live.kernel("scale", N=64)
    assert live.kernel("scale") is kernel
    kernel(X, 1, 1.0)
    (before,) = set(contents(device))
    unloaded = live.swap(versions[1])
    assert (unloaded.modules, unloaded.failed, device.live_modules()) == (1, (), 1)
    assert unloaded.size > 1000
    kernel(X, 1, 1.0)
    (after,) = set(contents(device))
    assert before != after
    assert live.swap(versions[0]).modules == 1
    kernel(X, 1, 1.0)
    assert set(contents(device)) == {before}


def test_a_new_one_that_lacks_a_kernel_changes_nothing(
    device: HipTestDevice, versions: tuple[Path, Path]
) -> None:
    live = rt.Live(versions[1])
    kernels = [live.kernel("scale", N=n) for n in (64, 128)]
    bundle = live.bundle
    with pytest.raises(rt.MissError, match="N is 64, not 128"):
        live.swap(versions[0])
    assert live.bundle is bundle
    for kernel, columns in zip(kernels, (64, 128), strict=True):
        kernel(Array(4096, (1, columns)), 1, 1.0)
    assert len(device.take_launches()) == 4
    del kernels, kernel  # what nobody uses need not be there
    live.swap(versions[0])


def test_what_is_held_stays(device: HipTestDevice, versions: tuple[Path, Path]) -> None:
    live = rt.Live(versions[0])
    kernel = live.kernel("scale")
    bound = kernel.bind(X)
    held = kernel.current
    assert live.swap(versions[1]).modules == 0
    bound(1, 1.0)
    held(X, 1, 1.0)
    assert len(set(contents(device))) == 1
    del bound, held
    assert live.swap(versions[1]).modules == 1
    assert device.live_modules() == 1


def test_a_captured_graph_keeps_its_kernels(
    device: HipTestDevice, versions: tuple[Path, Path]
) -> None:
    live = rt.Live(versions[0])
    kernel = live.kernel("scale")
    stream = device.create("hipStreamCreate")
    device.check("hipStreamBeginCapture", c_void_p(stream), 0)
    kernel(X, 1, 1.0, stream)
    graph, executable = c_void_p(), c_void_p()
    device.check("hipStreamEndCapture", c_void_p(stream), byref(graph))
    device.check("hipGraphInstantiate", byref(executable), graph, None, None, 0)
    assert live.swap(versions[1]).modules == 0
    assert device.live_modules() == 2
    device.check("hipGraphLaunch", executable, c_void_p(stream))
    assert len(contents(device)) == 2


def test_a_capture_that_is_under_way(device: HipTestDevice, versions: tuple[Path, Path]) -> None:
    live = rt.Live(versions[0])
    kernel = live.kernel("scale")
    stream = device.create("hipStreamCreate")
    device.check("hipStreamBeginCapture", c_void_p(stream), 0)
    bundle = live.bundle
    with pytest.raises(rt.CaptureError, match="preload"):
        live.swap(versions[1])
    assert live.bundle is bundle
    kernel(X, 1, 1.0, stream)
    graph = c_void_p()
    device.check("hipStreamEndCapture", c_void_p(stream), byref(graph))
    assert graph.value


def test_threads_that_launch_meanwhile(device: HipTestDevice, versions: tuple[Path, Path]) -> None:
    """Every launch arrives once, whole, and never on a module that is gone."""
    live = rt.Live(versions[0])
    kernel = live.kernel("scale")
    stop = threading.Event()
    counts: list[int] = []
    failures: list[BaseException] = []

    def launch() -> None:
        made = 0
        try:
            while not stop.is_set():
                kernel(X, 1, 1.0)
                made += 2
        except BaseException as error:
            failures.append(error)
        counts.append(made)

    threads = [threading.Thread(target=launch) for _ in range(6)]
    for thread in threads:
        thread.start()
    for number in range(30):
        live.swap(versions[1 - number % 2])
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(device.take_launches()) == sum(counts)
    live.swap(versions[1])
    assert device.live_modules() == 1


def test_a_device_that_is_lost(device: HipTestDevice, versions: tuple[Path, Path]) -> None:
    live = rt.Live(versions[0])
    live.kernel("scale")(X, 1, 1.0)
    device.fail("hipDeviceSynchronize", 719, repeat=True)
    unloaded = live.swap(versions[1])
    assert unloaded.modules == 0
    assert "719" in unloaded.failed[0]
