"""The devices of the HIP test device: what a process sees of them, and how they are configured."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from ctypes import byref, c_int, c_size_t
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from tests.hip_device.device import HipTestDevice

pytestmark = pytest.mark.device

FLYDSL_RUNTIME = "flydsl/_mlir/_mlir_libs/libfly_jit_runtime.so"


def _versions(path: Path, version_section: str) -> dict[str, str]:
    """The GNU version of each dynamic symbol named hip*."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        names: dict[int, str] = {}
        for version, auxiliaries in elf.get_section_by_name(version_section).iter_versions():
            for auxiliary in auxiliaries:
                index = (
                    auxiliary["vna_other"] if "vna_other" in auxiliary.entry else version["vd_ndx"]
                )
                names.setdefault(index, auxiliary.name)
        numbers = elf.get_section_by_name(".gnu.version")
        found = {}
        for index, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
            number = numbers.get_symbol(index)["ndx"]
            if symbol.name.startswith("hip") and isinstance(number, int):
                found[symbol.name] = names[number & 0x7FFF]
        return found


def test_every_symbol_of_flydsls_runtime_is_offered(hip_library: Path) -> None:
    flydsl = next(
        Path(entry, FLYDSL_RUNTIME) for entry in sys.path if Path(entry, FLYDSL_RUNTIME).exists()
    )
    wanted = _versions(flydsl, ".gnu.version_r")
    offered = _versions(hip_library, ".gnu.version_d")
    assert len(wanted) > 20
    assert wanted == {name: offered.get(name) for name in wanted}
    hip_only = {version for name, version in offered.items() if not name.startswith("hiptest")}
    assert hip_only == {"hip_4.2"}


def test_soname_is_that_of_hip_7(hip_library: Path) -> None:
    with hip_library.open("rb") as file:
        tags = {
            tag.entry.d_tag: tag
            for tag in ELFFile(file).get_section_by_name(".dynamic").iter_tags()
        }
        assert tags["DT_SONAME"].soname == "libamdhip64.so.7"


def test_target_name_stands_where_each_properties_layout_has_it(device: HipTestDevice) -> None:
    device.configure("gfx942:sramecc+:xnack-", "gfx1201")
    room = ctypes.create_string_buffer(4096)
    device.check("hipGetDevicePropertiesR0600", room, 1)
    assert room.raw[1160:].split(b"\0")[0] == b"gfx1201"
    assert not any(room.raw[1472:])
    device.check("hipGetDevicePropertiesR0600", room, 0)
    assert room.raw[1160:].split(b"\0")[0] == b"gfx942:sramecc+:xnack-"
    old = ctypes.create_string_buffer(4096)
    device.check("hipGetDeviceProperties", old, 0)
    assert old.raw[396:].split(b"\0")[0] == b"gfx942:sramecc+:xnack-"


def test_functions_by_name(device: HipTestDevice, hip_library: Path) -> None:
    """As they are in a version of HIP: properties have another layout since 6.0."""
    library = ctypes.CDLL(str(hip_library))
    function, found = ctypes.c_void_p(), c_int(7)

    def look(name: bytes, version: int) -> int:
        arguments = (name, byref(function), version, ctypes.c_uint64(0), byref(found))
        return device.call("hipGetProcAddress", *arguments)

    for name, version, wanted in (
        ("hipModuleLaunchKernel", 60300000, "hipModuleLaunchKernel"),
        ("hipGetDeviceProperties", 60300000, "hipGetDevicePropertiesR0600"),
        ("hipGetDeviceProperties", 507, "hipGetDeviceProperties"),
    ):
        assert look(name.encode(), version) == 0
        assert function.value == ctypes.cast(getattr(library, wanted), ctypes.c_void_p).value
        assert found.value == 0
    assert look(b"hipNoSuchThing", 60300000) == 500
    assert (function.value, found.value) == (None, 1)


