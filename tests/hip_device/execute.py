"""Runs a command of flyc on the HIP test device, with execution.

    HIPTEST_DEVICES=gfx942 python -m tests.hip_device.execute run samples.flybundle gelu

After each launch the counters of what it executed go to stderr.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.hip_device.build import build
from tests.hip_device.device import HipTestDevice
from tests.hip_device.interpreter.executor import Executor
from tests.hip_device.interpreter.launch import Counters


def main() -> None:
    from flyc_cli.main import main as flyc

    library = os.environ.get("FLYC_HIP_LIBRARY")
    path = Path(library) if library else build(Path(tempfile.gettempdir()) / "flyc-hip-device")
    os.environ["FLYC_HIP_LIBRARY"] = str(path)
    device = HipTestDevice(path)
    device.set_hook(Executor(device, report=_print))
    sys.argv[0] = "flyc"
    flyc()


def _print(kernel: str, counters: Counters) -> None:
    print(f"executed {kernel}: {counters}", file=sys.stderr)


if __name__ == "__main__":
    main()
