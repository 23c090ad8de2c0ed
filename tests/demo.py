"""`make demo`: build the quickstart manifest, look into the bundle, launch one of its kernels.

Without an AMD GPU the launch goes to the HIP test device, which checks and records launches.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from runtime_loader import hip
from runtime_loader.errors import HipUnavailableError
from tests.hip_device.build import build

ROOT = Path(__file__).parents[1]
BUNDLE = "out/quickstart.flybundle"


def flyc(*arguments: str) -> None:
    """Run one `flyc` command, shown as a user would type it; the demo ends where one fails."""
    print(f"\n$ flyc {shlex.join(arguments)}", flush=True)
    status = subprocess.run([sys.executable, "-m", "flyc_cli", *arguments], check=False)
    if status.returncode:
        sys.exit(status.returncode)


def use_some_device() -> None:
    """Point the loader at the HIP test device where this machine has no HIP device."""
    try:
        hip.runtime().device(None)
    except HipUnavailableError:
        os.environ["FLYC_HIP_LIBRARY"] = str(build(ROOT / "out" / "hip_device"))
        print("\nno HIP device here: launching on the HIP test device", flush=True)


def main() -> None:
    """The transcript of README.md."""
    os.chdir(ROOT)
    flyc("build", "manifests/quickstart/manifest.yaml", "-o", "out/", "--stages")
    flyc("inspect", BUNDLE)
    flyc("inspect", BUNDLE, "rmsnorm", "--target", "gfx942")
    one = ("rmsnorm", "N=4096", "dtype=bf16", "--target", "gfx942")
    flyc("inspect", BUNDLE, *one, "--plan")
    flyc("inspect", BUNDLE, *one, "-o", "out/stages")
    use_some_device()
    flyc("run", BUNDLE, "rmsnorm", "N=4096", "dtype=bf16", "--set", "rows=128", "--set", "eps=1e-6")


if __name__ == "__main__":
    main()
