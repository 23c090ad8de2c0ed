"""Fork servers as their supervisor sees them: started when needed, told jobs, stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from flyc_cli.builder.fork_server import server_socket
from flyc_cli.builder.job import Job
from flyc_cli.builder.outcomes import exit_text
from flyc_cli.frontends.environment import without_settings
from runtime_loader.errors import FlycError

STANDIN, TORCH = "standin", "torch"
_STOP_SECONDS = 2.0


class WorkerError(FlycError):
    """The compile workers cannot start: FlyDSL or the toolchain is missing or broken."""


@dataclass
class Server:
    """A fork server, and the pid of each job that it runs (0 until it says)."""

    connection: Connection
    process: subprocess.Popen[bytes]
    running: dict[int, int] = field(default_factory=dict)

    def start_job(self, number: int, job: Job) -> None:
        """Hand over a job. Raises `OSError` when the server is gone."""
        self.running[number] = 0
        self.connection.send((number, job))

    def kill_job(self, number: int) -> None:
        """End a job and whatever it started."""
        pid = self.running.get(number, 0)
        if pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def stop(self) -> None:
        """End every job, then the server."""
        for number in self.running:
            self.kill_job(number)
        with contextlib.suppress(OSError):
            self.connection.send(None)
        self.connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_STOP_SECONDS)
        self.process.kill()
        self.process.wait()


def start_server(mode: str) -> Server:
    """Start a server that has imported FlyDSL. Raises `WorkerError`."""
    connection, descriptor = server_socket()
    process = subprocess.Popen(
        [sys.executable, "-m", "flyc_cli.builder.fork_server", str(descriptor), mode],
        pass_fds=[descriptor],
        stdin=subprocess.DEVNULL,
        env=worker_environment(os.environ),
    )
    os.close(descriptor)
    server = Server(connection, process)
    try:
        state, message = connection.recv()
    except EOFError:
        state, message = "broken", exit_text(process.wait())
    except BaseException:
        server.stop()
        raise
    if state == "ready":
        return server
    server.stop()
    if state == "unsupported":
        raise WorkerError(message)
    raise WorkerError(
        f"FlyDSL cannot be imported here: {message}. Install it with: pip install "
        "'flyc[compiler]'; `flyc doctor` says what is missing"
    )


def worker_environment(environment: os._Environ[str] | dict[str, str]) -> dict[str, str]:
    """The variables that compile workers get of a build's."""
    root = str(Path(__file__).parents[2])
    path = environment.get("PYTHONPATH")
    entries = [root, *(path.split(os.pathsep) if path else ())]
    return {**without_settings(environment), "PYTHONPATH": os.pathsep.join(entries)}
