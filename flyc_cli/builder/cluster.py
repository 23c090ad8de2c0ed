"""Builds on a Dask cluster: each specialisation is a task, results come back to this machine."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from flyc_cli.builder.cluster_worker import Task, Unfit, build_task
from flyc_cli.builder.outcomes import Built, Failed, Finished, Outcome
from flyc_cli.builder.scheduler import Cluster, ClusterError, Room, Scheduler
from flyc_cli.builder.scratch import scratch_directory
from flyc_cli.builder.sources import Packed, pack
from flyc_cli.builder.supervisor import RETRIES, Run
from flyc_cli.builder.watch import SILENT, Watcher
from flyc_cli.manifest.model import NO_LIMITS, Limits, Request
from flyc_cli.store.artifacts import Artifacts
from mlir_passes.toolkit import Toolkit
from runtime_loader.errors import BundleError
from runtime_loader.specialisation import check_specialisation

# How often a task whose worker was lost is given to another.
_LOSSES = 3
_POLL_SECONDS = 0.01
# How long no worker may be there that could do what is left, and how often that is looked at.
_ALONE_SECONDS = 60.0
_LOOK_SECONDS = 5.0


def build_on_cluster(
    cluster: Cluster,
    tools: tuple[Path | None, Path | None],
    requests: Sequence[Request],
    *,
    toolkit: Toolkit,
    jobs: int,
    capture: bool = False,
    artifacts: Artifacts | None = None,
    limits: Limits = NO_LIMITS,
    retries: int = RETRIES,
    watcher: Watcher = SILENT,
) -> list[Outcome]:
    """As `compile_all`, but each job is a task of the cluster. `tools` are the ROCm and the LLVM
    that were chosen, which the workers have at the same places. Raises `ClusterError` too."""
    if artifacts is None:
        raise ClusterError("a build on a cluster brings its results into the store: it needs one")
    toolchain = artifacts.toolchain
    own = {**toolchain.tracing, **toolchain.lowering}
    rocm, llvm = (None if tool is None else str(tool.absolute()) for tool in tools)
    with scratch_directory() as scratch, closing(Scheduler(cluster, (rocm, llvm), own)) as there:
        run = _ClusterRun(
            list(requests), toolkit, capture, False, artifacts, limits, retries, watcher,
            scratch,
        )  # fmt: skip
        run.use(there, limits, (rocm, llvm), shared_sources=cluster.shared_sources)
        return run.run(jobs)


class _ClusterRun(Run):
    """A build whose jobs run on a cluster."""

    def use(
        self,
        scheduler: Scheduler,
        limits: Limits,
        tools: tuple[str | None, str | None],
        *,
        shared_sources: bool,
    ) -> None:
        assert self._artifacts is not None
        self._scheduler = scheduler
        self._limits = limits
        self._tools = tools
        self._shared_sources = shared_sources
        self._identity = self._artifacts.toolchain.tracing_key()

    def work(self, jobs: int) -> None:
        scheduler = self._scheduler
        packed: dict[str, Packed] = {}
        if not self._shared_sources:
            packed = pack([self._jobs[number].request for number in self._pending])
        sent = {path: scheduler.send(one) for path, one in packed.items()}
        waiting = scheduler.results()
        futures: dict[Any, tuple[int, Room]] = {}
        numbers = self._take()
        while numbers or futures:
            room = scheduler.room() if numbers else None
            for number in numbers:
                assert room is not None
                made = self._submit(number, sent, room)
                futures[made] = number, room
                waiting.add(made)
            self._wait(waiting, futures)
            future = next(waiting)
            number, _ = futures.pop(future)
            again = self._received(number, future)
            numbers = [number] * again + self._take()

    def _wait(self, waiting: Any, futures: Mapping[Any, tuple[int, Room]]) -> None:
        """Until a task is done. Raises `ClusterError` if none can be."""
        looked = seen = time.monotonic()
        while not waiting.has_ready():
            time.sleep(_POLL_SECONDS)
            now = time.monotonic()
            if now - looked < _LOOK_SECONDS:
                continue
            looked = now
            workers = self._scheduler.workers()
            if all(room.there(workers) for _, room in futures.values()):
                seen = now
            elif now - seen > _ALONE_SECONDS:
                raise ClusterError(
                    f"{self._scheduler.address} has had no worker for {_ALONE_SECONDS:.0f} s that "
                    "can do what is left. What was built so far is in the store; start workers, "
                    "and the same command again"
                )

    def _take(self) -> list[int]:
        numbers = list(self._pending)
        self._pending.clear()
        return numbers

    def _submit(self, number: int, sent: dict[str, Any], room: Room) -> Any:
        job = self._jobs[number]
        task = Task(
            job.request, job.part, job.capture, self._limits, self._retries, *self._tools,
            self._identity,
        )  # fmt: skip
        paths = (*job.request.python_path, *filter(None, [job.request.source.file]))
        self._watcher.started(number, job.request)
        with self._scheduler.talking():
            return self._scheduler.client.submit(
                build_task,
                task,
                [sent[path] for path in dict.fromkeys(paths) if path in sent],
                pure=False,
                retries=0,
                resources=dict(room.resources) or None,
                workers=None if room.only is None else sorted(room.only),
            )

    def _received(self, number: int, future: Any) -> bool:
        """Whether the job must be given to another worker."""
        job = self._jobs[number]
        if future.cancelled():  # not by this build
            raise self._scheduler.lost()
        try:
            with self._scheduler.talking():
                result = future.result()
        except ClusterError:
            raise
        except Exception as error:
            self._attempts[number] += 1
            if self._attempts[number] <= _LOSSES:
                return True
            message = f"no worker finished it, of {self._attempts[number]}: {error}"
            failed = Failed(job.request, "died", "cluster", message, entry=job.request.kernel)
            self._began[number] = time.monotonic()
            self._finish(number, Finished(failed))
            return False
        if isinstance(result, Unfit):
            self._scheduler.exclude_owner(future)
            return True
        finished, seconds = result
        self._began[number] = time.monotonic() - seconds
        self._finish(number, replace(finished, outcome=_checked(finished.outcome)))
        return False

    def _finish(self, number: int, finished: Finished) -> None:
        # The worker has tried again what dies there.
        if isinstance(finished.outcome, Failed) and finished.outcome.kind == "died":
            self._attempts[number] = self._retries
        super()._finish(number, finished)


def _checked(outcome: Built | Failed | None) -> Built | Failed | None:
    """A result that came over the network. Raises `ClusterError` for one that is not sound."""
    if not isinstance(outcome, Built):
        return outcome
    spec = outcome.specialisation
    if hashlib.sha256(outcome.code_object).hexdigest() != spec.code_object:
        raise ClusterError(f"{outcome.request.label()} came back with another code object")
    try:
        check_specialisation(spec, outcome.request.label())
    except BundleError as error:
        raise ClusterError(f"a damaged result came back: {error}") from None
    return outcome
