"""Builds on a real Dask cluster on the loopback: a scheduler and worker processes."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flyc_cli.builder import cluster as cluster_module
from flyc_cli.builder import sources
from flyc_cli.builder.build import Workers, build, compile_planned, plan
from flyc_cli.builder.failures import BuildError
from flyc_cli.builder.outcomes import COMPILED, SAME_INPUT, Failed, Outcome
from flyc_cli.builder.scheduler import Cluster, ClusterError
from flyc_cli.builder.scratch import scratch_directory
from flyc_cli.builder.watch import Silent
from flyc_cli.manifest.model import Request
from flyc_cli.store.files import Store
from tests.store import project

pytestmark = pytest.mark.compile


class DaskCluster:
    """A scheduler, and workers that are started and killed at will."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.processes: list[subprocess.Popen[bytes]] = []
        file = directory / "scheduler.json"
        self._start(
            "scheduler",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--no-dashboard",
            "--scheduler-file",
            str(file),
        )
        # Dask writes it in place, so it may be there without its end.
        self._wait_for(lambda: file.exists() and file.read_text().endswith("}"))
        self.address = json.loads(file.read_text())["address"].replace("tcp://", "dask://")

    def worker(self, *options: str, **environment: str) -> subprocess.Popen[bytes]:
        local = self.directory / f"local-{len(self.processes)}"
        return self._start(
            *("worker", self.address.replace("dask://", "tcp://"), "--no-nanny", "--nthreads", "1"),
            *("--host", "127.0.0.1"),
            *("--no-dashboard", "--local-directory", str(local), *options),
            **environment,
        )

    def wait_for_workers(self, count: int) -> None:
        from distributed import Client

        with Client(self.address.replace("dask://", "tcp://"), set_as_default=False) as client:
            client.wait_for_workers(count, timeout=60)

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.kill()
            process.wait()

    def _start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        log = (self.directory / f"log-{len(self.processes)}").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "dask", *arguments],
            env={**os.environ, **environment},
            cwd=self.directory,
            stdout=log,
            stderr=log,
        )
        self.processes.append(process)
        return process

    def _wait_for(self, ready: object) -> None:
        deadline = time.monotonic() + 60
        while not ready():  # type: ignore[operator]
            assert time.monotonic() < deadline, (self.directory / "log-0").read_text()
            time.sleep(0.05)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    made = DaskCluster(tmp_path_factory.mktemp("dask"))
    try:
        made.worker()
        made.worker()
        made.wait_for_workers(2)
        yield made
    finally:
        made.stop()


NAMES = [f"kernel{number}" for number in range(6)]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Kernels that take their values from a helper; only this machine has them."""
    directory = tmp_path / "project"
    directory.mkdir()
    for number, name in enumerate(NAMES):
        head = f"import helper\n\n\ndef value():\n    return helper.VALUE + {number}\n"
        project.write_kernel(directory, name, head)
    path = project.write_manifest(directory, NAMES)
    (directory / "lib" / "helper.py").write_text("VALUE = 5\n")
    return path


def workers(store: Path, cluster: DaskCluster, **options: bool) -> Workers:
    return Workers(storage=Store(store), cluster=Cluster(cluster.address, **options))


def test_the_bundle_is_that_of_a_build_here(
    cluster: DaskCluster, manifest: Path, tmp_path: Path
) -> None:
    there = build(manifest, tmp_path / "there", workers=workers(tmp_path / "store", cluster))
    here = build(manifest, tmp_path / "here", jobs=2)
    assert there.path.read_bytes() == here.path.read_bytes()
    # What came back is in the store of this machine, and found without the cluster.
    compiled = compile_planned(plan(manifest), workers=Workers(storage=Store(tmp_path / "store")))
    assert {built.origin for built in compiled.built} == {SAME_INPUT}
    # A change is seen there, too.
    (manifest.parent / "lib" / "helper.py").write_text("VALUE = 7\n")
    again = compile_planned(plan(manifest), workers=workers(tmp_path / "store", cluster))
    assert {built.origin for built in again.built} == {COMPILED}


def test_files_that_both_see(cluster: DaskCluster, manifest: Path, tmp_path: Path) -> None:
    shared = workers(tmp_path / "store", cluster, shared_sources=True)
    assert len(compile_planned(plan(manifest), workers=shared).built) == len(NAMES)


def test_failures_name_the_files_of_here(
    cluster: DaskCluster, manifest: Path, tmp_path: Path
) -> None:
    path = manifest.parent / "kernel2.py"
    path.write_text(path.read_text().replace("return helper.VALUE + 2", "raise KeyError('two')"))
    with pytest.raises(BuildError) as caught:
        build(manifest, tmp_path / "out", workers=workers(tmp_path / "store", cluster))
    (failed,) = caught.value.failures
    assert (failed.kind, failed.request.kernel) == ("failed", "kernel2")
    line = path.read_text().splitlines().index("    raise KeyError('two')") + 1
    assert failed.source[0] == (str(path), line)
    assert "'two'" in failed.message


@pytest.fixture
def other(tmp_path: Path) -> Iterator[DaskCluster]:
    """A cluster of a test's own, which has no workers yet."""
    (tmp_path / "dask").mkdir()
    made = DaskCluster(tmp_path / "dask")
    try:
        yield made
    finally:
        made.stop()


