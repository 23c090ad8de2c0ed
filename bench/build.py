"""How fast builds are: cold, unchanged, after edits, and as they grow; ratios in one run.

python -m bench.build [--kernels N] [--unchanged N] [--jobs N] [--json]

The kernels are those of the samples for one target, and N small specialisations of one launcher,
compiled by flyc, by FlyDSL's own COMPILE_ONLY loop in one process, and by a pool of processes that
import FlyDSL each, as kernel packages do it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from flyc_cli.builder.build import plan
from flyc_cli.manifest import Request

ROOT = Path(__file__).parents[1]
TARGET = "gfx942"

KERNELS = """
import flydsl.compiler as flyc
import flydsl.expr as fx
from helper import scale


@flyc.kernel
def polynomial_kernel(x: fx.Pointer, n: fx.Int32, DEGREE: fx.Constexpr[int]):
    at = fx.Int64(fx.block_idx.x) * 256 + fx.Int64(fx.thread_idx.x)
    value = x[at]
    total = value
    for power in range(DEGREE):
        total = total * value + fx.Float32(scale(power))
    x[at] = total


@flyc.jit
def polynomial(x: fx.Pointer, n: fx.Int32, DEGREE: fx.Constexpr[int]):
    polynomial_kernel(x, n, DEGREE).launch(grid=(n, 1, 1), block=(256, 1, 1))
"""
HELPER = "def scale(power):\n    return 1.0 / (power + 1)\n"
MANIFEST = """flyc: 1
name: bench
targets: [gfx942]
kernels:
  - name: polynomial
    launcher: kernels:polynomial
    constexpr: {{DEGREE: [{degrees}]}}
    args: {{x: {{pointer: f32}}, n: i32}}
"""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kernels", type=int, default=60)
    options.add_argument("--unchanged", type=int, default=1000)
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--json", action="store_true")
    options.add_argument("--compile-alone", metavar="MANIFEST", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.compile_alone:
        compile_alone(Path(chosen.compile_alone), 0, 1)
        return
    table = Table(as_json=chosen.json)
    with tempfile.TemporaryDirectory() as scratch:
        measure(table, Path(scratch), chosen.kernels, chosen.unchanged, chosen.jobs)


class Table:
    """Prints a line for each measurement: seconds, and what they are compared with."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def row(self, what: str, specialisations: int, seconds: float, **others: float) -> None:
        """`others` are ratios, times or sizes by name; a name ends with its unit."""
        if self._as_json:
            numbers = {"what": what, "specialisations": specialisations, "seconds": seconds}
            print(json.dumps(numbers | others), flush=True)
            return
        shown = ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in others.items())
        print(f"  {what:38} {specialisations:5}  {seconds:7.2f} s   {shown}", flush=True)


def measure(table: Table, scratch: Path, kernels: int, unchanged: int, jobs: int) -> None:
    """All measurements."""
    cold_build(table, "cold build of the samples", samples(scratch), scratch, jobs)
    project = lay_out(scratch / "project", kernels)
    cold = cold_build(table, "cold build of small kernels", project, scratch, jobs)
    helper = project / "helper.py"
    helper.write_text(f"# Edited.\n{HELPER}")
    commented, _ = flyc_build(project, scratch, jobs)
    table.row("a comment edited", kernels, commented, times_cold=cold / commented)
    helper.write_text(HELPER.replace("1.0", "2.0"))
    changed, _ = flyc_build(project, scratch, jobs)
    table.row("a helper's meaning edited", kernels, changed, times_cold=cold / changed)
    for count in (10, 100):
        grown = lay_out(scratch / f"grown{count}", count)
        seconds, _ = flyc_build(grown, scratch, jobs, scratch / f"store{count}")
        table.row("cold build", count, seconds, each_ms=1000 * seconds / count)
    many = lay_out(scratch / "many", unchanged)
    fill(many, scratch / "filled")
    seconds, memory = flyc_build(many, scratch, jobs, scratch / "filled")
    table.row("all in the store (copied from one)", unchanged, seconds, memory_mb=memory)
    seconds, memory = flyc_build(many, scratch, jobs, scratch / "filled")
    table.row("unchanged since the bundle was written", unchanged, seconds, memory_mb=memory)


def cold_build(table: Table, what: str, project: Path, scratch: Path, jobs: int) -> float:
    """Compare the three ways to build a project that nobody has built; flyc's seconds."""
    manifest = project / "manifest.yaml"
    environment = with_toolkit(scratch)
    command = [sys.executable, "-m", "bench.build", "--compile-alone", str(manifest)]
    alone = timed(command, environment)
    began = time.perf_counter()
    pool(manifest, jobs, environment)
    pooled = time.perf_counter() - began
    cold, _ = flyc_build(project, scratch, jobs)
    number = len(requests_of(manifest))
    table.row(
        what, number, cold, times_flydsl=alone / cold, flydsl_s=alone,
        times_pool=pooled / cold, pool_s=pooled,
    )  # fmt: skip
    return cold


