"""Stream capture and unloading: what may be loaded when, and what a graph keeps loaded."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_int, c_void_p
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import runtime_loader as rt
from runtime_loader import hip, native
from runtime_loader.bundle_file import BundleFile
from runtime_loader.modules import Unloaded, load_functions, unload_unused
from tests.hip_device.device import HipTestDevice
from tests.launch.test_hip_binding import Without
from tests.launch.test_launch import Array

pytestmark = [pytest.mark.device, pytest.mark.compile]

GLOBAL, THREAD, RELAXED = range(3)
NON_BLOCKING = 1


@contextmanager
def captured(device: HipTestDevice, stream: int, mode: int = GLOBAL) -> Iterator[list[int]]:
    """Capture a stream; the list holds the executable graph afterwards."""
    graphs: list[int] = []
    device.check("hipStreamBeginCapture", stream, mode)
    yield graphs
    graph = c_void_p()
    device.check("hipStreamEndCapture", stream, byref(graph))
    graphs.append(device.create("hipGraphInstantiate", graph, None, None, 0))


def replay(device: HipTestDevice, graph: int) -> None:
    device.check("hipGraphLaunch", graph, None)


def unloadable(path: Path) -> rt.Bundle:
    return rt.Bundle(BundleFile.open(path), keep=False)


def x(columns: int = 64, device: int = 0) -> Array:
    return Array(4096, (1, columns), device)


@pytest.mark.parametrize("flags", [0, NON_BLOCKING])
def test_preloaded_kernels_launch_into_a_graph(
    device: HipTestDevice, bundle_path: Path, flags: int, implementation: str
) -> None:
    bundle = rt.load(bundle_path)
    bundle.preload(0)
    stream = device.create("hipStreamCreateWithFlags", flags)
    kernel = bundle.kernel("scale", N=64)
    with captured(device, stream) as graphs:
        bundle.kernel("scale", N=64)(x(), 1, 1.0, stream)
    assert device.launches() == ()
    replay(device, graphs[0])
    replay(device, graphs[0])
    assert [launch.kernel for launch in device.launches()] == ["scale", "pair"] * 2
    if implementation == "native":
        assert isinstance(kernel, native.native_kernel.NativeKernel)
        assert kernel.native_launches == 2


def test_a_load_during_a_capture_that_blocks(device: HipTestDevice, bundle_path: Path) -> None:
    """The default stream tells of it, whichever thread captures, and the capture goes on."""
    bundle = rt.load(bundle_path)
    loaded = bundle.kernel("scale", N=64)
    stream = device.create("hipStreamCreate")
    raised: list[BaseException] = []

    def load() -> None:
        try:
            bundle.kernel("scale", N=128)
        except rt.CaptureError as error:
            raised.append(error)

    with captured(device, stream) as graphs:
        load()
        thread = threading.Thread(target=load)
        thread.start()
        thread.join()
        loaded(x(), 1, 1.0, stream)
    for error in raised:
        assert str(error) == (
            "scale(N=128, dtype=f32) for gfx942:xnack- on device 0 (gfx942:sramecc+:xnack-) would "
            "load a module during a stream capture, which HIP does not allow; call preload on the "
            "bundle before capturing (the default stream tells). Nothing was loaded"
        )
    assert len(raised) == 2
    assert device.live_modules() == 1
    replay(device, graphs[0])
    assert len(device.launches()) == 2
    bundle.kernel("scale", N=128)


def test_a_load_during_a_capture_that_torch_knows_of(
    device: HipTestDevice, bundle_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch captures on streams that do not block, so only torch can tell."""
    stream = device.create("hipStreamCreateWithFlags", NON_BLOCKING)
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        current_stream=lambda ordinal: SimpleNamespace(cuda_stream=stream),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    bundle = rt.load(bundle_path)
    refused = pytest.raises(rt.CaptureError, match=rf"\(stream {stream:#x} tells\)")
    with captured(device, stream) as graphs, refused:
        bundle.kernel("scale", N=64)
    assert graphs
    bundle.kernel("scale", N=64)


def test_a_load_for_a_launch_on_a_captured_stream(
    device: HipTestDevice, bundle_path: Path, code_objects: dict[str, bytes]
) -> None:
    hsaco = code_objects["gfx942"]
    stream = device.create("hipStreamCreateWithFlags", NON_BLOCKING)
    bundle = rt.load(bundle_path)
    spec, _ = bundle._catalogue.select("scale", {"N": 64}, hip.runtime().device(0))
    with captured(device, stream, RELAXED), pytest.raises(rt.CaptureError, match="tells"):
        load_functions(hip.runtime(), hip.runtime().device(0), spec, lambda: hsaco, stream=stream)
    assert device.live_modules() == 0


