"""A Dask scheduler as a build sees it: which of its workers are fit, and whether it is there."""

from __future__ import annotations

import logging
import urllib.parse
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flyc_cli.builder.cluster_worker import identity
from flyc_cli.builder.servers import WorkerError
from flyc_cli.builder.sources import Packed

# What a compile takes of a worker that declares how much it has; the memory at most on average.
_WANTED = {"flyc": 1.0, "memory": 0.7e9}
# Those that Dask gives a level of their own, and the one of its event loop.
_LOGGERS = ("distributed", "distributed.client", "distributed.gc", "tornado.application")


class ClusterError(WorkerError):
    """The cluster cannot be used: it is not there, was lost, or its workers are not fit."""


@dataclass(frozen=True)
class Cluster:
    """A Dask scheduler at `address` (`dask://host:port`). `shared_sources`: its workers see the
    same files under the same paths, so nothing is sent."""

    address: str
    shared_sources: bool = False

    def scheduler(self) -> str:
        """The address as Dask writes it. Raises `ClusterError`."""
        try:
            parsed = urllib.parse.urlsplit(self.address)
            host = (parsed.hostname or "").encode("idna")
            if parsed.scheme == "dask" and host and parsed.port:
                return f"tcp://{parsed.netloc}"
        except ValueError:
            pass
        raise ClusterError(
            f"{self.address} is no scheduler: write dask://host:port, the port below 65536"
        )


@dataclass(frozen=True)
class Room:
    """What a task takes of a worker's resources, and the workers that may get it (None: all)."""

    resources: Mapping[str, float]
    only: frozenset[str] | None

    def there(self, workers: Mapping[str, Mapping[str, float]]) -> bool:
        """Whether one of these, by what they declare, can do the task."""
        return any(
            _enough(declared, self.resources) and (self.only is None or address in self.only)
            for address, declared in workers.items()
        )


class Scheduler:
    """A connection to a scheduler. `own`: all that a build depends on beside its sources, which
    its workers must have; `tools`: the directories of ROCm and LLVM that they look for."""

    def __init__(
        self, cluster: Cluster, tools: tuple[str | None, str | None], own: Mapping[str, str]
    ) -> None:
        """Connect, and find the workers that are fit. Raises `ClusterError`."""
        try:
            from distributed import Client
        except ImportError:
            raise ClusterError(
                "building on a cluster needs Dask: pip install 'flyc[dask]', also on its workers"
            ) from None
        self.address = cluster.address
        self._tools = tools
        self._own = own
        self._unfit: set[str] = set()
        self._levels = {name: logging.getLogger(name).level for name in _LOGGERS}
        self._log_at(dict.fromkeys(_LOGGERS, logging.CRITICAL))  # errors here tell what matters
        try:
            self.client = Client(cluster.scheduler(), timeout="10s", set_as_default=False)
        except (OSError, ValueError) as error:
            self._log_at(self._levels)
            raise ClusterError(f"{cluster.address} does not answer: {error}") from None
        try:
            self._examine()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.client.close()
        self._log_at(self._levels)

    def _examine(self) -> None:
        """Ask each worker what it builds with. Raises `ClusterError` if none can be used."""
        with self.talking():
            found = self.client.run(identity, *self._tools, on_error="return")
        wrong = {address: self._wrong(answer) for address, answer in sorted(found.items())}
        self._unfit.update(address for address, why in wrong.items() if why)
        if len(self._unfit) == len(found):
            listed = ". ".join(f"{address} {why}" for address, why in wrong.items())
            raise ClusterError(
                f"no worker of {self.address} has what this machine builds with: "
                f"{listed or 'it has no workers'}. Install the same flyc and FlyDSL there"
            )

    def _wrong(self, answer: Any) -> str:
        """Why a worker that answers so gets no work; empty if it does."""
        if isinstance(answer, BaseException):
            return f"cannot run flyc: {answer or type(answer).__name__}"
        versions, parts = answer
        if parts == self._own:
            return ""
        listed = ", ".join(f"{name} {version}" for name, version in versions.items())
        names = [n for n in self._own if self._own[n] != parts.get(n)] if parts else ["everything"]
        return f"has {listed}; differs: {', '.join(names)}"

    def send(self, packed: Packed) -> Any:
        """Sources, as a task that has them for its result: when the workers that hold it are lost,
        it is done again. It takes no flyc."""
        parts = [packed.path, packed.sha256, packed.data]
        with self.talking(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")
            return self.client.submit(list, parts, pure=False)

    def results(self) -> Any:
        """Where the futures that are added come out as they are done."""
        from distributed import as_completed

        with self.client.as_current():
            return as_completed()

    def exclude_owner(self, future: Any) -> None:
        """Give no more work to the worker that has this result."""
        with self.talking():
            self._unfit.update(self.client.who_has([future]).get(future.key, ()))

    def workers(self) -> dict[str, Mapping[str, float]]:
        """The resources that workers declare, by address."""
        with self.talking():
            workers = self.client.scheduler_info(n_workers=-1)["workers"]
        return {address: worker.get("resources", {}) for address, worker in workers.items()}

    def room(self) -> Room:
        """Where tasks can be done now. Raises `ClusterError` if nowhere."""
        fit = {name: has for name, has in self.workers().items() if name not in self._unfit}
        if not fit:
            raise ClusterError(f"{self.address} has no worker left that can build this")
        declared = {name for has in fit.values() for name in has}
        wanted = {name: amount for name, amount in _WANTED.items() if name in declared}
        room = Room(wanted, frozenset(fit) if self._unfit else None)
        if not room.there(fit):
            raise ClusterError(
                f"no worker of {self.address} has room for a compile, which takes "
                f"{_amounts(wanted)}: "
                + ", ".join(f"{address} has {_amounts(has)}" for address, has in fit.items())
                + ". Start workers with other --resources"
            )
        return room

    @contextmanager
    def talking(self) -> Iterator[None]:
        """Raises `ClusterError` for what goes wrong within because the scheduler is gone."""
        from distributed.comm import CommClosedError

        try:
            yield
        except Exception as error:
            if self.client.status == "running" and not isinstance(error, CommClosedError):
                raise
            raise self.lost() from None

    def lost(self) -> ClusterError:
        return ClusterError(
            f"the scheduler {self.address} was lost: it ended, or the network did. What was built "
            "so far is in the store; the same command goes on from there"
        )

    @staticmethod
    def _log_at(levels: Mapping[str, int]) -> None:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _enough(declared: Mapping[str, float], wanted: Mapping[str, float]) -> bool:
    return all(declared.get(name, 0) >= amount for name, amount in wanted.items())


def _amounts(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{name}={amount:g}" for name, amount in resources.items()) or "nothing"
