"""A process that has imported FlyDSL once and forks a fresh child for every job.

Run as `python -m flyc_cli.builder.fork_server FD MODE`, where FD is a connected socket and MODE is
`standin` or `torch`. It receives `(number, Job)` and `None` to stop; it sends
`("ready", "")`, `("broken", message)` or `("unsupported", message)` once, then
`("started", number, pid)` and `("ended", number, wait status, peak memory in KiB)` for each job.
The peer is its own supervisor (`flyc_cli.builder.supervisor`), so the socket carries pickles.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import resource
import signal
import socket
import sys
import tokenize
import traceback
from multiprocessing.connection import Connection, wait
from typing import Any

from flyc_cli.builder.job import CANNOT_WRITE, Job, run_job
from flyc_cli.store.recorder import Recorder

# What jobs import of flyc. A child that imports a module compiles its source anew (see
# `flyc_cli.builder.job`), so whatever is not the author's is imported before.
_NEEDED_BY_JOBS = (
    "flyc_cli.builder.early_cutoff",
    "flyc_cli.frontends.raw_sources",
    "flyc_cli.frontends.reach",
    "mlir_passes.lowering",
    "mlir_passes.stderr_log",
)
# What FlyDSL, or many of its kernels, import late; not every version has all.
_OFTEN_IMPORTED = (
    "flydsl._mlir.dialects.builtin",
    "flydsl._mlir.dialects.fly_rocdl",
    "flydsl._mlir.dialects.llvm",
    "flydsl._mlir.dialects.rocdl",
    "flydsl._mlir.dialects.scf",
    "flydsl.expr.ktrace",
    "flydsl.expr.rocdl",
    "flydsl.expr.utils.expand_ops",
)


def main() -> None:
    """Serve jobs until the supervisor says stop or is gone."""
    connection = Connection(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _leave_working_directory()
    recorder = Recorder()
    recorder.install()
    before = frozenset(sys.modules)
    try:
        _import_compiler(sys.argv[2])
    except Exception as error:
        connection.send(("broken", f"{type(error).__name__}: {error}"))
        return
    lack = _lack_of_seams()
    if lack:
        connection.send(("unsupported", lack))
        return
    _warm_up()
    recorder.imported(before)
    # What is there is there for good: a collection in a child would only copy its pages.
    gc.collect()
    gc.freeze()
    connection.send(("ready", ""))
    running: dict[int, tuple[int, int]] = {}  # pidfd: (job number, pid)
    try:
        while _serve_once(connection, recorder, running):
            pass
    finally:
        for _, pid in running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def _import_compiler(mode: str) -> None:
    if mode == "torch":
        import torch  # noqa: F401
    else:
        from flyc_cli.frontends.torch_standin import import_flydsl_without_torch

        import_flydsl_without_torch()
    for name in _OFTEN_IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _warm_up() -> None:
    """Do once what every job would do anew: it finds the tokenizer's pattern, and MLIR's pages."""
    from mlir_passes.pipeline import parse_nothing

    list(tokenize.generate_tokens(io.StringIO("nothing").readline))
    parse_nothing()


def _lack_of_seams() -> str | None:
    """What the imported FlyDSL lacks of the names that flyc builds on, as a message."""
    import flydsl

    try:
        for name in _NEEDED_BY_JOBS:
            importlib.import_module(name)
        from flyc_cli.frontends import flydsl_adapter

        flydsl_adapter.check_seams()
    except (ImportError, AttributeError) as error:
        from flyc_cli.frontends.versions import checked_versions

        return (
            f"FlyDSL {flydsl.__version__} lacks what flyc builds on: {error}. Install one that "
            f"flyc was checked on: {checked_versions()}"
        )
    return None


def _leave_working_directory() -> None:
    """`python -m` puts it before everything; what a build imports must not depend on it."""
    if sys.path[0] == os.getcwd():  # noqa: PTH109
        del sys.path[0]


def _serve_once(connection: Any, recorder: Recorder, running: dict[int, tuple[int, int]]) -> bool:
    for ready in wait([connection, *running]):
        if not isinstance(ready, int):
            try:
                message = connection.recv()
            except EOFError:
                return False
            if message is None:
                return False
            number, job = message
            pid = _fork(connection, recorder, job)
            running[os.pidfd_open(pid)] = (number, pid)
            connection.send(("started", number, pid))
        else:
            number, pid = running.pop(ready)
            os.close(ready)
            # What the job started and left running; not reaped yet, its pid is still its own.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            _, status, usage = os.wait4(pid, 0)
            connection.send(("ended", number, status, usage.ru_maxrss))
    return True


def _fork(connection: Any, recorder: Recorder, job: Job) -> int:
    pid = os.fork()
    if pid:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)
        return pid
    # The child must never return into the server's loop, whatever happens.
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        connection.close()
        _limit_memory(job)
        run_job(job, recorder)
        os._exit(0)
    except OSError:
        os._exit(CANNOT_WRITE)
    except BaseException:
        with (job.directory / "stderr").open("a") as file:
            traceback.print_exc(file=file)
        os._exit(1)
    raise AssertionError


def _limit_memory(job: Job) -> None:
    """A second line behind the supervisor, which looks at resident memory now and then."""
    if job.memory_limit is not None:
        most = job.memory_limit + job.memory_limit // 4
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def server_socket() -> tuple[Connection, int]:
    """A connection for the supervisor, and the descriptor that the server inherits."""
    ours, theirs = socket.socketpair()
    return Connection(ours.detach()), theirs.detach()


if __name__ == "__main__":
    main()
