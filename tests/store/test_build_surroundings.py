"""Builds among others, with too little memory, sources and disks that fail, and wrong clocks."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flyc_cli.builder.outcomes import COMPILED, SAME_INPUT
from flyc_cli.builder.supervisor import StoreWarning
from flyc_cli.store.files import Store
from flyc_cli.store.upkeep import verify
from tests.store.project import build, codes, origins, write_kernel, write_manifest
from tests.store.test_build_faults import PLAINS, ROOT, started

pytestmark = pytest.mark.compile


def run_flyc(manifest: Path, out: Path, store: Path, *before: str) -> Any:
    """`flyc build`, as a command that goes after `before`."""
    command = [sys.executable, "-m", "flyc_cli", "build", str(manifest), "-o", str(out)]
    command += ["--cache-dir", str(store), "-j", "2"]
    return subprocess.run(
        [*before, *command], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_a_full_disk_for_the_bundle(project: Path, tmp_path: Path, small_disk: Path) -> None:
    """Said in one message; nothing partial is left, and what was built is in the store."""
    with contextlib.suppress(OSError):
        (small_disk / "filler").write_bytes(bytes(1 << 20))
    manifest = write_manifest(project, PLAINS)
    store = tmp_path / "store"
    run = run_flyc(manifest, small_disk, store)
    assert run.returncode == 3, run.stderr
    assert "No space left on device" in run.stderr
    assert "Traceback" not in run.stderr
    assert [path.name for path in small_disk.iterdir()] == ["filler"]
    built = build(manifest, Store(store))
    assert set(origins(built).values()) == {SAME_INPUT}
    assert codes(built) == codes(build(manifest, None))


def test_a_store_on_a_read_only_file_system(
    project: Path, tmp_path: Path, read_only: Callable[[], Path]
) -> None:
    manifest = write_manifest(project, PLAINS)
    first = codes(build(manifest, Store(tmp_path / "mount")))
    store = Store(read_only())
    assert set(origins(build(manifest, store)).values()) == {SAME_INPUT}
    path = project / "plain0.py"
    path.write_text(path.read_text().replace("return ", "return 100 + ", 1))
    with pytest.warns(StoreWarning, match="Read-only file system"):
        edited = build(manifest, store)
    assert origins(edited) == {"plain0": COMPILED, "plain1": SAME_INPUT, "plain2": SAME_INPUT}
    assert codes(edited)["plain0"] != first["plain0"]
    run = run_flyc(manifest, tmp_path / "out", store.root)
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("cannot be written") == 1


def limited_group() -> Path:
    """A new control group of 1.5 GB."""
    for root, limit in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        group = Path("/sys/fs/cgroup", root, f"flyc-test-{os.getpid()}")
        with contextlib.suppress(OSError):
            group.mkdir()
            try:
                (group / limit).write_text(str(3 << 29))
            except OSError:
                group.rmdir()
            else:
                return group
    pytest.skip("making a control group takes privileges")


@pytest.fixture
def little_memory() -> Iterator[Path]:
    """A control group that has little memory; empty when the test ends."""
    group = limited_group()
    yield group
    deadline = time.monotonic() + 5
    while group.exists() and time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # what ran in it is still ending
            group.rmdir()
        time.sleep(0.1)


def test_memory_that_is_all_used_up(project: Path, tmp_path: Path, little_memory: Path) -> None:
    """Without a limit of its own, by one kernel: the others are built."""
    grows = "def value():\n    held = []\n    while True:\n        held.append(b'1' * (1 << 24))\n"
    write_kernel(project, "grows", grows)
    manifest, store = write_manifest(project, ["grows", *PLAINS]), tmp_path / "store"
    inside = f'echo $$ > {little_memory}/cgroup.procs && exec "$@"'
    run = run_flyc(manifest, tmp_path / "out", store, "sh", "-c", inside, "sh")
    assert run.returncode == 1, run.stderr
    assert "Traceback" not in run.stderr
    assert "grows() for gfx942" in run.stderr
    assert "SIGKILL" in run.stderr
    assert "memory" in run.stderr
    assert set(origins(build(write_manifest(project, PLAINS), Store(store))).values()) == {
        SAME_INPUT
    }


def processes_with(text: str) -> list[int]:
    """The pids of those whose environment has it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if text.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def test_a_build_that_is_killed_at_any_time(project: Path, tmp_path: Path) -> None:
    """Again and again, on one store. No process is left, and the next build equals a clean one."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    delays = random.Random(seed)
    manifest, store = write_manifest(project, PLAINS), tmp_path / "store"
    for number in range(4):
        run = started(manifest, store, tmp_path / f"log{number}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(delays.uniform(0.1, 4))
        run.kill()
        run.wait()
    deadline = time.monotonic() + 30
    while processes_with(str(store)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_with(str(store)) == []
    built = build(manifest, Store(store))
    assert codes(built) == codes(build(manifest, None))
    assert not verify(Store(store)).damaged
    assert set(origins(build(manifest, Store(store))).values()) == {SAME_INPUT}


def test_sources_that_cannot_be_read(project: Path, tmp_path: Path) -> None:
    """A directory where a module was, and text that is none: clean failures of those alone."""
    manifest = write_manifest(project, PLAINS)
    (project / "plain1.py").unlink()
    (project / "plain1.py").mkdir()
    (project / "plain2.py").write_bytes(b"VALUE = '\xff\xfe'\n")
    run = run_flyc(manifest, tmp_path / "out", tmp_path / "store")
    assert "Traceback" not in run.stderr
    assert run.returncode in (1, 2)
    assert "plain1() for gfx942 failed at stage import" in run.stderr
    assert "plain2() for gfx942 failed at stage import" in run.stderr
    assert f"{len(PLAINS) - 2} built" in run.stdout.splitlines()[-1]


def test_two_builders_of_different_inputs(project: Path, tmp_path: Path) -> None:
    """At once, on one store, the same kernels with other values: each gets its own."""
    other = tmp_path / "other" / project.name
    shutil.copytree(project, other)
    for name in PLAINS:
        path = other / f"{name}.py"
        path.write_text(path.read_text().replace("return ", "return 100 + ", 1))
    store = tmp_path / "store"
    manifests = [write_manifest(place, PLAINS) for place in (project, other)]
    runs = [started(m, store, tmp_path / f"log{i}") for i, m in enumerate(manifests)]
    assert [run.wait(240) for run in runs] == [0, 0]
    assert not verify(Store(store)).damaged
    for manifest in manifests:
        built = build(manifest, Store(store))
        assert set(origins(built).values()) == {SAME_INPUT}
        assert codes(built) == codes(build(manifest, None))
    assert codes(build(manifests[0], None)) != codes(build(manifests[1], None))


def test_a_clock_that_went_backwards(project: Path, tmp_path: Path) -> None:
    """Files from the future are still believed by their contents alone."""
    store = Store(tmp_path / "store")
    manifest = write_manifest(project, PLAINS)
    first = codes(build(manifest, store))
    later = time.time() + 1e6
    for path in [*project.rglob("*.py"), *store.root.rglob("*")]:
        os.utime(path, (later, later))
    assert set(origins(build(manifest, store)).values()) == {SAME_INPUT}
    path = project / "plain0.py"
    path.write_text(path.read_text().replace("return ", "return 100 + ", 1))
    os.utime(path, (0, 0))
    edited = build(manifest, store)
    assert origins(edited)["plain0"] == COMPILED
    assert codes(edited)["plain0"] != first["plain0"]


def test_llvm_options_are_a_part_of_what_is_lowered(project: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    manifest = write_manifest(project, PLAINS[:1])
    assert origins(build(manifest, store)) == {PLAINS[0]: COMPILED}
    more = "defaults: {hints: {llvm_options: {amdgpu-early-inline-all: true}}}\n"
    other = write_manifest(project, PLAINS[:1], more)
    assert origins(build(other, store)) == {PLAINS[0]: COMPILED}
    assert origins(build(other, store)) == {PLAINS[0]: SAME_INPUT}
