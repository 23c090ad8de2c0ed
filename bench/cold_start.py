"""Process start to the first launch: the loader against FlyDSL's run-only mode, in one run.

Both launch the same kernel with the same arguments on the HIP test device, in fresh processes
that take turns. FlyDSL reads the cache that it wrote before (FLYDSL_RUNTIME_RUN_ONLY).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from flyc_cli.builder.build import build
from mlir_passes.toolkit import LLD_VERSION, assemble_toolkit
from tests.hip_device.build import build as build_hip_device

ROOT = Path(__file__).parents[1]
RUNS = 9
TARGET = "gfx942"

# Each prints the moment of its first launch and its peak memory so far (KiB). Not `ru_maxrss`,
# which starts at what the process that forked it had.
REPORT = """
import time
print(time.monotonic_ns(), open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
"""

OURS = f"""
import runtime_loader as rt
add = rt.load("BUNDLE").kernel("vector_add_pointers", dtype="f32")
add(0x10000, 0x20000, 0x30000, 1000)
{REPORT}
"""

FLYDSL = f"""
import sys
sys.path[:0] = PATH
import flydsl.compiler as flyc, flydsl.expr as fx
from vector_add import vector_add_pointers
x, y, out = (
    flyc.from_c_void_p(fx.Float32, address, assumed_align=16)
    for address in (0x10000, 0x20000, 0x30000)
)
vector_add_pointers(x, y, out, 1000, "f32")
{REPORT}
"""


@dataclass(frozen=True)
class Start:
    """One process: milliseconds from its start to its first launch, and its peak in MiB."""

    milliseconds: float
    mebibytes: float


def start(program: str, environment: dict[str, str]) -> Start:
    """Run `program` in a fresh interpreter and take its figures. Raises if it fails."""
    began = time.monotonic_ns()
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=tempfile.gettempdir(),
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(result.stderr)
    launched, memory = map(int, result.stdout.split())
    return Start((launched - began) / 1e6, memory / 1024)


def measure(scratch: Path, runs: int = RUNS) -> dict[str, list[Start]]:
    """Starts of `flyc` and `flydsl`, taken in turns after one warm-up each."""
    hip = build_hip_device(scratch / "hip")
    manifest = ROOT / "manifests" / "vector_add" / "manifest.yaml"
    bundle = build(manifest, scratch / "out", kernels=["vector_add_pointers"]).link
    toolkit = assemble_toolkit(scratch / "toolkit")
    path = [str(ROOT / "manifests" / name) for name in ("vector_add", "common")]
    common = {
        **{name: value for name, value in os.environ.items() if not name.startswith("FLYDSL_")},
        "LD_LIBRARY_PATH": str(hip.parent),
        "HIPTEST_DEVICES": TARGET,
        "LLD_VERSION": LLD_VERSION,
        "PYTHONPATH": str(ROOT),
    }
    common.pop("PYTHONDONTWRITEBYTECODE", None)
    flydsl = {
        **common,
        "ROCM_PATH": str(toolkit.directory),
        "FLYDSL_RUNTIME_CACHE_DIR": str(scratch / "cache"),
        "FLYDSL_GPU_ARCH": TARGET,
        "ARCH": TARGET,
    }
    programs = {
        "flyc": (OURS.replace("BUNDLE", str(bundle)), common),
        "flydsl": (
            FLYDSL.replace("PATH", repr(path)),
            {**flydsl, "FLYDSL_RUNTIME_RUN_ONLY": "1"},
        ),
    }
    start(programs["flydsl"][0], flydsl)  # fills the cache
    starts: dict[str, list[Start]] = {name: [] for name in programs}
    for _ in range(runs + 1):
        for name, (program, environment) in programs.items():
            starts[name].append(start(program, environment))
    return {name: taken[1:] for name, taken in starts.items()}


def report(starts: dict[str, list[Start]]) -> str:
    """Medians with their spread, and the ratio pair by pair."""
    lines = [f"first launch of vector_add_pointers, {len(starts['flyc'])} processes each"]
    for name, taken in starts.items():
        times = sorted(s.milliseconds for s in taken)
        memory = statistics.median(s.mebibytes for s in taken)
        lines.append(
            f"{name:8} {statistics.median(times):8.1f} ms ({times[0]:.1f} to {times[-1]:.1f})"
            f"  {memory:7.1f} MiB"
        )
    pairs = list(zip(starts["flydsl"], starts["flyc"], strict=True))
    faster = statistics.median(theirs.milliseconds / ours.milliseconds for theirs, ours in pairs)
    smaller = statistics.median(theirs.mebibytes / ours.mebibytes for theirs, ours in pairs)
    lines.append(f"flyc is {faster:.1f} times as fast and takes 1/{smaller:.1f} of the memory")
    return "\n".join(lines)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="flyc-bench-") as scratch:
        starts = measure(Path(scratch))
    if "--json" in sys.argv[1:]:
        print(json.dumps({name: [vars(s) for s in taken] for name, taken in starts.items()}))
    else:
        print(report(starts))


if __name__ == "__main__":
    main()
