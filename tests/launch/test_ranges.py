"""Ranges around calls, as a profiler's library sees them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.samples import ROOT

pytestmark = [pytest.mark.device, pytest.mark.compile]

LIBRARY = """
#include <stdio.h>
int roctxRangePushA(const char *name) { fprintf(stderr, "push %s\\n", name); return 0; }
int roctxRangePop(void) { fprintf(stderr, "pop\\n"); return 0; }
"""
PROGRAM = """
import sys
import runtime_loader as rt
from tests.launch.test_launch import Array

kernel = rt.load(sys.argv[1]).kernel("scale", N=64, device=0)
for _ in range(4):
    kernel(Array(4096, (3, 64)), 1, 1.0)
kernel.bind(Array(4096, (3, 64)), 1)(1.0)
try:
    kernel(Array(4096, (3, 64)), 1, 1.0, 12345)
except rt.HipError:
    pass
"""


@pytest.mark.parametrize("wanted", [True, False])
def test_each_call_is_a_range(
    tmp_path: Path, hip_library: Path, bundle_path: Path, implementation: str, wanted: bool
) -> None:
    (tmp_path / "roctx.c").write_text(LIBRARY)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", tmp_path / "roctx.c", "-o", tmp_path / "libroctx64.so"],
        check=True,
    )
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "FLYC_HIP_LIBRARY": str(hip_library),
        "HIPTEST_DEVICES": "gfx942",
        "FLYC_ROCTX": "1" if wanted else "0",
    }
    command = [sys.executable, "-c", PROGRAM, str(bundle_path)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    one = "push scale(N=64, dtype=f32) for gfx942\npop\n"
    # The call that HIP refuses ends its range too, if it came so far.
    assert result.stderr in ([one * 5, one * 6] if wanted else [""])
