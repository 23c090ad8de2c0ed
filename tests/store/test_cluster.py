"""Builds on a real Dask cluster on the loopback: a scheduler and worker processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flyc_cli.build import sources
from flyc_cli.build.build import Workers, build, compile_planned, plan
from flyc_cli.build.failures import BuildError
from flyc_cli.build.outcomes import COMPILED, SAME_INPUT, Failed
from flyc_cli.build.scheduler import Cluster, ClusterError
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
        self._wait_for(file.exists)
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


def test_a_worker_that_is_killed_mid_build(manifest: Path, tmp_path: Path) -> None:
    (tmp_path / "dask").mkdir()
    made = DaskCluster(tmp_path / "dask")
    try:
        doomed = made.worker()
        made.worker()
        made.wait_for_workers(2)
        killer = threading.Timer(2.5, lambda: os.kill(doomed.pid, signal.SIGKILL))
        killer.start()
        there = build(manifest, tmp_path / "there", workers=workers(tmp_path / "store", made))
        killer.join()
        assert doomed.wait() == -signal.SIGKILL
    finally:
        made.stop()
    here = build(manifest, tmp_path / "here", jobs=2)
    assert there.path.read_bytes() == here.path.read_bytes()


def test_a_worker_with_another_toolchain_gets_no_work(manifest: Path, tmp_path: Path) -> None:
    """Beside a fit one it is left out; alone, the build says what it has."""
    (tmp_path / "dask").mkdir()
    made = DaskCluster(tmp_path / "dask")
    try:
        made.worker(PYTHONPATH=str(tmp_path))  # a part of the identity
        made.wait_for_workers(1)
        with pytest.raises(ClusterError, match=r"no worker .*FlyDSL 0.*; differs: PYTHONPATH"):
            build(manifest, tmp_path / "out", workers=workers(tmp_path / "store", made))
        made.worker()
        made.wait_for_workers(2)
        written = build(manifest, tmp_path / "out", workers=workers(tmp_path / "store", made))
        assert written.specialisations == len(NAMES)
    finally:
        made.stop()


@pytest.mark.parametrize("address", ["host:1", "tcp://host:1", "dask://host", "dask://"])
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
