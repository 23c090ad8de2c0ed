"""The end of a process: nothing of the loader minds in which order things go, or that HIP has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime_loader import hip
from tests.launch.samples import MI300, ROOT

pytestmark = [pytest.mark.device, pytest.mark.compile]

PROGRAM = """
import atexit, os, sys, threading
import runtime_loader as rt
from runtime_loader import hip, modules
from runtime_loader.bundle_file import BundleFile
from tests.hip_device.device import HipTestDevice
from tests.launch.test_launch import Array
device = HipTestDevice(os.environ[hip.LIBRARY_VARIABLE])
x = Array(4096, (1, 64))
bundle = rt.Bundle(BundleFile.open(sys.argv[1]), keep=False)
kernel = bundle.kernel("scale", N=64)
kept = rt.load(sys.argv[1]).kernel("scale", N=128)
bound = kernel.bind(factor=1.0)
kernel(x, 1, 1.0)
bound(x, 1)
"""

ENDINGS = {
    "nothing is let go": "",
    "kernels first": "del kernel, bound, kept, bundle",
    "the bundle first": "bundle.close(); del bundle; bound(x, 1)",
    "a cycle": """
class Holder:
    def __del__(self):
        self.kernel(x, 1, 1.0)
holder = Holder()
holder.kernel, holder.holder = kernel, holder
del kernel, holder
""",
    "a launch in __del__": """
class Holder:
    def __del__(self, kernel=kernel, x=x):
        kernel(x, 1, 1.0)
sys.holder = Holder()
""",
    "a launch at exit": "atexit.register(kernel, x, 1, 1.0); del bundle, kernel, bound",
    "a load at exit": "atexit.register(lambda: rt.load(sys.argv[1]).kernel('scale', N=128))",
    "unloading at exit": """
atexit.register(lambda: modules.unload_unused(hip.runtime()))
del kernel, bound, bundle
""",
    "HIP is gone": "device.set_sticky(4)",
    "HIP goes before the modules": "atexit.register(device.reset); del kernel, bundle",
    "a daemon thread": """
started = threading.Event()
def work():
    while True:
        kernel(x, 1, 1.0)
        started.set()
device.set_recording(False)
threading.Thread(target=work, daemon=True).start()
started.wait()
""",
    "modules are torn down": "sys.modules.clear()",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_process_ends_quietly(hip_library: Path, bundle_path: Path, ending: str) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HIPTEST_DEVICES": f"{MI300},{MI300}",
        hip.LIBRARY_VARIABLE: str(hip_library),
    }
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-c", PROGRAM + ENDINGS[ending], str(bundle_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
