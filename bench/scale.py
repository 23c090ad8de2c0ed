"""A huge bundle against a tiny one: opening, the first lookup, load and launch, and memory.

Both hold one real code object, many times over with differing padding, stored raw. Fresh processes
take turns, and each asks for a specialisation in the middle, on the HIP test device.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from flyc_cli.builder.build import build
from flyc_cli.bundle_writer import BundleContents, write_bundle
from runtime_loader import load
from runtime_loader.bundle_file import BundleFile
from runtime_loader.format import Ref
from runtime_loader.records import replace
from runtime_loader.specialisation import Specialisation
from tests.hip_device.build import build as build_hip_device

ROOT = Path(__file__).parents[1]
TARGET = "gfx942"
RUNS = 15
GOAL = 1.5
CODE_OBJECT_BYTES = 100_000
HUGE, TINY = (100_000, 20_000), (10, 10)  # specialisations, code objects
VARIANTS = 500  # of each kernel of the huge bundle

# Prints the milliseconds that each step took, and the process's peak in KiB.
PROGRAM = """
import sys, time
from runtime_loader import hip, load
path, name, variant = sys.argv[1], sys.argv[2], int(sys.argv[3])
device = hip.runtime().device(0)
marks = [time.perf_counter_ns()]
bundle = load(path)
marks.append(time.perf_counter_ns())
bundle.select(name, device, variant=variant)
marks.append(time.perf_counter_ns())
kernel = bundle.kernel(name, variant=variant)
marks.append(time.perf_counter_ns())
kernel(0x10000, 0x20000, 0x30000, 1000)
marks.append(time.perf_counter_ns())
peak = open("/proc/self/status").read().split("VmHWM:")[1].split()[0]
print(*[(after - before) / 1e6 for before, after in zip(marks, marks[1:])], peak)
"""
MEASURED = ("open ms", "lookup ms", "load ms", "launch ms", "peak KiB")


class Padded(Mapping[str, bytes]):
    """Code objects by SHA-256: one of them with a number after it, made when it is read."""

    def __init__(self, code: bytes, count: int) -> None:
        self._code = code.ljust(CODE_OBJECT_BYTES - 8, b"\0")
        self._numbers = {hashlib.sha256(self._made(n)).hexdigest(): n for n in range(count)}

    def _made(self, number: int) -> bytes:
        return self._code + number.to_bytes(8, "little")

    def __getitem__(self, digest: str) -> bytes:
        return self._made(self._numbers[digest])

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


@dataclass(frozen=True)
class Sample:
    """A bundle, and the specialisation that is asked of it."""

    path: Path
    kernel: str
    variant: int


def one_kernel(scratch: Path) -> tuple[Specialisation, bytes]:
    """A real specialisation and its code object."""
    manifest = ROOT / "manifests" / "vector_add" / "manifest.yaml"
    path = build(manifest, scratch, kernels=["vector_add_pointers"]).path
    spec = next(
        spec
        for spec in load(path).specialisations("vector_add_pointers")
        if str(spec.target) == TARGET and spec.params["dtype"] == "f32"
    )
    file = BundleFile.open(path)
    record = file.find(spec.key())
    assert record is not None
    ref = Ref.from_json(json.loads(record)["blob"], "the record")
    return spec, bytes(file.blob(ref))


def generate(scratch: Path, name: str, size: tuple[int, int]) -> Sample:
    """Write a bundle with that many specialisations and code objects."""
    spec, code = one_kernel(scratch / "one")
    specialisations, code_objects = size
    codes = Padded(code, code_objects)
    digests = list(codes)
    specs = [
        replace(
            spec,
            kernel=f"kernel_{number // VARIANTS:03}",
            params={"variant": number % VARIANTS},
            code_object=digests[number % code_objects],
        )
        for number in range(specialisations)
    ]
    contents = BundleContents(name, {}, specs, codes)
    path = write_bundle(scratch / name, contents, compression="raw").path
    middle = specs[specialisations // 2]
    return Sample(path, middle.kernel, middle.params["variant"])


def measure(samples: Mapping[str, Sample], hip: Path, runs: int) -> dict[str, list[list[float]]]:
    """What `runs` processes measured for each sample, after one warm-up each."""
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(hip.parent),
        "HIPTEST_DEVICES": TARGET,
        "PYTHONPATH": str(ROOT),
    }
    taken: dict[str, list[list[float]]] = {name: [] for name in samples}
    for _ in range(runs + 1):
        for name, sample in samples.items():
            command = [sys.executable, "-c", PROGRAM, str(sample.path), sample.kernel]
            output = subprocess.run(
                [*command, str(sample.variant)],
                env=environment,
                cwd=tempfile.gettempdir(),
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            taken[name].append([float(word) for word in output.split()])
    return {name: rows[1:] for name, rows in taken.items()}


def report(taken: Mapping[str, list[list[float]]]) -> str:
    """Medians with their spread, and the ratios between them."""
    lines = [f"{'':12}{'huge':>28}{'tiny':>28}  ratio (goal {GOAL})"]
    for column, name in enumerate(MEASURED):
        cells, medians = [], []
        for rows in taken.values():
            values = sorted(row[column] for row in rows)
            medians.append(statistics.median(values))
            cells.append(f"{medians[-1]:.2f} ({values[0]:.2f} to {values[-1]:.2f})")
        lines.append(f"{name:12}{cells[0]:>28}{cells[1]:>28}  {medians[0] / medians[1]:.2f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print every run as JSON")
    parser.add_argument("--runs", type=int, default=RUNS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flyc-bench-") as directory:
        scratch = Path(directory)
        hip = build_hip_device(scratch / "hip")
        began = time.monotonic()
        samples = {"huge": generate(scratch, "huge", HUGE), "tiny": generate(scratch, "tiny", TINY)}
        written = time.monotonic() - began
        taken = measure(samples, hip, options.runs)
        size = samples["huge"].path.stat().st_size
    if options.json:
        print(json.dumps({"columns": MEASURED, "bytes": size, "seconds": written, **taken}))
        return
    print(
        f"{HUGE[0]} specialisations of {HUGE[1]} code objects ({size / 1e9:.2f} GB, written in "
        f"{written:.0f} s) against {TINY[0]}; {options.runs} processes each"
    )
    print(report(taken))


if __name__ == "__main__":
    main()
