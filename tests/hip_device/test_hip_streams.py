"""Streams, events, capture and graphs of the HIP test device."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_size_t, c_ulonglong, c_void_p

import pytest

from tests.hip_device.device import HipTestDevice
from tests.hip_device.launching import SCALE_BYTES, ScaleKernel

pytestmark = [pytest.mark.device, pytest.mark.compile]

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
NONE, ACTIVE, INVALIDATED = 0, 1, 2
NON_BLOCKING = 1


@pytest.fixture
def kernel(device: HipTestDevice, hsaco: bytes) -> ScaleKernel:
    return ScaleKernel.load(device, hsaco)


@pytest.fixture
def stream(device: HipTestDevice) -> int:
    return device.create("hipStreamCreateWithFlags", NON_BLOCKING)


def _status(device: HipTestDevice, stream: int) -> int:
    status = c_int(-1)
    device.check("hipStreamIsCapturing", stream, byref(status))
    return status.value


def _in_thread(work: Callable[[], int]) -> int:
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


def test_the_default_stream_tells_of_captures_that_block_it(device: HipTestDevice) -> None:
    """Asking it invalidates nothing."""
    for flags, answer in ((NON_BLOCKING, 0), (0, 906)):
        stream = device.create("hipStreamCreateWithFlags", flags)
        device.check("hipStreamBeginCapture", stream, GLOBAL)
        assert device.call("hipStreamIsCapturing", None, byref(c_int())) == answer
        assert _status(device, stream) == 1
        device.check("hipStreamEndCapture", stream, byref(c_void_p()))


def test_streams_belong_to_a_device(device: HipTestDevice) -> None:
    device.check("hipSetDevice", 1)
    stream = device.create("hipStreamCreateWithPriority", NON_BLOCKING, -5)
    device.check("hipSetDevice", 0)
    ordinal, flags, priority = c_int(-1), c_int(-1), c_int(-1)
    device.check("hipStreamGetDevice", stream, byref(ordinal))
    device.check("hipStreamGetFlags", stream, byref(flags))
    device.check("hipStreamGetPriority", stream, byref(priority))
    assert (ordinal.value, flags.value, priority.value) == (1, NON_BLOCKING, -1)
    device.check("hipStreamGetDevice", None, byref(ordinal))
    assert ordinal.value == 0
    device.check("hipStreamSynchronize", stream)
    device.check("hipStreamQuery", stream)
    device.check("hipStreamDestroy", stream)
    assert device.call("hipStreamQuery", stream) == 709
    assert device.call("hipStreamDestroy", stream) == 709
    assert device.call("hipStreamDestroy", None) == 400
    assert device.call("hipStreamCreateWithFlags", byref(c_void_p()), 8) == 1
    assert device.live_streams() == 0


def test_special_streams_follow_the_current_device(kernel: ScaleKernel) -> None:
    legacy, per_thread = 1, 2
    assert kernel.launch(stream=legacy) == 0
    assert kernel.launch(stream=per_thread) == 0
    assert [record.stream for record in kernel.device.launches()] == [legacy, per_thread]
    kernel.device.check("hipSetDevice", 1)
    assert kernel.launch(stream=per_thread) == 101


def test_events_measure_real_time(device: HipTestDevice, stream: int) -> None:
    start, stop = device.create("hipEventCreate"), device.create("hipEventCreate")
    elapsed = c_float(-1)
    assert device.call("hipEventElapsedTime", byref(elapsed), start, stop) == 400
    device.check("hipEventRecord", start, stream)
    device.check("hipEventRecord", stop, stream)
    device.check("hipEventSynchronize", stop)
    device.check("hipEventQuery", stop)
    device.check("hipEventElapsedTime", byref(elapsed), start, stop)
    assert elapsed.value >= 0
    untimed = device.create("hipEventCreateWithFlags", 2)
    device.check("hipEventRecord", untimed, stream)
    assert device.call("hipEventElapsedTime", byref(elapsed), start, untimed) == 400
    device.check("hipEventDestroy", start)
    assert device.call("hipEventDestroy", start) == 400
    device.check("hipSetDevice", 1)
    assert device.call("hipEventRecord", stop, None) == 400


def test_captured_launches_happen_at_graph_launch(kernel: ScaleKernel, stream: int) -> None:
    device = kernel.device
    device.check("hipStreamBeginCapture", stream, GLOBAL)
    assert _status(device, stream) == ACTIVE
    arguments = [bytes([index]) * SCALE_BYTES for index in (1, 2)]
    for index, segment in enumerate(arguments):
        assert kernel.launch(grid=(index + 1, 1, 1), stream=stream, segment=segment) == 0
    graph = c_void_p()
    device.check("hipStreamEndCapture", stream, byref(graph))
    assert _status(device, stream) == NONE
    assert device.launches() == ()
    nodes = c_size_t()
    device.check("hipGraphGetNodes", graph, None, byref(nodes))
    assert nodes.value == 2

    exec_ = device.create("hipGraphInstantiate", graph, None, None, 0)
    device.check("hipGraphDestroy", graph)
    other = device.create("hipStreamCreate")
    device.check("hipGraphLaunch", exec_, other)
    device.check("hipGraphLaunch", exec_, None)
    records = device.launches()
    assert [record.kernarg for record in records] == arguments * 2
    assert [record.stream for record in records] == [other, other, 0, 0]
    assert {record.graph_exec for record in records} == {exec_}
    device.check("hipGraphExecDestroy", exec_)
    assert device.call("hipGraphLaunch", exec_, None) == 1


def _capture(device: HipTestDevice, stream: int, work: Callable[[], object]) -> int:
    """Captures work and instantiates it."""
    device.check("hipStreamBeginCapture", stream, GLOBAL)
    work()
    graph = c_void_p()
    device.check("hipStreamEndCapture", stream, byref(graph))
    return device.create("hipGraphInstantiate", graph, None, None, 0)


def test_copies_and_fills_are_captured(device: HipTestDevice, stream: int) -> None:
    pointer = device.create("hipMalloc", 16)
    result = ctypes.create_string_buffer(16)

    def work() -> None:
        device.check("hipMemsetD32Async", pointer, 0x01020304, 4, stream)
        device.check("hipMemcpyAsync", result, pointer, 16, 2, stream)

    exec_ = _capture(device, stream, work)
    assert result.raw == bytes(16)
    device.check("hipGraphLaunch", exec_, stream)
    assert result.raw == b"\x04\x03\x02\x01" * 4


def test_a_graph_can_be_captured_into_another(kernel: ScaleKernel, stream: int) -> None:
    device = kernel.device
    inner = _capture(device, stream, lambda: kernel.launch(stream=stream))

    def replay_three_times() -> None:
        for _ in range(3):
            device.check("hipGraphLaunch", inner, stream)

    outer = _capture(device, stream, replay_three_times)
    device.check("hipGraphExecDestroy", inner)
    assert device.launches() == ()
    device.check("hipGraphLaunch", outer, stream)
    assert len(device.launches()) == 3


@pytest.mark.parametrize("forbidden", ["load", "unload", "malloc", "free", "synchronise", "wait"])
def test_capture_forbids(kernel: ScaleKernel, stream: int, hsaco: bytes, forbidden: str) -> None:
    device = kernel.device
    pointer = device.create("hipMalloc", 16)
    calls: dict[str, tuple[str, tuple[object, ...]]] = {
        "load": ("hipModuleLoadData", (byref(c_void_p()), hsaco)),
        "unload": ("hipModuleUnload", (kernel.module,)),
        "malloc": ("hipMalloc", (byref(c_void_p()), 16)),
        "free": ("hipFree", (pointer,)),
        "synchronise": ("hipDeviceSynchronize", ()),
        "wait": ("hipStreamSynchronize", (stream,)),
    }
    device.check("hipStreamBeginCapture", stream, GLOBAL)
    assert kernel.launch(stream=stream) == 0
    name, arguments = calls[forbidden]
    assert device.call(name, *arguments) == 900
    assert _status(device, stream) == INVALIDATED
    assert kernel.launch(stream=stream) == 901
    graph = c_void_p(1)
    assert device.call("hipStreamEndCapture", stream, byref(graph)) == 901
    assert graph.value is None
    assert kernel.launch(stream=stream) == 0
    assert (device.live_modules(), device.live_allocations()) == (1, 1)


@pytest.mark.parametrize(
    ("mode", "own", "foreign"),
    [(GLOBAL, 900, 900), (THREAD_LOCAL, 900, 0), (RELAXED, 0, 0)],
)
def test_capture_mode_decides_which_thread_may_not_load(
    device: HipTestDevice, hsaco: bytes, stream: int, mode: int, own: int, foreign: int
) -> None:
    def load() -> int:
        return device.call("hipModuleLoadData", byref(c_void_p()), hsaco)

    device.check("hipStreamBeginCapture", stream, mode)
    assert _in_thread(load) == foreign
    assert load() == own
    graph = c_void_p()
    end = device.call("hipStreamEndCapture", stream, byref(graph))
    assert end == (901 if own or foreign else 0)
    assert load() == 0


def test_a_thread_may_opt_out_of_the_capture_rules(
    device: HipTestDevice, hsaco: bytes, stream: int
) -> None:
    device.check("hipStreamBeginCapture", stream, GLOBAL)
    mode = c_int(RELAXED)
    device.check("hipThreadExchangeStreamCaptureMode", byref(mode))
    assert mode.value == GLOBAL
    device.create("hipModuleLoadData", hsaco)
    device.check("hipThreadExchangeStreamCaptureMode", byref(mode))
    graph = c_void_p()
    device.check("hipStreamEndCapture", stream, byref(graph))


def test_null_stream_work_breaks_the_capture_of_a_blocking_stream(kernel: ScaleKernel) -> None:
    device = kernel.device
    blocking = device.create("hipStreamCreate")
    free = device.create("hipStreamCreateWithFlags", NON_BLOCKING)
    device.check("hipStreamBeginCapture", free, RELAXED)
    assert kernel.launch() == 0
    device.check("hipStreamBeginCapture", blocking, RELAXED)
    assert kernel.launch() == 906
    assert _status(device, blocking) == INVALIDATED
    assert _status(device, free) == ACTIVE
    assert device.call("hipMemcpy", b"a", b"b", 1, 4) == 906
    assert _status(device, free) == INVALIDATED


def test_capture_cannot_begin_or_end_anywhere(device: HipTestDevice, stream: int) -> None:
    graph = c_void_p()
    assert device.call("hipStreamBeginCapture", None, GLOBAL) == 900
    assert device.call("hipStreamBeginCapture", stream, 5) == 1
    assert device.call("hipStreamEndCapture", stream, byref(graph)) == 401
    device.check("hipStreamBeginCapture", stream, GLOBAL)
    assert device.call("hipStreamBeginCapture", stream, GLOBAL) == 401
    assert _in_thread(lambda: device.call("hipStreamEndCapture", stream, byref(graph))) == 908
    device.check("hipStreamEndCapture", stream, byref(graph))


def test_capture_information(device: HipTestDevice, stream: int) -> None:
    status, number, graph, count = c_int(-1), c_ulonglong(), c_void_p(), c_size_t(9)
    device.check("hipStreamBeginCapture", stream, GLOBAL)
    device.check("hipStreamGetCaptureInfo", stream, byref(status), byref(number))
    assert status.value == ACTIVE
    again = c_ulonglong()
    device.check(
        "hipStreamGetCaptureInfo_v2",
        stream,
        byref(status),
        byref(again),
        byref(graph),
        None,
        byref(count),
    )
    assert (again.value, count.value) == (number.value, 0)
    ended = c_void_p()
    device.check("hipStreamEndCapture", stream, byref(ended))
    assert ended.value == graph.value


def test_capture_forks_and_joins_through_events(kernel: ScaleKernel, stream: int) -> None:
    device = kernel.device
    side = device.create("hipStreamCreateWithFlags", NON_BLOCKING)
    forked, joined = device.create("hipEventCreate"), device.create("hipEventCreate")
    graph = c_void_p()

    def fork() -> None:
        device.check("hipStreamBeginCapture", stream, GLOBAL)
        device.check("hipEventRecord", forked, stream)
        device.check("hipStreamWaitEvent", side, forked, 0)
        assert kernel.launch(stream=side) == 0

    fork()
    assert device.call("hipEventQuery", forked) == 907
    assert device.call("hipStreamEndCapture", stream, byref(graph)) == 901

    fork()
    assert device.call("hipStreamEndCapture", side, byref(graph)) == 903
    assert device.call("hipStreamEndCapture", stream, byref(graph)) == 904

    fork()
    device.check("hipEventRecord", joined, side)
    device.check("hipStreamWaitEvent", stream, joined, 0)
    device.check("hipStreamEndCapture", stream, byref(graph))
    assert _status(device, side) == NONE
    exec_ = device.create("hipGraphInstantiate", graph, None, None, 0)
    device.check("hipGraphLaunch", exec_, stream)
    assert len(device.launches()) == 1


def test_capture_rejects_edges_to_other_work(device: HipTestDevice, stream: int) -> None:
    other = device.create("hipStreamCreateWithFlags", NON_BLOCKING)
    event = device.create("hipEventCreate")
    device.check("hipEventRecord", event, other)
    device.check("hipStreamBeginCapture", stream, GLOBAL)
    assert device.call("hipStreamWaitEvent", stream, event, 0) == 905
    graph = c_void_p()
    assert device.call("hipStreamEndCapture", stream, byref(graph)) == 901

    device.check("hipStreamBeginCapture", stream, GLOBAL)
    device.check("hipStreamBeginCapture", other, GLOBAL)
    device.check("hipEventRecord", event, other)
    assert device.call("hipStreamWaitEvent", stream, event, 0) == 902
    assert _status(device, stream) == _status(device, other) == INVALIDATED


def test_a_graph_whose_module_is_gone_faults(kernel: ScaleKernel, stream: int) -> None:
    device = kernel.device
    exec_ = _capture(device, stream, lambda: kernel.launch(stream=stream))
    device.check("hipModuleUnload", kernel.module)
    assert device.call("hipGraphLaunch", exec_, stream) == 700
    assert device.call("hipDeviceSynchronize") == 700


def test_destroying_a_capturing_stream_ends_the_capture(
    kernel: ScaleKernel, stream: int, hsaco: bytes
) -> None:
    device = kernel.device
    device.check("hipStreamBeginCapture", stream, GLOBAL)
    assert kernel.launch(stream=stream) == 0
    device.check("hipStreamDestroy", stream)
    device.create("hipModuleLoadData", hsaco)
    assert device.launches() == ()