def slow_down(manifest: Path) -> None:
    """Let each kernel take 0.3 s more."""
    text = "import time\n\ntime.sleep(0.3)\nVALUE = 5\n"
    (manifest.parent / "lib" / "helper.py").write_text(text)


def test_workers_that_are_killed_at_random(
    other: DaskCluster, manifest: Path, tmp_path: Path
) -> None:
    """Twice, or FLYC_KILLS times, each with another to follow; FLYC_KILL_SEED repeats one."""
    seed = int(os.environ.get("FLYC_KILL_SEED") or random.randrange(1 << 32))
    print(f"FLYC_KILL_SEED={seed}")
    times, kills = random.Random(seed), int(os.environ.get("FLYC_KILLS", "2"))
    slow_down(manifest)
    alive = [other.worker(), other.worker()]
    other.wait_for_workers(2)
    began, ended = threading.Event(), threading.Event()
    killed: list[subprocess.Popen[bytes]] = []

    class Begins(Silent):
        def started(self, number: int, request: Request) -> None:
            began.set()

    def kill() -> None:
        began.wait()
        while len(killed) < kills and not ended.wait(times.uniform(0, 0.8)):
            doomed = alive.pop(times.randrange(len(alive)))
            doomed.kill()
            killed.append(doomed)
            alive.append(other.worker())

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        there = build(
            manifest,
            tmp_path / "there",
            workers=workers(tmp_path / "store", other),
            watcher=Begins(),
        )
    finally:
        began.set()
        ended.set()
        killer.join()
    assert killed  # six kernels take two workers longer than the first waits
    here = build(manifest, tmp_path / "here", jobs=2)
    assert there.path.read_bytes() == here.path.read_bytes()


