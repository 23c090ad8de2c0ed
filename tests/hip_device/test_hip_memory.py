"""Memory of the HIP test device: tracked allocations, copies and fills."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_void_p

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.hip_device.device import HipTestDevice

pytestmark = pytest.mark.device

HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, DEFAULT = 1, 2, 3, 4
one_device = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("type", c_int),
        ("device", c_int),
        ("device_pointer", c_void_p),
        ("host_pointer", c_void_p),
        ("managed", c_int),
        ("flags", ctypes.c_uint),
    )


def _read(device: HipTestDevice, pointer: int, size: int) -> bytes:
    room = ctypes.create_string_buffer(size)
    device.check("hipMemcpy", room, pointer, size, DEVICE_TO_HOST)
    return room.raw


def test_fresh_memory_is_aligned_and_poisoned(device: HipTestDevice) -> None:
    pointers = [device.create("hipMalloc", size) for size in (1, 255, 4097)]
    assert all(pointer % 256 == 0 for pointer in pointers)
    assert _read(device, pointers[2], 4097) == b"\xdb" * 4097


def test_free_takes_exactly_what_malloc_gave_once(device: HipTestDevice) -> None:
    pointer = device.create("hipMalloc", 512)
    host = device.create("hipHostMalloc", 512, 0)
    assert device.call("hipFree", pointer + 256) == 1
    assert device.call("hipFree", host) == 1
    assert device.call("hipHostFree", pointer) == 1
    assert device.live_allocations() == 2
    device.check("hipFree", pointer)
    device.check("hipHostFree", host)
    assert device.call("hipFree", pointer) == 1
    assert device.call("hipFree", 0x1234) == 1
    device.check("hipFree", 0)
    assert device.live_allocations() == 0


def test_memory_runs_out(device: HipTestDevice) -> None:
    device.set_memory(0, 4096)
    first = device.create("hipMalloc", 4096)
    assert device.call("hipMalloc", byref(c_void_p()), 1) == 2
    device.check("hipSetDevice", 1)
    device.create("hipMalloc", 1)
    device.check("hipSetDevice", 0)
    device.check("hipFree", first)
    device.create("hipMalloc", 4096)
    assert device.call("hipMalloc", byref(c_void_p()), 2**64 - 1) == 2


def test_copies_stay_inside_allocations(device: HipTestDevice) -> None:
    pointer = device.create("hipMalloc", 64)
    data = bytes(range(64))
    device.check("hipMemcpy", pointer, data, 64, HOST_TO_DEVICE)
    assert _read(device, pointer, 64) == data
    assert device.call("hipMemcpy", pointer + 1, data, 64, HOST_TO_DEVICE) == 1
    assert device.call("hipMemcpy", pointer, data, 64, 7) == 21
    assert device.call("hipMemcpy", 0, data, 64, DEFAULT) == 1
    other = device.create("hipMalloc", 64)
    device.check("hipMemcpyDtoDAsync", other, pointer, 64, None)
    assert _read(device, other, 64) == data


def test_pointers_know_their_device_and_range(device: HipTestDevice) -> None:
    device.check("hipSetDevice", 1)
    pointer = device.create("hipMalloc", 100)
    device.check("hipSetDevice", 0)
    attributes = _Attributes()
    device.check("hipPointerGetAttributes", byref(attributes), pointer + 40)
    assert (attributes.type, attributes.device) == (2, 1)
    assert attributes.device_pointer == pointer + 40
    one = c_void_p()
    for number, wanted in ((2, 2), (3, pointer + 40), (9, 1)):
        one.value = 0
        device.check("hipPointerGetAttribute", byref(one), number, c_void_p(pointer + 40))
        assert one.value == wanted
    assert device.call("hipPointerGetAttribute", byref(one), 4, c_void_p(pointer)) == 1
    assert device.call("hipPointerGetAttribute", byref(one), 3, c_void_p(pointer + 100)) == 1
    assert device.call("hipPointerGetAttribute", byref(one), 5, c_void_p(pointer)) == 801
    base, size = c_void_p(), c_size_t()
    device.check("hipMemGetAddressRange", byref(base), byref(size), pointer + 99)
    assert (base.value, size.value) == (pointer, 100)
    assert device.call("hipMemGetAddressRange", byref(base), byref(size), pointer + 100) == 500
    assert device.call("hipPointerGetAttributes", byref(attributes), pointer + 100) == 1


def test_host_memory_can_be_registered_once(device: HipTestDevice) -> None:
    buffer = ctypes.create_string_buffer(4096)
    device.check("hipHostRegister", buffer, 4096, 0)
    address = ctypes.addressof(buffer)
    assert device.call("hipHostRegister", address + 100, 10, 0) == 712
    seen = device.create("hipHostGetDevicePointer", address, 0)
    assert seen == address
    device.check("hipHostUnregister", buffer)
    assert device.call("hipHostUnregister", buffer) == 713
    assert device.call("hipHostGetDevicePointer", byref(c_void_p()), address, 0) == 1


@one_device
@given(
    width=st.sampled_from([1, 2, 4]),
    value=st.integers(0, 2**32 - 1),
    start=st.integers(0, 32),
    count=st.integers(0, 40),
)
def test_fills_write_their_elements_only(
    device: HipTestDevice, width: int, value: int, start: int, count: int
) -> None:
    size = 256
    pointer = device.create("hipMalloc", size)
    name = {1: "hipMemsetD8", 2: "hipMemsetD16Async", 4: "hipMemsetD32Async"}[width]
    stream = () if width == 1 else (None,)
    status = device.call(name, pointer + start, value % 2 ** (8 * width), count, *stream)
    expected = bytearray(b"\xdb" * size)
    if start + count * width <= size:
        assert status == 0
        element = (value % 2 ** (8 * width)).to_bytes(width, "little")
        expected[start : start + count * width] = element * count
    else:
        assert status == 1
    assert _read(device, pointer, size) == expected
    device.check("hipFree", pointer)


@one_device
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(1, 2000)), max_size=60))
def test_allocations_are_tracked_through_any_order(
    device: HipTestDevice, steps: list[tuple[bool, int, int]]
) -> None:
    live: list[tuple[int, int]] = []
    for allocate, index, size in steps:
        if allocate or not live:
            live.append((device.create("hipMalloc", size), size))
        else:
            pointer, _ = live.pop(index % len(live))
            device.check("hipFree", pointer)
    assert device.live_allocations() == len(live)
    for pointer, size in live:
        base, span = c_void_p(), c_size_t()
        device.check("hipMemGetAddressRange", byref(base), byref(span), pointer + size - 1)
        assert (base.value, span.value) == (pointer, size)
        device.check("hipFree", pointer)
