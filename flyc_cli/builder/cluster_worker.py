"""What runs in a Dask worker: one specialisation at a time, in a fork server of the thread's own.

FlyDSL is never imported into the Dask worker itself.
"""

from __future__ import annotations

import atexit
import os
import platform
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flyc_cli.builder.outcomes import Built, Failed, Finished, Outcome
from flyc_cli.builder.scratch import scratch_directory
from flyc_cli.builder.servers import Server, worker_environment
from flyc_cli.builder.sources import Packed, moved, moved_back, unpack
from flyc_cli.builder.supervisor import Run
from flyc_cli.builder.toolchain import (
    flyc_version,
    flydsl_directory,
    installed_compiler,
    open_toolkit,
)
from flyc_cli.builder.watch import SILENT
from flyc_cli.manifest.model import Limits, Request
from flyc_cli.store.artifacts import Artifacts
from flyc_cli.store.files import Store
from flyc_cli.store.toolchain import identify_toolchain
from mlir_passes.toolkit import Toolkit


@dataclass(frozen=True)
class Task:
    """One specialisation to build, and how. `rocm` and `llvm` are directories that the workers see
    too; `identity` is what the toolchain must be."""

    request: Request
    part: int
    capture: bool
    limits: Limits
    retries: int
    rocm: str | None
    llvm: str | None
    identity: bytes


@dataclass(frozen=True)
class Unfit:
    """A worker that does not have the toolchain of the build; `versions` are its own."""

    versions: dict[str, str]


class _Place:
    """What this process keeps from one task to the next."""

    def __init__(self) -> None:
        self.scratch = ExitStack()
        self.directory = self.scratch.enter_context(scratch_directory())
        self.lock = threading.Lock()
        self.toolkits: dict[tuple[str | None, str | None], tuple[Toolkit, Artifacts]] = {}
        self.local = threading.local()
        self.servers: list[dict[str, Server]] = []
        atexit.register(self.close)

    def toolkit(self, rocm: str | None, llvm: str | None) -> tuple[Toolkit, Artifacts]:
        with self.lock:
            known = self.toolkits.get((rocm, llvm))
            if known is None:
                scratch = self.directory / f"toolkit-{len(self.toolkits)}"
                scratch.mkdir()
                toolkit = open_toolkit(
                    Path(rocm) if rocm else None, scratch, Path(llvm) if llvm else None
                )
                store = Store(self.directory / "store")
                environment = worker_environment(os.environ)
                identity = identify_toolchain(store, toolkit, flydsl_directory(), environment)
                known = toolkit, Artifacts(store, identity, environment)
                self.toolkits[rocm, llvm] = known
            return known

    def own_servers(self) -> dict[str, Server]:
        servers: dict[str, Server] | None = getattr(self.local, "servers", None)
        if servers is None:
            servers = self.local.servers = {}
            self.servers.append(servers)
        return servers

    def close(self) -> None:
        for servers in self.servers:
            for server in servers.values():
                server.stop()
        self.scratch.close()


_place: _Place | None = None
_place_lock = threading.Lock()


def place() -> _Place:
    """This process's."""
    global _place
    with _place_lock:
        if _place is None or not _place.directory.exists():
            _place = _Place()
        return _place


def versions() -> dict[str, str]:
    """What this worker would build with, for people."""
    try:
        flydsl = installed_compiler().flydsl
    except Exception as error:
        flydsl = f"none ({error})"
    return {"flyc": flyc_version(), "FlyDSL": flydsl, "Python": platform.python_version()}


def identity(rocm: str | None, llvm: str | None) -> tuple[dict[str, str], dict[str, str]]:
    """The versions, and all that a build depends on beside its sources."""
    try:
        _, artifacts = place().toolkit(rocm, llvm)
    except Exception as error:
        return {**versions(), "error": str(error)}, {}
    return versions(), {**artifacts.toolchain.tracing, **artifacts.toolchain.lowering}


def build_task(task: Task, sources: Sequence[Sequence[Any]]) -> tuple[Finished, float] | Unfit:
    """Build one specialisation; the seconds are those of the build alone. `sources` are the fields
    of what was packed."""
    import time

    here = place()
    toolkit, artifacts = here.toolkit(task.rocm, task.llvm)
    if artifacts.toolchain.tracing_key() != task.identity:
        return Unfit(versions())
    began = time.monotonic()
    request, places = task.request, {}
    if sources:
        with here.lock:
            packed = [Packed(*fields) for fields in sources]
            places = {one.path: unpack(one, here.directory) for one in packed}
        request = moved(request, places)
    with tempfile.TemporaryDirectory(prefix="job-", dir=here.directory) as scratch:
        run = _OneJob(replace(task, request=request), toolkit, artifacts, Path(scratch))
        run.use(here.own_servers())
        finished = run.finish()
    outcome = finished.outcome
    if isinstance(outcome, Failed):
        outcome = moved_back(outcome, task.request, places)
    assert outcome is not None
    asked = replace(task.request, kernel=outcome.request.kernel, params=outcome.request.params)
    return replace(finished, outcome=replace(outcome, request=asked)), time.monotonic() - began


class _OneJob(Run):
    """A build of one part of one request, which keeps nothing."""

    def __init__(self, task: Task, toolkit: Toolkit, artifacts: Artifacts, scratch: Path) -> None:
        super().__init__(
            [task.request], toolkit, task.capture, False, artifacts, task.limits, task.retries,
            SILENT, scratch,
        )  # fmt: skip
        self._jobs[0] = replace(self._jobs[0], part=task.part)
        self._last = Finished(None)

    def use(self, servers: dict[str, Server]) -> None:
        self._servers = servers

    def finish(self) -> Finished:
        self._pending.append(0)
        self.work(1)
        return replace(self._last, outcome=self._outcomes[0])

    def _finish(self, number: int, finished: Finished) -> None:
        self._last = finished
        super()._finish(number, finished)

    def _keep(self, number: int, built: Built, finished: Finished) -> None:
        pass

    def _add_parts(self, number: int, parts: int) -> None:
        pass

    def _settle(self, number: int, outcome: Outcome) -> None:
        self._outcomes[number] = outcome
