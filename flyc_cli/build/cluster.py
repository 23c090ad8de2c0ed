"""Builds on a Dask cluster: each specialisation is a task, results come back to this machine."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flyc_cli.build.cluster_worker import Task, Unfit, build_task, identity
from flyc_cli.build.outcomes import Built, Failed, Finished, Outcome
from flyc_cli.build.scratch import scratch_directory
from flyc_cli.build.servers import WorkerError
from flyc_cli.build.sources import Packed, pack
from flyc_cli.build.supervisor import RETRIES, Run
from flyc_cli.build.watch import SILENT, Watcher
from flyc_cli.manifest.model import NO_LIMITS, Limits, Request
from flyc_cli.store.artifacts import Artifacts
from mlir_passes.toolkit import Toolkit
from runtime_loader.errors import BundleError
from runtime_loader.specialisation import check_specialisation

# What a compile takes at most on average; used where workers say how much memory they have.
_TASK_MEMORY = 0.7e9
_SLOT = "flyc"
# How often a task whose worker was lost is given to another.
_LOSSES = 3


class ClusterError(WorkerError):
    """The cluster cannot be used: it is not there, or its workers are not fit."""


@dataclass(frozen=True)
class Cluster:
    """A Dask scheduler at `address` (`dask://host:port`). `shared_sources`: its workers see the
    same files under the same paths, so nothing is sent."""

    address: str
    shared_sources: bool = False

    def scheduler(self) -> str:
        """The address as Dask writes it. Raises `ClusterError`."""
        kind, separator, rest = self.address.partition("://")
        if not separator or kind != "dask" or ":" not in rest:
            raise ClusterError(f"{self.address} is no scheduler: write dask://host:port")
        return f"tcp://{rest}"


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
    with scratch_directory() as scratch:
        run = _ClusterRun(
            list(requests), toolkit, capture, False, artifacts, limits, retries, watcher,
            scratch,
        )  # fmt: skip
        try:
            run.connect(cluster, limits, tools)
            return run.run(jobs)
        finally:
            run.close()


class _ClusterRun(Run):
    """A build whose jobs run on a cluster."""

    def connect(
        self, cluster: Cluster, limits: Limits, tools: tuple[Path | None, Path | None]
    ) -> None:
        """Find the workers that are fit. Raises `ClusterError`."""
        try:
            from distributed import Client
        except ImportError:
            raise ClusterError(
                "building on a cluster needs Dask: pip install 'flyc[dask]', also on its workers"
            ) from None
        if self._artifacts is None:
            raise ClusterError(
                "a build on a cluster brings its results into the store: it needs one"
            )
        self._cluster = cluster
        self._limits = limits
        rocm, llvm = (None if tool is None else str(tool.absolute()) for tool in tools)
        self._tools = rocm, llvm
        self._identity = self._artifacts.toolchain.tracing_key()
        try:
            self._client = Client(cluster.scheduler(), timeout="10s", set_as_default=False)
        except OSError as error:
            raise ClusterError(f"{cluster.address} does not answer: {error}") from None
        self._unfit: set[str] = set()
        found = self._client.run(identity, *self._tools)
        own = {**self._artifacts.toolchain.tracing, **self._artifacts.toolchain.lowering}
        wrong = []
        for address, (versions, parts) in sorted(found.items()):
            if parts != own:
                self._unfit.add(address)
                names = [n for n in own if own[n] != parts.get(n)] if parts else ["everything"]
                wrong.append(f"{address} has {_listed(versions)}; differs: {', '.join(names)}")
        if len(wrong) == len(found):
            raise ClusterError(
                f"no worker of {cluster.address} has what this machine builds with: "
                f"{'. '.join(wrong) or 'it has no workers'}. Install the same flyc and FlyDSL there"
            )

    def close(self) -> None:
        client = getattr(self, "_client", None)
        if client is not None:
            client.close()
        super().close()

    def work(self, jobs: int) -> None:
        from distributed import as_completed

        packed: dict[str, Packed] = {}
        if not self._cluster.shared_sources:
            packed = pack([self._jobs[number].request for number in self._pending])
        sent = {path: self._client.scatter(one, hash=True) for path, one in packed.items()}
        futures = {self._submit(number, sent): number for number in self._take()}
        with self._client.as_current():
            waiting = as_completed(futures)
        for future in waiting:
            number = futures.pop(future)
            again = self._received(number, future)
            for following in [number] * again + self._take():
                made = self._submit(following, sent)
                futures[made] = following
                waiting.add(made)

    def _take(self) -> list[int]:
        numbers = list(self._pending)
        self._pending.clear()
        return numbers

    def _submit(self, number: int, sent: dict[str, Any]) -> Any:
        job = self._jobs[number]
        task = Task(
            job.request, job.part, job.capture, self._limits, self._retries, *self._tools,
            self._identity,
        )  # fmt: skip
        paths = (*job.request.python_path, *filter(None, [job.request.source.file]))
        info = self._client.scheduler_info(n_workers=-1)["workers"]
        declared = {name for worker in info.values() for name in worker.get("resources", {})}
        wanted = {_SLOT: 1.0, "memory": _TASK_MEMORY}
        resources = {name: amount for name, amount in wanted.items() if name in declared}
        fit = [address for address in info if address not in self._unfit]
        if not fit:
            raise ClusterError(f"{self._cluster.address} has no worker left that can build this")
        self._watcher.started(number, job.request)
        return self._client.submit(
            build_task,
            task,
            [sent[path] for path in dict.fromkeys(paths) if path in sent],
            pure=False,
            retries=0,
            resources=resources or None,
            workers=fit if self._unfit else None,
        )

    def _received(self, number: int, future: Any) -> bool:
        """Whether the job must be given to another worker."""
        job = self._jobs[number]
        try:
            result = future.result()
        except Exception as error:
            self._attempts[number] += 1
            if self._attempts[number] <= _LOSSES:
                return True
            message = f"its workers were lost {self._attempts[number]} times: {error}"
            failed = Failed(job.request, "died", "cluster", message, entry=job.request.kernel)
            self._began[number] = time.monotonic()
            self._finish(number, Finished(failed))
            return False
        if isinstance(result, Unfit):
            self._unfit.update(self._client.who_has([future]).get(future.key, ()))
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


def _listed(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