def test_attributes_differ_by_target(device: HipTestDevice) -> None:
    warp_size, lds_per_block, max_threads = 87, 74, 56
    device.configure("gfx950", "gfx1100")
    found = {}
    for ordinal in (0, 1):
        for attribute in (warp_size, lds_per_block, max_threads):
            value = c_int()
            device.check("hipDeviceGetAttribute", byref(value), attribute, ordinal)
            found[ordinal, attribute] = value.value
    assert found == {
        (0, warp_size): 64,
        (0, lds_per_block): 163840,
        (0, max_threads): 1024,
        (1, warp_size): 32,
        (1, lds_per_block): 65536,
        (1, max_threads): 1024,
    }
    assert device.call("hipDeviceGetAttribute", byref(c_int()), 9000, 0) == 1
    assert device.call("hipDeviceGetAttribute", byref(c_int()), warp_size, 2) == 101


def test_current_device_belongs_to_the_thread(device: HipTestDevice) -> None:
    device.check("hipSetDevice", 1)
    seen = []

    def look() -> None:
        current = c_int(-1)
        device.check("hipGetDevice", byref(current))
        seen.append(current.value)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    look()
    assert seen == [0, 1]
    assert device.call("hipSetDevice", 2) == 101


def test_without_devices_every_call_says_so(device: HipTestDevice) -> None:
    device.configure()
    assert device.call("hipInit", 0) == 100
    assert device.call("hipGetDeviceCount", byref(c_int())) == 100
    assert device.call("hipMalloc", byref(ctypes.c_void_p()), 16) == 100
    assert device.error_name(100) == "hipErrorNoDevice"


@pytest.mark.parametrize(
    "target", ["gfx000", "gfx942:sramecc", "gfx1201:xnack+", "gfx942,,", "x" * 400]
)
def test_unknown_target_is_refused(device: HipTestDevice, target: str) -> None:
    with pytest.raises(ValueError, match="cannot model"):
        device.configure(*target.split(","))


def test_environment_configures_the_devices(hip_library: Path) -> None:
    script = (
        "import sys, ctypes\n"
        "from pathlib import Path\n"
        "from tests.hip_device.device import HipTestDevice\n"
        "d = HipTestDevice(Path(sys.argv[1]))\n"
        "n = ctypes.c_int(); d.check('hipGetDeviceCount', ctypes.byref(n))\n"
        "r = ctypes.create_string_buffer(1472)\n"
        "d.check('hipGetDevicePropertiesR0600', r, n.value - 1)\n"
        "print(n.value, r.raw[1160:].split(b'\\0')[0].decode())\n"
    )
    seen = [
        subprocess.run(
            [sys.executable, "-c", script, str(hip_library)],
            env={**os.environ, **devices, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for devices in ({}, {"HIPTEST_DEVICES": "gfx90a:xnack+,gfx1250,gfx1100"})
    ]
    assert seen == ["1 gfx942:sramecc+:xnack-", "3 gfx1100"]


def test_memory_size_and_free_memory(device: HipTestDevice) -> None:
    device.set_memory(0, 1 << 20)
    device.create("hipMalloc", 4096)
    free, total = c_size_t(), c_size_t()
    device.check("hipMemGetInfo", byref(free), byref(total))
    assert (free.value, total.value) == ((1 << 20) - 4096, 1 << 20)
    device.check("hipDeviceTotalMem", byref(total), 1)
    assert total.value == 16 << 30


def test_last_error_is_per_thread_and_survives_successes(device: HipTestDevice) -> None:
    assert device.call("hipSetDevice", 9) == 101
    device.check("hipSetDevice", 0)
    other = []
    thread = threading.Thread(target=lambda: other.append(device.call("hipPeekAtLastError")))
    thread.start()
    thread.join()
    assert other == [0]
    assert device.call("hipPeekAtLastError") == 101
    assert device.call("hipGetLastError") == 101
    assert device.call("hipGetLastError") == 0


def test_names_and_texts_of_errors(device: HipTestDevice) -> None:
    assert device.error_name(209) == "hipErrorNoBinaryForGpu"
    assert device.error_string(209) == "no kernel image is available for execution on the device"
    assert device.error_name(123456) == "hipErrorUnknown"


def test_calls_are_counted(device: HipTestDevice) -> None:
    for _ in range(3):
        device.call("hipSetDevice", 0)
    device.call("hipSetDevice", 7)
    assert device.calls() == {"hipSetDevice": 4}
    device.reset()
    assert device.calls() == {}
