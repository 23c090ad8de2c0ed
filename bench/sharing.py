"""What sharing costs and gives: a remote cache and a Dask cluster against one machine alone.

python -m bench.sharing [--kernels N] [--json]

The remote cache is a server on the loopback in this process, so its network costs nothing; the
cluster is a scheduler and one worker, then two, on this machine, so two workers have two cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from bench.build import lay_out
from flyc_cli.builder.build import Workers, compile_planned, plan
from flyc_cli.builder.scheduler import Cluster
from flyc_cli.store.files import Store
from flyc_cli.store.remote_settings import Remote


class _Cache(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    held: dict[str, bytes] = {}  # noqa: RUF012 - the server's, for as long as the process

    def do_GET(self) -> None:
        data = self.held.get(self.path)
        self.send_response(404 if data is None else 200)
        self.send_header("Content-Length", str(len(data or b"")))
        self.end_headers()
        self.wfile.write(data or b"")

    def do_PUT(self) -> None:
        self.held[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def cache_server() -> Iterator[Remote]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Cache)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Remote(f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()


@contextmanager
def dask_cluster(directory: Path, workers: int) -> Iterator[Cluster]:
    from distributed import Client

    file = directory / "scheduler.json"
    here = ["--host", "127.0.0.1", "--no-dashboard"]
    command = [sys.executable, "-m", "dask"]
    processes = [
        subprocess.Popen(
            [*command, "scheduler", *here, "--port", "0", "--scheduler-file", str(file)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
    ]  # fmt: skip
    try:
        while not file.exists():
            time.sleep(0.05)
        address = json.loads(file.read_text())["address"]
        for number in range(workers):
            place = ["--local-directory", str(directory / f"worker{number}")]
            options = ["--no-nanny", "--nthreads", "1", *here, *place]
            processes.append(
                subprocess.Popen(
                    [*command, "worker", address, *options],
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )
            )  # fmt: skip
        with Client(address, set_as_default=False) as client:
            client.wait_for_workers(workers, timeout=60)
        yield Cluster(address.replace("tcp://", "dask://"))
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()


def seconds(manifest: Path, jobs: int, workers: Workers) -> float:
    began = time.perf_counter()
    compile_planned(plan(manifest), jobs=jobs, workers=workers)
    return time.perf_counter() - began


def measure(scratch: Path, kernels: int) -> dict[str, float]:
    manifest = lay_out(scratch / "project", kernels) / "manifest.yaml"
    found: dict[str, float] = {"kernels": kernels}
    stores = (Store(scratch / f"store{number}") for number in range(99))
    found["one at a time here"] = seconds(manifest, 1, Workers(next(stores)))
    found["two at a time here"] = seconds(manifest, 2, Workers(next(stores)))
    with cache_server() as remote:
        found["two at a time, filling a remote cache"] = seconds(
            manifest, 2, Workers(next(stores), remote)
        )
        found["from a remote cache"] = seconds(manifest, 2, Workers(next(stores), remote))
    for workers in (1, 2):
        place = scratch / f"dask{workers}"
        place.mkdir()
        with dask_cluster(place, workers) as cluster:
            # The first build starts what a standing cluster has running.
            seconds(manifest, 1, Workers(next(stores), cluster=cluster))
            (manifest.parent / "helper.py").write_text(
                f"def scale(power):\n    return {workers + 1}.0 / (power + 1)\n"
            )
            found[f"{workers} worker(s)"] = seconds(
                manifest, 1, Workers(next(stores), cluster=cluster)
            )
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kernels", type=int, default=60)
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        found = measure(Path(scratch), chosen.kernels)
    one, two = found["1 worker(s)"], found["2 worker(s)"]
    found["remote cache, x the build"] = found["two at a time here"] / found["from a remote cache"]
    found["overhead of a task, ms"] = 1000 * (one - found["one at a time here"]) / chosen.kernels
    found["efficiency of two workers"] = one / two / 2
    if chosen.json:
        print(json.dumps(found, indent=2))
        return
    for name, value in found.items():
        print(f"  {name:40} {value:8.2f}", flush=True)


if __name__ == "__main__":
    main()
