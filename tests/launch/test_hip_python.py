"""hip-python's own pointers, arrays and streams as arguments, with its real package.

Each test runs in a process of its own: hip-python finds its HIP library by name, once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime_loader import hip
from tests.launch.samples import MI300, ROOT

pytestmark = [pytest.mark.device, pytest.mark.compile]

PRELUDE = """
import struct, sys
from types import SimpleNamespace
from hip import hip
import runtime_loader as rt
from tests.hip_device.device import HipTestDevice

def take(result):
    error, *values = result
    assert error == hip.hipError_t.hipSuccess, error
    return values[0] if values else None

device = HipTestDevice(sys.argv[1])
device.set_recording(True)
kernel = rt.load(sys.argv[2]).kernel("scale", N=64)
"""

STREAM = """
x = take(hip.hipMalloc(100 * 64 * 4)).configure(typestr="<f4", shape=(100, 64))
stream = take(hip.hipStreamCreate())
kernel(x, 8, 1.5, stream)
kernel(x, 8, 1.5, stream.as_c_void_p())
for launch in device.launches()[::2]:
    assert launch.kernarg == struct.pack("<Qif", int(x), 100, 1.5)
    assert launch.stream == int(stream) != 0
"""

WRONG = """
x = take(hip.hipMalloc(100 * 64 * 4)).configure(typestr="<f2", shape=(200, 64))
try:
    kernel(x, 8, 1.5)
except rt.ArgumentError as error:
    assert "argument 'x'" in str(error) and "f16" in str(error), error
else:
    raise AssertionError("an f16 array passed for an f32 one")
assert device.launches() == ()
"""


@pytest.mark.parametrize("script", [STREAM, WRONG], ids=["stream", "wrong"])
def test_arrays_and_streams(
    script: str, hip_library: Path, bundle_path: Path, tmp_path: Path
) -> None:
    pytest.importorskip("hip")
    (tmp_path / "libamdhip64.so").symlink_to(hip_library)  # the name that it looks for
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        hip.LIBRARY_VARIABLE: str(hip_library),
        "HIPTEST_DEVICES": MI300,
    }
    ran = subprocess.run(
        [sys.executable, "-c", PRELUDE + script, str(hip_library), str(bundle_path)],
        env=environment, capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