def test_what_a_killed_worker_leaves_goes_with_the_next(
    other: DaskCluster, manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    doomed = other.worker(TMPDIR=str(temporary))
    other.wait_for_workers(1)
    build(manifest, tmp_path / "out", workers=workers(tmp_path / "store", other))
    doomed.kill()
    doomed.wait()
    (left,) = temporary.glob("flyc-*")
    assert (left / "store").exists()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with scratch_directory():
        assert not left.exists()


def test_a_scheduler_that_is_lost(
    other: DaskCluster, manifest: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    slow_down(manifest)
    other.worker()
    other.wait_for_workers(1)

    class Kills(Silent):
        def outcome(self, outcome: Outcome) -> None:
            other.processes[0].kill()

    capfd.readouterr()
    with pytest.raises(ClusterError, match=f"the scheduler {other.address} was lost"):
        build(
            manifest, tmp_path / "out", workers=workers(tmp_path / "store", other), watcher=Kills()
        )
    assert capfd.readouterr().err == ""
    compiled = compile_planned(plan(manifest), workers=Workers(storage=Store(tmp_path / "store")))
    assert {built.origin for built in compiled.built} == {SAME_INPUT, COMPILED}


def test_workers_without_flyc_get_no_work(
    other: DaskCluster, manifest: Path, tmp_path: Path
) -> None:
    package = tmp_path / "without" / "flyc_cli"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('no flyc here')\n")
    other.worker(PYTHONPATH=str(package.parent))
    other.wait_for_workers(1)
    with pytest.raises(ClusterError, match=r"cannot run flyc: .*no flyc here"):
        build(manifest, tmp_path / "out", workers=workers(tmp_path / "store", other))
    other.worker()
    other.wait_for_workers(2)
    written = build(manifest, tmp_path / "out", workers=workers(tmp_path / "store", other))
    assert written.specialisations == len(NAMES)
    assert other.processes[1].poll() is None  # a task would have ended it


def test_workers_that_declare_too_little(
    other: DaskCluster, manifest: Path, tmp_path: Path
) -> None:
    """Dask would wait for one that has enough."""
    for declared, wanted in [
        ("flyc=0", "takes flyc=1: tcp://.* has flyc=0"),
        ("memory=1e8", r"takes flyc=1 and memory=7e\+08: tcp://.* has memory=1e\+08"),
        ("flyc=1", r"takes flyc=1 and memory=7e\+08"),
    ]:
        other.worker("--resources", declared)
        other.wait_for_workers(len(other.processes) - 1)
        with pytest.raises(ClusterError, match=f"no worker of .* has room .* {wanted}"):
            build(manifest, tmp_path / "out", workers=workers(tmp_path / "store", other))
    other.worker("--resources", "flyc=1 memory=1e9")
    other.wait_for_workers(4)
    written = build(manifest, tmp_path / "out", workers=workers(tmp_path / "store", other))
    assert written.specialisations == len(NAMES)


def test_a_build_that_nobody_is_left_for(
    other: DaskCluster, manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "_ALONE_SECONDS", 1.0)
    monkeypatch.setattr(cluster_module, "_LOOK_SECONDS", 0.2)
    doomed = other.worker()
    other.wait_for_workers(1)

    class Kills(Silent):
        def outcome(self, outcome: Outcome) -> None:
            doomed.kill()

    slow_down(manifest)
    with pytest.raises(ClusterError, match="has had no worker for 1 s that can do what is left"):
        build(
            manifest, tmp_path / "out", workers=workers(tmp_path / "store", other), watcher=Kills()
        )


def test_a_worker_with_another_toolchain_gets_no_work(
    other: DaskCluster, manifest: Path, tmp_path: Path
) -> None:
    """Beside a fit one it is left out; alone, the build says what it has."""
    other.worker(PYTHONPATH=str(tmp_path))  # a part of the identity
    other.wait_for_workers(1)
    with pytest.raises(ClusterError, match=r"no worker .*FlyDSL 0.*; differs: PYTHONPATH"):
        build(manifest, tmp_path / "out", workers=workers(tmp_path / "store", other))
    other.worker()
    other.wait_for_workers(2)
    written = build(manifest, tmp_path / "out", workers=workers(tmp_path / "store", other))
    assert written.specialisations == len(NAMES)


@pytest.mark.parametrize(
    "address",
    [
        "host:1",
        "tcp://host:1",
        "dask://host",
        "dask://",
        "dask://:1",
        "dask://127.0.0.1:abc",
        "dask://host:99999",
        "dask://host:0",
        "dask://a..b:1",
        "dask://[::1:1",
    ],
)
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ClusterError, match="is no scheduler: write dask://host:port"):
        Cluster(address).scheduler()


def test_sources_that_are_too_large(manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_BYTES", 1000)
    with pytest.raises(sources.SourcesError, match="too much to send with a build"):
        sources.pack(plan(manifest).requests)


def test_sources_arrive_as_they_are(manifest: Path, tmp_path: Path) -> None:
    (manifest.parent / ".hidden").mkdir()
    (manifest.parent / ".hidden" / "secret").write_text("no")
    requests = plan(manifest).requests
    packed = sources.pack(requests)
    assert packed == sources.pack(requests)
    places = {path: sources.unpack(one, tmp_path / "there") for path, one in packed.items()}
    for path, place in places.items():
        assert Path(place).name == Path(path).name
        assert sources.unpack(packed[path], tmp_path / "there") == place
    root = Path(places[str(manifest.parent)])
    assert (root / "kernel0.py").read_bytes() == (manifest.parent / "kernel0.py").read_bytes()
    assert not (root / ".hidden").exists()
    message, place = f"in {root}/kernel0.py", (f"{root}/a", 1)
    failed = Failed(requests[0], "failed", "trace", message, "k", (place,))
    back = sources.moved_back(failed, requests[0], places)
    assert back.message == f"in {manifest.parent}/kernel0.py"
    assert back.source == ((f"{manifest.parent}/a", 1),)
    shutil.rmtree(tmp_path / "there")