def test_a_load_that_only_hip_knows_to_refuse(device: HipTestDevice, bundle_path: Path) -> None:
    stream = device.create("hipStreamCreateWithFlags", NON_BLOCKING)
    bundle = rt.load(bundle_path)
    device.check("hipStreamBeginCapture", stream, GLOBAL)
    with pytest.raises(rt.CaptureError, match=r"CaptureUnsupported \(900\)\. The capture is inv"):
        bundle.kernel("scale", N=64)
    assert device.call("hipStreamEndCapture", stream, byref(c_void_p())) == 901
    bundle.kernel("scale", N=64)(x(), 1, 1.0)


def test_what_is_unused_is_unloaded(device: HipTestDevice, bundle_path: Path) -> None:
    bundle = unloadable(bundle_path)
    size = len(
        bundle._file.blob(bundle._catalogue.select("scale", {"N": 64}, hip.runtime().device())[1])
    )
    kernel, other = bundle.kernel("scale", N=64), bundle.kernel("scale", N=64, device=1)
    kernel(x(), 1, 1.0)
    assert unload_unused(hip.runtime()) == Unloaded(0, 0, ())
    del bundle, other
    assert unload_unused(hip.runtime()) == Unloaded(1, size, ())
    kernel(x(), 1, 1.0)
    del kernel
    assert unload_unused(hip.runtime()) == Unloaded(1, size, ())
    assert unload_unused(hip.runtime()) == Unloaded(0, 0, ())
    assert device.live_modules() == 0
    assert hip.runtime().current_device() == 0
    unloadable(bundle_path).kernel("scale", N=64)(x(), 1, 1.0)
    assert device.live_modules() == 1
    assert len(device.launches()) == 6


def test_a_bound_call_keeps_its_module(device: HipTestDevice, bundle_path: Path) -> None:
    bound = unloadable(bundle_path).kernel("scale", N=64).bind(factor=1.0)
    assert unload_unused(hip.runtime()).modules == 0
    bound(x(), 1)
    assert len(device.launches()) == 2


def test_a_module_that_some_bundle_keeps(device: HipTestDevice, bundle_path: Path) -> None:
    """Whoever comes first, and although the kernels of both are gone."""
    for keeping in (0, 1):
        device.reset()
        hip._runtime = None
        for number in range(2):
            file = BundleFile.open(bundle_path)
            rt.Bundle(file, keep=number == keeping).kernel("scale", N=64)
        assert unload_unused(hip.runtime()) == Unloaded(0, 0, ())
        assert device.live_modules() == 1


@pytest.mark.parametrize("call", ["plain", "bound", "named"])
def test_a_graph_keeps_its_modules(device: HipTestDevice, bundle_path: Path, call: str) -> None:
    bundle = unloadable(bundle_path)
    stream = device.create("hipStreamCreateWithFlags", NON_BLOCKING)
    kernel, other = bundle.kernel("scale", N=64), bundle.kernel("scale", N=128)
    for _ in range(4):  # until there is straight code
        kernel(x(), 1, 1.0, stream)
    other(x(128), 1, 1.0, stream)
    device.take_launches()
    with captured(device, stream) as graphs:
        if call == "plain":
            kernel(x(), 1, 1.0, stream)
        elif call == "bound":
            kernel.bind(parts=1)(x(), 1.0, stream)
        else:
            kernel(x=x(), parts=1, factor=1.0, stream=stream)
    del bundle, kernel, other
    assert unload_unused(hip.runtime()).modules == 1
    replay(device, graphs[0])
    assert [launch.kernel for launch in device.launches()] == ["scale", "pair"]


@pytest.mark.parametrize("mode", [GLOBAL, THREAD, RELAXED])
def test_nothing_is_unloaded_during_a_capture_that_is_known(
    device: HipTestDevice, bundle_path: Path, mode: int
) -> None:
    """HIP would end the capture: it has to wait for the device."""
    unloadable(bundle_path).kernel("scale", N=128)
    kernel = rt.load(bundle_path).kernel("scale", N=64)
    stream = device.create("hipStreamCreate")
    with captured(device, stream, mode) as graphs:
        kernel(x(), 1, 1.0, stream)
        (reason,) = unload_unused(hip.runtime()).failed
    assert reason == (
        f"nothing is unloaded from {kernel.device} during a stream capture (the default stream "
        "tells)"
    )
    replay(device, graphs[0])
    assert len(device.launches()) == 2
    assert unload_unused(hip.runtime()).modules == 1