def samples(scratch: Path) -> Path:
    """The quickstart kernels for one target, as a project of its own; without gelu, whose tanh
    FlyDSL alone does not compile."""
    place = scratch / "samples"
    shutil.copytree(ROOT / "manifests", place)
    text = (place / "quickstart" / "manifest.yaml").read_text()
    text = re.sub(r"^targets: .*$", f"targets: [{TARGET}]", text, count=1, flags=re.MULTILINE)
    text = re.sub(r"^ +targets: .*$\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^  - name: gelu\n(?:    .*\n|\n)*", "", text, flags=re.MULTILINE)
    (place / "quickstart" / "manifest.yaml").write_text(text)
    return place / "quickstart"


def requests_of(manifest: Path) -> Sequence[Request]:
    return plan(manifest).requests


def lay_out(project: Path, kernels: int) -> Path:
    project.mkdir()
    (project / "kernels.py").write_text(KERNELS)
    (project / "helper.py").write_text(HELPER)
    degrees = ", ".join(map(str, range(1, kernels + 1)))
    (project / "manifest.yaml").write_text(MANIFEST.format(degrees=degrees))
    return project


def timed(command: list[str], environment: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def flyc_build(
    project: Path, scratch: Path, jobs: int, store: Path | None = None
) -> tuple[float, float]:
    """Seconds, and megabytes of the command's own process."""
    code = "import resource, sys\nfrom flyc_cli.main import cli\ntry:\n    cli.main()\nfinally:\n"
    code += "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)\n"
    command = [sys.executable, "-c", code, "build", str(project / "manifest.yaml"), "--quiet"]
    command += ["-o", str(scratch / "out"), "-j", str(jobs)]
    began = time.perf_counter()
    run = subprocess.run(
        [*command, "--cache-dir", str(store or scratch / "store")],
        check=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    return time.perf_counter() - began, int(run.stderr.split()[-1]) / 1024


def with_toolkit(scratch: Path) -> dict[str, str]:
    """An environment in which FlyDSL alone finds a linker and compiles for a GPU that is not."""
    from mlir_passes.toolkit import assemble_toolkit

    toolkit = assemble_toolkit(scratch / "toolkit")
    return {
        **os.environ,
        "ROCM_PATH": str(toolkit.directory),
        "COMPILE_ONLY": "1",
        "FLYDSL_RUNTIME_ENABLE_CACHE": "0",
        "FLYDSL_GPU_ARCH": "gfx942",
        "ARCH": "gfx942",
    }


def compile_alone(manifest: Path, first: int, step: int) -> None:
    """FlyDSL's own loop: one process, one launcher call for each specialisation."""
    from flyc_cli.frontends.flydsl_adapter import order_arguments
    from flyc_cli.frontends.sources import find_source, python_values

    for request in requests_of(manifest)[first::step]:
        sys.path[:0] = [path for path in request.python_path if path not in sys.path]
        ((_, launcher),) = find_source(request.source)
        _, call = order_arguments(launcher, request.args, python_values(request.constexpr))
        launcher.compile_hints = {**launcher.compile_hints, **request.hints}
        launcher(**call)


def pool(manifest: Path, jobs: int, environment: dict[str, str]) -> None:
    """Processes that import torch and FlyDSL each, and share the specialisations."""
    before = dict(os.environ)
    os.environ.update(environment)
    with multiprocessing.get_context("spawn").Pool(jobs) as workers:
        workers.starmap(compile_alone, [(manifest, first, jobs) for first in range(jobs)])
    os.environ.clear()
    os.environ.update(before)


def fill(project: Path, directory: Path) -> None:
    """Keep the artifact of the first specialisation for all, under each one's own parameters."""
    from dataclasses import replace

    from flyc_cli.builder.build import Workers, compile_planned, open_artifacts, plan
    from flyc_cli.builder.outcomes import to_keep
    from flyc_cli.builder.toolchain import open_toolkit
    from flyc_cli.store.files import Store
    from flyc_cli.store.recorder import Looked

    store = Store(directory)
    planned = plan(project / "manifest.yaml")
    first = replace(planned, requests=planned.requests[:1])
    (built,) = compile_planned(first, workers=Workers(storage=store)).built
    toolkit = open_toolkit(None, directory.with_name("fill-toolkit"))
    artifacts = open_artifacts(store, toolkit)
    assert artifacts is not None
    (earlier,) = artifacts.earlier(built.request)
    artifact = to_keep(built, 1, optional=False, stages=False)
    for request in planned.requests:
        record = json.loads(json.dumps({**artifact.specialisation, "params": request.params}))
        mine = replace(artifact, params=request.params, specialisation=record)
        artifacts.keep(request, 0, mine, Looked(earlier.dependencies, earlier.states, None))


if __name__ == "__main__":
    main()
