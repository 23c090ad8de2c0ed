"""Modules of the HIP test device: which code objects it loads, and what it finds in them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from ctypes import byref, c_int, c_void_p
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.hip_device.compile_sample import CompiledSample
from tests.hip_device.device import HipTestDevice

pytestmark = [pytest.mark.device, pytest.mark.compile]

FLAGS_OFFSET = 48
XNACK, SRAMECC = 8, 10
UNSUPPORTED, ANY, OFF, ON = 0, 1, 2, 3


def _with_features(hsaco: bytes, xnack: int, sramecc: int) -> bytes:
    """The code object, marked as compiled for these feature settings."""
    (flags,) = struct.unpack_from("<I", hsaco, FLAGS_OFFSET)
    flags = flags & 0xFF | xnack << XNACK | sramecc << SRAMECC
    return hsaco[:FLAGS_OFFSET] + struct.pack("<I", flags) + hsaco[FLAGS_OFFSET + 4 :]


def _load(device: HipTestDevice, image: bytes) -> int:
    return device.call("hipModuleLoadData", byref(c_void_p()), image)


def test_kernels_are_found_by_name(device: HipTestDevice, hsaco: bytes) -> None:
    module = device.create("hipModuleLoadData", hsaco)
    function = device.create("hipModuleGetFunction", module, b"scale_kernel_0")
    assert function == device.create("hipModuleGetFunction", module, b"scale_kernel_0")
    assert device.call("hipModuleGetFunction", byref(c_void_p()), module, b"scale_kernel") == 500
    assert device.call("hipModuleGetFunction", byref(c_void_p()), module, b"") == 1
    assert device.call("hipModuleGetFunction", byref(c_void_p()), 0, b"scale_kernel_0") == 400
    limit = c_int()
    device.check("hipFuncGetAttribute", byref(limit), 0, function)
    assert limit.value == 64


def test_a_module_is_unloaded_once(device: HipTestDevice, hsaco: bytes) -> None:
    module = device.create("hipModuleLoadData", hsaco)
    device.create("hipModuleGetFunction", module, b"scale_kernel_0")
    assert device.live_modules() == 1
    device.check("hipModuleUnload", module)
    assert device.live_modules() == 0
    assert device.call("hipModuleUnload", module) == 500
    assert device.call("hipModuleUnload", 0) == 400
    assert device.call("hipModuleGetFunction", byref(c_void_p()), module, b"scale_kernel_0") == 500


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda image: b"\0" * 64 + image[64:], id="no header"),
        pytest.param(lambda image: image[:18] + struct.pack("<H", 62) + image[20:], id="x86"),
        pytest.param(lambda image: image[:8] + b"\1" + image[9:], id="code object v3"),
        pytest.param(lambda image: image[:4] + b"\1" + image[5:], id="32 bits"),
        pytest.param(lambda image: image.replace(b"AMDGPU\0", b"NVIDIA\0"), id="no metadata"),
        pytest.param(
            lambda image: image.replace(b"scale_kernel_0.kd", b"other_kernel_0.kd", 1),
            id="descriptor missing",
        ),
    ],
)
def test_other_images_are_invalid(
    device: HipTestDevice, hsaco: bytes, spoil: Callable[[bytes], bytes]
) -> None:
    assert _load(device, spoil(hsaco)) == 200
    assert device.live_modules() == 0


def test_code_for_another_gpu_does_not_load(device: HipTestDevice, hsaco: bytes) -> None:
    device.configure("gfx90a:sramecc+:xnack-", "gfx942:sramecc+:xnack-")
    assert _load(device, hsaco) == 209
    device.check("hipSetDevice", 1)
    assert _load(device, hsaco) == 0


@pytest.mark.parametrize("device_xnack", ["+", "-"])
@pytest.mark.parametrize("device_sramecc", ["+", "-"])
def test_features_have_to_agree_unless_the_code_takes_any(
    device: HipTestDevice, hsaco: bytes, device_xnack: str, device_sramecc: str
) -> None:
    setting = {"+": ON, "-": OFF}
    device.configure(f"gfx942:sramecc{device_sramecc}:xnack{device_xnack}")
    for xnack in (UNSUPPORTED, ANY, OFF, ON):
        for sramecc in (UNSUPPORTED, ANY, OFF, ON):
            runs = xnack in (ANY, setting[device_xnack]) and sramecc in (
                ANY,
                setting[device_sramecc],
            )
            status = _load(device, _with_features(hsaco, xnack, sramecc))
            assert status == (0 if runs else 209), (xnack, sramecc)


@pytest.mark.parametrize("target", ["gfx90a", "gfx950", "gfx1100", "gfx1201", "gfx1250"])
def test_what_flydsl_compiles_loads_on_its_target(
    device: HipTestDevice, sample: Callable[[str, str], CompiledSample], target: str
) -> None:
    device.configure(target, "gfx942:sramecc+:xnack-")
    image = sample("sizes", target).hsaco
    assert _load(device, image) == 0
    device.check("hipSetDevice", 1)
    assert _load(device, image) == 209


def test_module_files(device: HipTestDevice, hsaco: bytes, tmp_path: Path) -> None:
    path = tmp_path / "kernel.hsaco"
    path.write_bytes(hsaco)
    module = device.create("hipModuleLoad", str(path).encode())
    device.create("hipModuleGetFunction", module, b"scale_kernel_0")
    missing = str(tmp_path / "missing").encode()
    assert device.call("hipModuleLoad", byref(c_void_p()), missing) == 301
    path.write_bytes(b"")
    assert device.call("hipModuleLoad", byref(c_void_p()), str(path).encode()) == 200


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_damaged_files_are_refused_or_load_whole(
    device: HipTestDevice, hsaco: bytes, tmp_path: Path, data: st.DataObject
) -> None:
    size = data.draw(st.integers(0, len(hsaco)) | st.just(len(hsaco)))
    image = bytearray(hsaco[:size])
    for _ in range(data.draw(st.integers(0, 4)) if size else 0):
        image[data.draw(st.integers(0, size - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path / "damaged.hsaco"
    path.write_bytes(image)
    status = device.call("hipModuleLoad", byref(c_void_p()), str(path).encode())
    assert status in (0, 200, 209)
    if size < len(hsaco):
        assert status != 0


def test_loading_needs_hip_init_when_asked_to(device: HipTestDevice, hsaco: bytes) -> None:
    device.require_init(True)
    assert _load(device, hsaco) == 303
    device.check("hipGetDeviceCount", byref(c_int()))
    assert _load(device, hsaco) == 303
    device.check("hipInit", 0)
    assert _load(device, hsaco) == 0


def test_occupancy_shrinks_with_lds(device: HipTestDevice, hsaco: bytes) -> None:
    module = device.create("hipModuleLoadData", hsaco)
    function = device.create("hipModuleGetFunction", module, b"scale_kernel_0")
    blocks = c_int()
    found = []
    for threads, lds in ((64, 0), (64, 32768), (64, 65536), (256, 0), (2048, 0)):
        device.check(
            "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor",
            byref(blocks),
            function,
            threads,
            lds,
        )
        found.append(blocks.value)
    assert found == [32, 2, 1, 8, 0]