def test_a_capture_that_nothing_tells_of(device: HipTestDevice, bundle_path: Path) -> None:
    unloadable(bundle_path).kernel("scale", N=128)
    stream = device.create("hipStreamCreateWithFlags", NON_BLOCKING)
    device.check("hipStreamBeginCapture", stream, RELAXED)
    (reason,) = unload_unused(hip.runtime()).failed
    assert "hipDeviceSynchronize failed with hipErrorStreamCaptureUnsupported (900" in reason
    assert device.call("hipStreamEndCapture", stream, byref(c_void_p())) == 901
    mode = c_int(GLOBAL)
    device.check("hipThreadExchangeStreamCaptureMode", byref(mode))
    assert mode.value == GLOBAL
    assert unload_unused(hip.runtime()).modules == 1


@pytest.mark.parametrize(
    "call",
    [
        "hipThreadExchangeStreamCaptureMode",
        "hipSetDevice",
        "hipDeviceSynchronize",
        "hipModuleUnload",
    ],
)
def test_a_module_that_hip_does_not_unload(
    device: HipTestDevice, bundle_path: Path, call: str
) -> None:
    unloadable(bundle_path).kernel("scale", N=64, device=1)
    device.fail(call, 999)
    unloaded = unload_unused(hip.runtime())
    assert (unloaded.modules, unloaded.size) == (0, 0)
    assert f"{call} failed with hipErrorUnknown (999" in unloaded.failed[0]
    assert device.live_modules() == 1
    assert hip.runtime().current_device() == 0
    assert unload_unused(hip.runtime()).modules == 1


def test_devices_are_waited_for_once(device: HipTestDevice, bundle_path: Path) -> None:
    bundle = unloadable(bundle_path)
    assert bundle.preload([0, 1]) == 4
    del bundle
    assert unload_unused(hip.runtime()).modules == 4
    assert device.calls()["hipDeviceSynchronize"] == 2


def test_a_module_that_is_used_while_its_device_is_waited_for(
    device: HipTestDevice, bundle_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last launch may still run then, though nothing uses it any more."""
    wait = hip.Hip.synchronise

    def launch_after(self: hip.Hip, doing: str) -> None:
        wait(self, doing)
        unloadable(bundle_path).kernel("scale", N=64)(x(), 1, 1.0)

    unloadable(bundle_path).kernel("scale", N=64)
    with monkeypatch.context() as patch:
        patch.setattr(hip.Hip, "synchronise", launch_after)
        assert unload_unused(hip.runtime()) == Unloaded(0, 0, ())
    assert unload_unused(hip.runtime()).modules == 1


def without(device: HipTestDevice, *symbols: str) -> None:
    """A HIP library that lacks these is this process's."""
    library: Any = Without(ctypes.CDLL(str(device.path)), *symbols)
    hip._runtime = hip.Hip(library, "old")


def test_a_library_that_cannot_unload(device: HipTestDevice, bundle_path: Path) -> None:
    without(device, "hipModuleUnload")
    unloadable(bundle_path).kernel("scale", N=64)
    (reason,) = unload_unused(hip.runtime()).failed
    assert reason.startswith("old has no symbol hipModuleUnload")
    assert device.live_modules() == 1


def test_a_library_that_knows_no_captures(device: HipTestDevice, bundle_path: Path) -> None:
    without(device, "hipStreamIsCapturing", "hipThreadExchangeStreamCaptureMode")
    kernel = unloadable(bundle_path).kernel("scale", N=64)
    kernel(x(), 1, 1.0, device.create("hipStreamCreate"))
    assert len(device.launches()) == 2
    del kernel
    assert unload_unused(hip.runtime()).modules == 1


def test_threads_that_load_and_unload(
    device: HipTestDevice, make_bundle: Callable[..., Path], bundle_path: Path
) -> None:
    failures: list[BaseException] = []
    done = threading.Event()

    def load_and_launch() -> None:
        try:
            for _ in range(60):
                unloadable(bundle_path).kernel("scale", N=64)(x(), 1, 1.0)
        except BaseException as error:
            failures.append(error)

    def unload() -> None:
        try:
            while not done.is_set():
                assert unload_unused(hip.runtime()).failed == ()
        except BaseException as error:
            failures.append(error)

    loading = [threading.Thread(target=load_and_launch) for _ in range(4)]
    unloading = threading.Thread(target=unload)
    for thread in (*loading, unloading):
        thread.start()
    for thread in loading:
        thread.join()
    done.set()
    unloading.join()
    assert failures == []
    assert len(device.launches()) == 4 * 60 * 2
    unload_unused(hip.runtime())
    assert device.live_modules() == 0
