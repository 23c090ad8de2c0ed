"""Runs jobs on fork servers, several at a time, and collects what each became.

What an earlier build made of the same input is taken without starting anything. A job whose worker
dies is tried again once the others are done, with fewer neighbours each time; a clean compile error
is not. Every result is kept in the store as it comes, so that a build that is stopped has lost
nothing but what was running.
"""

from __future__ import annotations

import shutil
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path

from flyc_cli.builder.job import CANNOT_WRITE, Job
from flyc_cli.builder.memory import resident_bytes
from flyc_cli.builder.outcomes import (
    COMPILED,
    Built,
    Failed,
    Finished,
    Outcome,
    died,
    exit_text,
    found_again,
    out_of_memory,
    out_of_time,
    read_finished,
    to_keep,
)
from flyc_cli.builder.scratch import scratch_directory
from flyc_cli.builder.servers import STANDIN, TORCH, Server, WorkerError, start_server
from flyc_cli.builder.watch import SILENT, Watcher
from flyc_cli.frontends.torch_standin import torch_is_installed
from flyc_cli.manifest.model import NO_LIMITS, Limits, Request
from flyc_cli.store.artifacts import Artifacts, Cost, Lowered, keep_lowered
from flyc_cli.store.why import keep_toolchain
from mlir_passes.toolkit import Toolkit
from runtime_loader.errors import BundleError

__all__ = ["RETRIES", "Built", "Failed", "Outcome", "WorkerError", "compile_all"]

# How often a job whose worker died is tried again.
RETRIES = 2
# Servers that end one after the other without a single job done: something is wrong with them.
_SERVER_DEATHS = 3
_POLL_SECONDS = 0.1
# Questions to a shared cache that are under way at the same time.
_QUESTIONS = 16


class StoreWarning(UserWarning):
    """The store cannot be written, so that the next build will find less than it could."""


def compile_all(
    requests: Sequence[Request],
    *,
    toolkit: Toolkit,
    jobs: int,
    capture: bool = False,
    keep_host: bool = False,
    artifacts: Artifacts | None = None,
    limits: Limits = NO_LIMITS,
    retries: int = RETRIES,
    watcher: Watcher = SILENT,
) -> list[Outcome]:
    """Build every request, `jobs` at a time, each in a process of its own.

    `artifacts` is where earlier builds are found and this one is kept. `limits` go before
    those of a request. One failure never stops the others. Returns the outcomes in the
    order of `requests`, several for a request that has several parts; raises `WorkerError` if no
    worker can run at all. Warns (`StoreWarning`) once if
    the store cannot be written.
    """
    with scratch_directory() as scratch:
        run = Run(
            list(requests), toolkit, capture, keep_host, None if keep_host else artifacts,
            limits, retries, watcher, scratch,
        )  # fmt: skip
        try:
            return run.run(jobs)
        finally:
            run.close()


