"""Runs jobs on fork servers, several at a time, and collects what each became."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from flyc_cli.build.fork_server import server_socket
from flyc_cli.build.job import Job
from flyc_cli.frontends.environment import without_settings
from flyc_cli.frontends.torch_standin import torch_is_installed
from flyc_cli.manifest.model import Request
from mlir_passes.places import Places
from mlir_passes.toolkit import Toolkit
from runtime_loader.checked import Fields
from runtime_loader.errors import FlycError
from runtime_loader.specialisation import Specialisation

STANDIN, TORCH = "standin", "torch"
_STDERR_TAIL = 2000


class WorkerError(FlycError):
    """The compile workers cannot start: FlyDSL or the toolchain is missing or broken."""


@dataclass(frozen=True)
class Built:
    """A specialisation that was built. `seconds` per stage and `memory` (KiB) are for reports.

    `request` has the kernel name and the parameters of the specialisation; `entry` is the kernel
    of the manifest that asked for it.
    """

    request: Request
    specialisation: Specialisation
    code_object: bytes
    stages: tuple[tuple[str, str], ...]
    host: str
    seconds: dict[str, float]
    memory: int
    entry: str


@dataclass(frozen=True)
class Failed:
    """A specialisation that was not built.

    `kind` is `failed` (a clean compile error), `input` (the manifest and the module disagree) or
    `died` (the worker did not survive). `source` is (file, line), innermost first. `optional`: it
    is one configuration of a tuned kernel, which may be missing from the bundle.
    """

    request: Request
    kind: str
    stage: str
    message: str
    entry: str
    source: tuple[tuple[str, int], ...] = ()
    optional: bool = False


Outcome = Built | Failed


@dataclass
class _Server:
    connection: Connection
    process: subprocess.Popen[bytes]
    running: dict[int, int] = field(default_factory=dict)  # job number: pid

    def stop(self) -> None:
        for pid in self.running.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            self.connection.send(None)
        self.connection.close()
        self.process.wait()


def compile_all(
    requests: Sequence[Request],
    *,
    toolkit: Toolkit,
    jobs: int,
    capture: bool = False,
    keep_host: bool = False,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
    on_parts: Callable[[Request, int], None] = lambda request, parts: None,
) -> list[Outcome]:
    """Build every request, `jobs` at a time, each in a process of its own.

    One failure never stops the others. Returns the outcomes in the order of `requests`, several
    for a request that has several parts (`on_parts` is told when that turns out); raises
    `WorkerError` if no worker can run at all.
    """
    with tempfile.TemporaryDirectory(prefix="flyc-") as scratch:
        run = _Run(list(requests), toolkit, capture, keep_host, on_outcome, on_parts, Path(scratch))
        try:
            return run.run(jobs)
        finally:
            run.close()


class _Run:
    def __init__(
        self,
        requests: list[Request],
        toolkit: Toolkit,
        capture: bool,
        keep_host: bool,
        on_outcome: Callable[[Outcome], None],
        on_parts: Callable[[Request, int], None],
        scratch: Path,
    ) -> None:
        self._jobs = []
        for number, request in enumerate(requests):
            directory = scratch / str(number)
            self._jobs.append(Job(request, directory, toolkit, capture, keep_host))
        # The number of each job of a request, by part.
        self._parts = [[number] for number in range(len(requests))]
        self._on_outcome = on_outcome
        self._on_parts = on_parts
        self._servers: dict[str, _Server] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._wants_torch: set[str] = set()

    def close(self) -> None:
        for server in self._servers.values():
            server.stop()

    def run(self, jobs: int) -> list[Outcome]:
        pending = deque(range(len(self._jobs)))
        while len(self._outcomes) < len(self._jobs):
            while pending and self._in_flight() < jobs:
                self._start(pending.popleft())
            for connection in wait([s.connection for s in self._servers.values()]):
                server = next(s for s in self._servers.values() if s.connection is connection)
                self._receive(server, pending)
        return [self._outcomes[number] for parts in self._parts for number in parts]

    def _in_flight(self) -> int:
        return sum(len(server.running) for server in self._servers.values())

    def _start(self, number: int) -> None:
        job = self._jobs[number]
        source = job.request.source
        captured = source.kind == "capture" and torch_is_installed()
        mode = TORCH if captured or source.module in self._wants_torch else STANDIN
        if mode not in self._servers:
            self._servers[mode] = _start_server(mode)
        server = self._servers[mode]
        job.directory.mkdir(exist_ok=True)
        server.connection.send((number, job))
        server.running[number] = 0

    def _receive(self, server: _Server, pending: deque[int]) -> None:
        try:
            message = server.connection.recv()
        except (EOFError, OSError):
            code = server.process.wait()
            raise WorkerError(
                f"the compile server ended unexpectedly ({_exit_text(code)}); what it was doing: "
                f"{', '.join(self._jobs[n].request.label() for n in server.running) or 'nothing'}"
            ) from None
        if message[0] == "started":
            server.running[message[1]] = message[2]
        elif message[0] == "ended":
            _, number, status, memory = message
            del server.running[number]
            self._finish(number, status, memory, pending)

    def _finish(self, number: int, status: int, memory: int, pending: deque[int]) -> None:
        job = self._jobs[number]
        outcome, parts = _read_outcome(job, status, memory)
        if outcome is None:
            self._wants_torch.add(job.request.source.module)
            pending.appendleft(number)
            return
        if parts > 1 and job.part == 0:
            self._on_parts(job.request, parts)
            for part in range(1, parts):
                directory = job.directory.with_name(f"{number}-{part}")
                self._parts[number].append(len(self._jobs))
                pending.append(len(self._jobs))
                self._jobs.append(replace(job, directory=directory, part=part))
        self._outcomes[number] = outcome
        self._on_outcome(outcome)


def _start_server(mode: str) -> _Server:
    connection, descriptor = server_socket()
    root = Path(__file__).parents[2]
    environment = {
        **without_settings(os.environ),
        "PYTHONPATH": os.pathsep.join([str(root), *_python_path()]),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "flyc_cli.build.fork_server", str(descriptor), mode],
        pass_fds=[descriptor],
        stdin=subprocess.DEVNULL,
        env=environment,
    )
    os.close(descriptor)
    try:
        state, message = connection.recv()
    except EOFError:
        state, message = "broken", _exit_text(process.wait())
    if state == "unsupported":
        raise WorkerError(message)
    if state != "ready":
        raise WorkerError(
            f"FlyDSL cannot be imported here: {message}. Install it with: pip install "
            "'flyc[compiler]'; `flyc doctor` says what is missing"
        )
    return _Server(connection, process)


def _python_path() -> list[str]:
    path = os.environ.get("PYTHONPATH")
    return path.split(os.pathsep) if path else []


def _read_outcome(job: Job, status: int, memory: int) -> tuple[Outcome | None, int]:
    """What a finished job left behind, and how many parts its request has.

    No outcome: it must run again with the real torch.
    """
    directory = job.directory
    try:
        outcome: dict[str, Any] = json.loads((directory / "outcome.json").read_text())
    except (OSError, ValueError):
        return _death(job, status), 1
    if outcome["kind"] == "torch":
        return None, 1
    request = replace(job.request, kernel=outcome["kernel"], params=outcome["params"])
    if outcome["kind"] != "built":
        failed = Failed(
            request=request,
            kind=outcome["kind"],
            stage=outcome["stage"],
            message=outcome["message"],
            entry=job.request.kernel,
            source=tuple((file, line) for file, line in outcome["source"]),
            optional=outcome["optional"],
        )
        return failed, outcome["parts"]
    record = json.loads((directory / "specialisation.json").read_text())
    host = directory / "host.mlir"
    built = Built(
        request=request,
        specialisation=Specialisation.read(Fields(record, request.label())),
        code_object=(directory / "code_object").read_bytes(),
        stages=tuple((n, text) for n, text in json.loads((directory / "stages.json").read_text())),
        host=host.read_text() if host.exists() else "",
        seconds=outcome["seconds"],
        memory=memory,
        entry=job.request.kernel,
    )
    return built, outcome["parts"]


def _death(job: Job, status: int) -> Failed:
    stage = _text(job.directory / "stage").strip() or "start"
    tail = _text(job.directory / "stderr")[-_STDERR_TAIL:].strip()
    code = os.waitstatus_to_exitcode(status)
    message = f"the worker died ({_exit_text(code)})"
    places = _text(job.directory / "places.json")
    trail = Places.from_json(json.loads(places)).of(tail) if places else ()
    return Failed(
        job.request,
        "died",
        stage,
        f"{message}: {tail}" if tail else message,
        entry=job.request.kernel,
        source=tuple((line.file, line.line) for line in trail),
    )


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
