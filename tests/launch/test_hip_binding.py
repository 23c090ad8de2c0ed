"""The ctypes binding of HIP against the test device."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runtime_loader import hip
from runtime_loader.errors import HipError, HipUnavailableError
from tests.hip_device.device import HipTestDevice
from tests.launch.samples import MI300, ROOT

pytestmark = pytest.mark.device


def test_devices(device: HipTestDevice) -> None:
    runtime = hip.runtime()
    assert hip.runtime() is runtime
    assert runtime.device_count() == 4
    assert [str(runtime.device(n)) for n in range(3)] == [
        f"device 0 ({MI300})",
        f"device 1 ({MI300})",
        "device 2 (gfx1100)",
    ]
    assert runtime.version() >= 6_00_00000
    runtime.set_device(2)
    assert runtime.current_device() == 2
    assert str(runtime.device()) == "device 2 (gfx1100)"
    with pytest.raises(HipError, match="hipSetDevice failed with hipErrorInvalidDevice"):
        runtime.set_device(9)


class Without:
    """A library without some of its symbols."""

    def __init__(self, library: ctypes.CDLL, *missing: str) -> None:
        self._library = library
        self._missing = missing

    def __getitem__(self, name: str) -> Any:
        if name in self._missing:
            raise AttributeError(name)
        return self._library[name]

    def __getattr__(self, name: str) -> Any:
        return self[name]


def test_the_older_properties_serve_too(device: HipTestDevice) -> None:
    library: Any = Without(ctypes.CDLL(str(device.path)), "hipGetDevicePropertiesR0600")
    runtime = hip.Hip(library, "old")
    assert str(runtime.device(0).target) == MI300
    assert device.calls()["hipGetDeviceProperties"] == 1


def test_a_symbol_that_is_missing(device: HipTestDevice) -> None:
    path = str(device.path)
    library: Any = Without(ctypes.CDLL(path), "hipModuleLaunchKernel")
    with pytest.raises(HipUnavailableError, match="cut has no symbol hipModuleLaunchKernel"):
        hip.Hip(library, "cut")
    library = Without(ctypes.CDLL(path), "hipStreamGetDevice")
    assert hip.Hip(library, "cut").stream_device(4096) is None


@pytest.mark.parametrize(
    "call", ["hipGetDeviceCount", "hipGetDevice", "hipGetDevicePropertiesR0600"]
)
def test_calls_that_fail(device: HipTestDevice, call: str) -> None:
    runtime = hip.runtime()
    device.fail(call, 999)
    with pytest.raises(HipError, match=f"^{call} failed with hipErrorUnknown \\(999: "):
        runtime.device()
    assert str(runtime.device()) == f"device 0 ({MI300})"


@pytest.mark.parametrize("call", ["hipGetDeviceCount", "hipGetDevice"])
def test_no_device_after_all(device: HipTestDevice, call: str) -> None:
    runtime = hip.runtime()
    device.fail(call, 100)
    with pytest.raises(HipUnavailableError, match=f"^HIP has no device: {call} failed with hip"):
        runtime.device()


LOADED_FIRST = """
import ctypes, sys
ctypes.CDLL(sys.argv[1])
from runtime_loader import hip
print(hip.runtime().path, hip.runtime().device_count())
"""


def test_a_library_that_is_already_loaded_is_used(hip_library: Path) -> None:
    """As when torch brought its own: its directory is on no search path."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HIPTEST_DEVICES": "gfx942,gfx942,gfx942"}
    environment.pop(hip.LIBRARY_VARIABLE, None)
    result = subprocess.run(
        [sys.executable, "-c", LOADED_FIRST, str(hip_library)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == ["libamdhip64.so.7", "3"]
