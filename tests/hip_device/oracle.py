"""FlyDSL's own host launcher as the launch oracle: what it launches, for given host slots."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from tests.hip_device.device import LaunchRecord

_ROOT = Path(__file__).parents[2]


class OracleError(Exception):
    """FlyDSL could not load or run the host function."""


class OracleHipError(OracleError):
    """The device refused what FlyDSL asked for. FlyDSL itself only prints such errors."""

    def __init__(self, code: int) -> None:
        super().__init__(f"FlyDSL's runtime met HIP error {code}")
        self.code = code


class OracleDiedError(OracleError):
    """The host function killed its process, for example by dividing by zero."""

    def __init__(self, returncode: int, stderr: str) -> None:
        super().__init__(f"FlyDSL's host function ended the process ({returncode}): {stderr}")
        self.returncode = returncode


class FlyDslOracle:
    """Runs lowered FlyDSL modules against the test device in one long-lived process.

    `library` is the built test device, `targets` the devices it models. A process that died is
    started again for the next call.
    """

    def __init__(self, library: Path, targets: Sequence[str]) -> None:
        self._library = library
        self._targets = list(targets)
        self._process: subprocess.Popen[str] | None = None
        self._stderr: IO[str] | None = None
        self._artifacts: dict[tuple[str, str, bool], int] = {}

    def __enter__(self) -> FlyDslOracle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def launches(
        self,
        mlir: str,
        entry: str,
        slots: Sequence[bytes],
        *,
        device: int = 0,
        explicit_module: bool = False,
    ) -> tuple[LaunchRecord, ...]:
        """What FlyDSL's host function launches.

        `mlir` is the lowered module: the host function in the LLVM dialect and its `gpu.binary`.
        `slots` holds the bytes of each host argument in order: 8 for a pointer or the stream, 4
        for an i32, a packed struct as it is. Raises `OracleHipError`, `OracleDiedError` or
        `OracleError`.
        """
        key = (mlir, entry, explicit_module)
        if self._process is None or key not in self._artifacts:
            answer = self._ask(do="load", mlir=mlir, entry=entry, explicit_module=explicit_module)
            self._artifacts[key] = answer["artifact"]
        answer = self._ask(
            do="run",
            artifact=self._artifacts[key],
            slots=[bytes(slot).hex() for slot in slots],
            device=device,
        )
        return tuple(_record(fields) for fields in answer["launches"])

    def create_stream(self, device: int = 0) -> int:
        """A stream handle to pass in a slot; it lives until `configure` or a crash."""
        return int(self._ask(do="stream", device=device)["stream"])

    def configure(self, targets: Sequence[str]) -> None:
        """Model other devices from now on. Loaded modules and streams are gone."""
        self._targets = list(targets)
        self._artifacts.clear()
        if self._process is not None:
            self._ask(do="configure", targets=self._targets)

    def close(self) -> None:
        process, self._process = self._process, None
        self._artifacts.clear()
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            process.wait()
            process.stdout.close()
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None

    def _start(self) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(self._library.parent),
            "HIPTEST_DEVICES": ",".join(self._targets),
            # FlyDSL asks for an architecture at import; the module's own code object decides.
            "FLYDSL_GPU_ARCH": self._targets[0].split(":")[0],
            "FLYDSL_RUNTIME_ENABLE_CACHE": "0",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")])),
        }
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        return subprocess.Popen(
            [sys.executable, "-m", "tests.hip_device.oracle_worker", str(self._library)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env=environment,
            cwd=_ROOT,
        )

    def _ask(self, **request: Any) -> dict[str, Any]:
        if self._process is None:
            self._process = self._start()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise self._death(process)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise OracleError(answer["error"])
        if answer.get("hip_error"):
            raise OracleHipError(answer["hip_error"])
        return answer

    def _death(self, process: subprocess.Popen[str]) -> OracleDiedError:
        returncode = process.wait()
        assert self._stderr is not None
        self._stderr.seek(0)
        stderr = self._stderr.read()[-2000:]
        self._process = None
        self._artifacts.clear()
        self._stderr.close()
        self._stderr = None
        return OracleDiedError(returncode, stderr)


def _record(fields: dict[str, Any]) -> LaunchRecord:
    sizes = {name: tuple(fields[name]) for name in ("grid", "block", "cluster")}
    return LaunchRecord(**{**fields, **sizes, "kernarg": bytes.fromhex(fields["kernarg"])})
