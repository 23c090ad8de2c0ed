"""The process in which FlyDSL's JIT-compiled host functions launch on the test device.

Reads one JSON request a line from stdin and answers each with one JSON line; the oracle module
holds the other end. Run with the library's directory in LD_LIBRARY_PATH, so that FlyDSL's runtime
and this module load the same one.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import json
import os
import sys
from pathlib import Path
from typing import IO, Any

from flydsl.compiler.jit_executor import CompiledArtifact

from tests.hip_device.device import HipTestDevice


class Worker:
    """The loaded artifacts, by number, and the device they are on."""

    def __init__(self, library: Path) -> None:
        self.device = HipTestDevice(library)
        self.functions: dict[int, tuple[CompiledArtifact, Any]] = {}
        self.next_number = 1

    def load(self, mlir: str, entry: str, explicit_module: bool) -> dict[str, Any]:
        artifact = CompiledArtifact(mlir, entry, uses_explicit_module=explicit_module)
        self.device.call("hipGetLastError")
        function = artifact._get_func_exe()
        error = self.device.call("hipGetLastError")
        if error:
            return {"hip_error": error}
        number = self.next_number
        self.next_number += 1
        self.functions[number] = (artifact, function)
        return {"artifact": number}

    def run(self, artifact: int, slots: list[str], device: int) -> dict[str, Any]:
        _, function = self.functions[artifact]
        values = [bytes.fromhex(slot) for slot in slots]
        # The host function loads each slot with its natural alignment.
        storages = [(ctypes.c_uint64 * (len(value) // 8 + 1))() for value in values]
        for storage, value in zip(storages, values, strict=True):
            ctypes.memmove(storage, value, len(value))
        packed = (ctypes.c_void_p * len(storages))(*map(ctypes.addressof, storages))
        self.device.check("hipSetDevice", device)
        self.device.take_launches()
        self.device.call("hipGetLastError")
        function(packed)
        error = self.device.call("hipGetLastError")
        records = [
            {**dataclasses.asdict(record), "kernarg": record.kernarg.hex()}
            for record in self.device.take_launches()
        ]
        return {"hip_error": error, "launches": records}

    def stream(self, device: int) -> dict[str, Any]:
        self.device.check("hipSetDevice", device)
        return {"stream": self.device.create("hipStreamCreate")}

    def configure(self, targets: list[str]) -> dict[str, Any]:
        self.functions.clear()
        gc.collect()
        self.device.configure(*targets)
        return {}


def serve(library: Path, requests: IO[str], answers: IO[str]) -> None:
    worker = Worker(library)
    for line in requests:
        request = json.loads(line)
        verb = getattr(worker, request.pop("do"))
        try:
            answer = verb(**request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    # Compilers print to stdout at times: only answers may go there.
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(Path(sys.argv[1]), sys.stdin, channel)
