"""Injected errors, sticky errors, lost devices, forks and threads on the HIP test device."""

from __future__ import annotations

import os
import threading
from ctypes import byref, c_int, c_void_p

import pytest

from tests.hip_device.device import HipCallError, HipTestDevice
from tests.hip_device.launching import SCALE_BYTES, ScaleKernel

pytestmark = [pytest.mark.device, pytest.mark.compile]


def test_the_nth_call_fails_once(device: HipTestDevice) -> None:
    device.check("hipSetDevice", 0)
    device.fail("hipSetDevice", 101, nth=2)
    assert [device.call("hipSetDevice", 0) for _ in range(4)] == [0, 101, 0, 0]


def test_every_call_from_the_nth_can_fail(device: HipTestDevice) -> None:
    device.fail("hipMalloc", 2, nth=3, repeat=True)
    assert [device.call("hipMalloc", byref(c_void_p()), 8) for _ in range(5)] == [0, 0, 2, 2, 2]
    assert device.live_allocations() == 2
    device.clear_failures()
    device.create("hipMalloc", 8)


def test_other_calls_are_not_concerned(device: HipTestDevice) -> None:
    device.fail("hipGetDeviceCount", 999)
    device.check("hipSetDevice", 0)
    with pytest.raises(HipCallError, match=r"hipGetDeviceCount gave hipErrorUnknown \(999\)"):
        device.check("hipGetDeviceCount", byref(c_int()))


def test_a_fault_sticks(device: HipTestDevice, hsaco: bytes) -> None:
    kernel = ScaleKernel.load(device, hsaco)
    device.fail("hipModuleLaunchKernel", 700)
    assert kernel.launch() == 700
    assert device.call("hipStreamSynchronize", None) == 700
    assert device.call("hipMalloc", byref(c_void_p()), 8) == 700
    assert device.error_name(700) == "hipErrorIllegalAddress"
    device.clear_failures()
    assert kernel.launch() == 0


def test_a_sticky_error_can_be_set(device: HipTestDevice) -> None:
    device.set_sticky(719)
    assert device.call("hipDeviceSynchronize") == 719
    assert device.call("hipGetLastError") == 719


def test_a_lost_device_leaves_the_others(device: HipTestDevice, hsaco: bytes) -> None:
    device.check("hipSetDevice", 1)
    lost_stream = device.create("hipStreamCreate")
    kernel = ScaleKernel.load(device, hsaco)
    device.lose_device(1)
    assert kernel.launch() == 719
    assert device.call("hipMalloc", byref(c_void_p()), 8) == 719
    current = c_int()
    device.check("hipGetDevice", byref(current))
    assert current.value == 1
    device.check("hipSetDevice", 0)
    device.create("hipMalloc", 8)
    assert device.call("hipStreamQuery", lost_stream) == 719
    assert device.call("hipSetDevice", 1) == 719
    with pytest.raises(ValueError, match="no device 5"):
        device.lose_device(5)


def test_a_forked_child_cannot_use_the_device(device: HipTestDevice) -> None:
    device.check("hipInit", 0)
    child = os.fork()
    if child == 0:
        os._exit(device.call("hipSetDevice", 0))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 3
    device.check("hipSetDevice", 0)


def test_a_child_forked_before_first_use_can(device: HipTestDevice) -> None:
    device.reset()
    child = os.fork()
    if child == 0:
        os._exit(device.call("hipSetDevice", 0))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_threads_lose_and_double_nothing(device: HipTestDevice, hsaco: bytes) -> None:
    threads, rounds = 8, 150
    failures: list[object] = []

    def work(number: int) -> None:
        try:
            ordinal = number % 2
            device.check("hipSetDevice", ordinal)
            kernel = ScaleKernel.load(device, hsaco)
            stream = device.create("hipStreamCreateWithFlags", 1)
            for index in range(rounds):
                pointer = device.create("hipMalloc", 64 + index)
                tag = (number << 16 | index).to_bytes(4, "little")
                segment = tag + bytes(SCALE_BYTES - 4)
                code = kernel.launch(stream=stream, segment=segment)
                if code:
                    failures.append(code)
                device.check("hipFree", pointer)
            device.check("hipModuleUnload", kernel.module)
        except Exception as error:
            failures.append(error)

    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert failures == []
    seen = [
        (int.from_bytes(record.kernarg[:4], "little"), record.device)
        for record in device.launches()
    ]
    expected = {
        (number << 16 | index, number % 2) for number in range(threads) for index in range(rounds)
    }
    assert len(seen) == len(expected)
    assert set(seen) == expected
    assert [record.sequence for record in device.launches()] == list(range(len(seen)))
    assert (device.live_modules(), device.live_allocations()) == (0, 0)