class Run:
    """One build: its jobs, and what became of each so far."""

    def __init__(
        self,
        requests: list[Request],
        toolkit: Toolkit,
        capture: bool,
        keep_host: bool,
        artifacts: Artifacts | None,
        limits: Limits,
        retries: int,
        watcher: Watcher,
        scratch: Path,
    ) -> None:
        self._artifacts = artifacts
        self._jobs = []
        self._timeouts = []
        for number, request in enumerate(requests):
            limit = limits.or_else(request.limits)
            self._timeouts.append(limit.timeout)
            self._jobs.append(
                Job(
                    request,
                    scratch / str(number),
                    toolkit,
                    capture,
                    keep_host,
                    memory_limit=limit.memory,
                    storage=artifacts.storage if artifacts else None,
                    toolchain=artifacts.toolchain.lowering_key() if artifacts else b"",
                )
            )
        # The number of each job of a request, by part.
        self._parts = [[number] for number in range(len(requests))]
        self._retries = retries
        self._watcher = watcher
        self._start_time = time.monotonic()
        self._scratch = scratch
        self._servers: dict[str, Server] = {}
        self._server_deaths = 0
        self._outcomes: dict[int, Outcome] = {}
        self._wants_torch: set[str] = set()
        self._pending: deque[int] = deque()
        self._again: deque[int] = deque()
        self._attempts: Counter[int] = Counter()
        self._began: dict[int, float] = {}
        self._stopped: dict[int, Failed] = {}
        self._warned = False

    def close(self) -> None:
        for server in self._servers.values():
            server.stop()

    def run(self, jobs: int) -> list[Outcome]:
        """Take what the store has, and build the rest."""
        self._find_ahead()
        for number in range(len(self._jobs)):
            if not self._found(number):
                self._pending.append(number)
        costs = self._costs(self._pending)
        self._pending = deque(sorted(costs, key=lambda n: -(costs[n] or float("inf"))))
        self._watcher.expect(costs, jobs)
        self.work(jobs)
        return [self._outcomes[number] for parts in self._parts for number in parts]

    def work(self, jobs: int) -> None:
        """Build all that is pending."""
        while len(self._outcomes) < len(self._jobs):
            while self._may_start(jobs):
                self._start((self._pending or self._again).popleft())
            connections = [server.connection for server in self._servers.values()]
            for connection in wait(connections, _POLL_SECONDS if self._limited() else None):
                mode = next(m for m, s in self._servers.items() if s.connection is connection)
                self._receive(mode)
            self._enforce_limits()

    def _find_ahead(self) -> None:
        """Ask a shared cache for everything at once: each answer is a journey over the network."""
        if self._artifacts is None or self._artifacts.shared is None:
            return
        artifacts = self._artifacts

        def find(job: Job) -> None:
            artifacts.find(job.request, job.part, stages=job.capture)

        with ThreadPoolExecutor(_QUESTIONS) as pool:
            list(pool.map(find, self._jobs))

    def _found(self, number: int) -> bool:
        """Whether the store has what job `number` would build; its other parts become jobs."""
        job = self._jobs[number]
        if self._artifacts is None:
            return False
        artifact = self._artifacts.find(job.request, job.part, stages=job.capture)
        if artifact is None:
            return False
        try:
            code_object = artifact.specialisation["code_object"]
            fetched = code_object in self._artifacts.fetched
            built = found_again(job.request, artifact, fetched=fetched)
        except BundleError:
            return False
        self._add_parts(number, artifact.parts)
        self._settle(number, built)
        return True

    def _add_parts(self, number: int, parts: int) -> None:
        job = self._jobs[number]
        if parts == 1 or job.part > 0 or len(self._parts[number]) > 1:
            return
        self._watcher.parts(job.request, parts)
        for part in range(1, parts):
            added = len(self._jobs)
            directory = job.directory.with_name(f"{number}-{part}")
            self._parts[number].append(added)
            self._jobs.append(replace(job, directory=directory, part=part))
            self._timeouts.append(self._timeouts[number])
            if not self._found(added):
                self._pending.append(added)

    def _costs(self, numbers: Iterable[int]) -> dict[int, float | None]:
        """The seconds that jobs took before. Those that nobody knows of may take long."""
        if self._artifacts is None:
            return dict.fromkeys(numbers)
        costs = {n: self._artifacts.cost(self._jobs[n].request) for n in numbers}
        return {n: cost.seconds if cost else None for n, cost in costs.items()}

    def _may_start(self, jobs: int) -> bool:
        """Whether another job fits. One that died before gets half of the neighbours each time."""
        if not self._pending and not self._again:
            return False
        following = (self._pending or self._again)[0]
        running = [number for server in self._servers.values() for number in server.running]
        most = min(max(1, jobs >> self._attempts[n]) for n in (following, *running))
        return len(running) < most

    def _start(self, number: int) -> None:
        job = self._jobs[number]
        source = job.request.source
        captured = source.kind == "capture" and torch_is_installed()
        mode = TORCH if captured or source.module in self._wants_torch else STANDIN
        if mode not in self._servers:
            self._servers[mode] = start_server(mode)
        shutil.rmtree(job.directory, ignore_errors=True)
        job.directory.mkdir()
        self._began[number] = time.monotonic()
        self._watcher.started(number, job.request)
        try:
            self._servers[mode].start_job(number, job)
        except OSError:
            self._server_died(mode)

    def _receive(self, mode: str) -> None:
        server = self._servers[mode]
        try:
            message = server.connection.recv()
        except (EOFError, OSError):
            self._server_died(mode)
            return
        if message[0] == "started":
            server.running[message[1]] = message[2]
        elif message[0] == "ended":
            _, number, status, memory = message
            del server.running[number]
            self._server_deaths = 0
            if status == CANNOT_WRITE << 8:
                raise WorkerError(
                    f"workers cannot write into {self._scratch}: is the disk full? Set TMPDIR to "
                    "a directory with room"
                )
            self._finish(number, read_finished(self._jobs[number], status, memory))

    def _server_died(self, mode: str) -> None:
        """Its jobs are tried again, on a new server."""
        server = self._servers.pop(mode)
        server.stop()
        how = exit_text(server.process.returncode)
        self._server_deaths += 1
        if self._server_deaths >= _SERVER_DEATHS:
            labels = ", ".join(self._jobs[n].request.label() for n in server.running)
            raise WorkerError(
                f"the compile server ended {self._server_deaths} times in a row ({how}); what it "
                f"was doing: {labels or 'nothing'}"
            )
        for number in server.running:
            self._finish(number, Finished(died(self._jobs[number], f"its server: {how}")))

    def _finish(self, number: int, finished: Finished) -> None:
        job = self._jobs[number]
        outcome = finished.outcome
        if outcome is None:
            self._wants_torch.add(job.request.source.module)
            self._pending.appendleft(number)
            return
        if isinstance(outcome, Failed):
            stopped = self._stopped.pop(number, None)
            if stopped is not None and outcome.kind == "died":
                outcome = stopped
            elif outcome.kind == "died":
                self._attempts[number] += 1
                if self._attempts[number] <= self._retries:
                    self._again.append(number)
                    return
                outcome = replace(outcome, message=_every_time(outcome, self._attempts[number]))
        elif self._artifacts is not None:
            self._keep(number, outcome, finished)
        self._add_parts(number, finished.parts)
        started = self._began[number] - self._start_time
        self._settle(
            number, replace(outcome, interval=(started, time.monotonic() - self._start_time))
        )

    def _settle(self, number: int, outcome: Outcome) -> None:
        self._outcomes[number] = outcome
        self._watcher.outcome(outcome)

    def _keep(self, number: int, built: Built, finished: Finished) -> None:
        assert self._artifacts is not None
        job = self._jobs[number]
        stages = built.stages if job.capture else None
        seconds = time.monotonic() - self._began[number]
        try:
            if built.origin == COMPILED:
                self._artifacts.keep_cost(job.request, Cost(seconds, built.memory))
            if finished.lowering is not None and built.origin == COMPILED:
                record = built.specialisation.to_json()
                lowered = Lowered(record["plan"], record["kernels"], built.code_object, stages)
                keep_lowered(self._artifacts.storage, finished.lowering, lowered)
            if finished.looked is not None:
                artifact = to_keep(
                    built, finished.parts, optional=finished.optional, stages=job.capture
                )
                keep_toolchain(self._artifacts, job.request)
                self._artifacts.keep(job.request, job.part, artifact, finished.looked)
        except OSError as error:
            self._artifacts.untrack()
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"the store cannot be written ({error.strerror}: {error.filename}); the "
                    "build goes on, but the next one will not find all of it",
                    StoreWarning,
                    stacklevel=2,
                )

    def _limited(self) -> bool:
        return any(
            self._timeouts[number] is not None or self._jobs[number].memory_limit is not None
            for server in self._servers.values()
            for number in server.running
        )

    def _enforce_limits(self) -> None:
        now = time.monotonic()
        for server in self._servers.values():
            for number, pid in server.running.items():
                failed = self._over_limit(number, pid, now - self._began[number])
                if pid and failed is not None and number not in self._stopped:
                    self._stopped[number] = failed
                    server.kill_job(number)

    def _over_limit(self, number: int, pid: int, seconds: float) -> Failed | None:
        job, timeout = self._jobs[number], self._timeouts[number]
        if timeout is not None and seconds > timeout:
            return out_of_time(job, timeout)
        limit = job.memory_limit
        if limit is not None and pid and resident_bytes(pid) > limit:
            return out_of_memory(job, limit)
        return None


def _every_time(failed: Failed, attempts: int) -> str:
    """The message of a worker that died, with how often it did."""
    if attempts == 1:
        return failed.message
    return failed.message.replace(")", f") {attempts} times", 1)
