"""FlyDSL called as its users call it, on the HIP test device: what a plain call launches.

`FlyDslCalls` is our end; run as a program it is the process in which FlyDSL compiles and launches.
Arguments are Python expressions over FlyDSL (`flyc`, `fx`), the kernel module (`kernels`), and two
makers of tensors with any pointer, shape and strides: `Memory` (DLPack) and `Placed` (torch).
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from ctypes import c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from tests.hip_device.device import HipTestDevice, LaunchRecord
from tests.hip_device.oracle import OracleError, OracleHipError

ROOT = Path(__file__).parents[2]
_ROCM = 10


class FlyDslCalls:
    """A process that imported the launchers of `module` (below `kernels`) for one target."""

    def __init__(
        self, library: Path, toolkit: Path, kernels: Path, module: str, target: str
    ) -> None:
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(library.parent),
            "HIPTEST_DEVICES": target,
            "FLYDSL_GPU_ARCH": target,
            "ARCH": target,
            "FLYDSL_RUNTIME_ENABLE_CACHE": "0",
            "ROCM_PATH": str(toolkit),
            "LLD_VERSION": "flyc",
            "PYTHONPATH": f"{ROOT}:{kernels}",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.launch.flydsl_calls", str(library), module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
        )

    def __enter__(self) -> FlyDslCalls:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def compile(self, launcher: str, arguments: Mapping[str, str]) -> str:
        """Trace and compile `launcher` for arguments like these, by name; its IR's signature."""
        answer = self._ask(do="compile", launcher=launcher, arguments=dict(arguments))
        return str(answer["signature"])

    def launches(self, launcher: str, arguments: Mapping[str, str]) -> tuple[LaunchRecord, ...]:
        """What a compiled launcher launches; it takes all of its arguments, in order."""
        return self._launches("launch", launcher, arguments)

    def call(self, launcher: str, arguments: Mapping[str, str]) -> tuple[LaunchRecord, ...]:
        """What a plain call with these arguments, by name, launches."""
        return self._launches("call", launcher, arguments)

    def _launches(
        self, verb: str, launcher: str, arguments: Mapping[str, str]
    ) -> tuple[LaunchRecord, ...]:
        answer = self._ask(do=verb, launcher=launcher, arguments=dict(arguments))
        if answer["hip_error"]:
            raise OracleHipError(answer["hip_error"])
        return tuple(map(_record, answer["launches"]))

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"FlyDSL's process ended with {self._process.wait()}"
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise OracleError(answer["error"])
        return answer


def _record(fields: dict[str, Any]) -> LaunchRecord:
    sizes = {name: tuple(fields[name]) for name in ("grid", "block", "cluster")}
    return LaunchRecord(**{**fields, **sizes, "kernarg": bytes.fromhex(fields["kernarg"])})


class _Tensor(ctypes.Structure):
    """DLTensor, then what DLManagedTensor adds (dlpack.h)."""

    _fields_ = (
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
        ("context", c_void_p),
        ("deleter", c_void_p),
    )


_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, c_void_p, ctypes.c_char_p, c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


class Memory:
    """Device memory as a DLPack producer; `code` and `bits` are those of DLDataType."""

    def __init__(
        self,
        code: int,
        bits: int,
        pointer: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
    ) -> None:
        rank = len(shape)
        self._shape, self._strides = (c_int64 * rank)(*shape), (c_int64 * rank)(*strides)
        self._tensor = _Tensor(
            data=pointer,
            device_type=_ROCM,
            ndim=rank,
            code=code,
            bits=bits,
            lanes=1,
            shape=self._shape,
            strides=self._strides,
        )

    def __dlpack__(self, **_: object) -> object:
        return _new_capsule(ctypes.addressof(self._tensor), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _ROCM, 0


class Caller:
    """FlyDSL's side: the launchers of a module, and those that were compiled."""

    def __init__(self, library: Path, module: str) -> None:
        import flydsl.compiler as flyc
        import flydsl.expr as fx

        self.device = HipTestDevice(library)
        self.kernels = importlib.import_module(module)
        self.names = {
            "flyc": flyc,
            "fx": fx,
            "kernels": self.kernels,
            "Memory": Memory,
            "Placed": _placed_tensors(),
        }
        self.flyc = flyc
        self.compiled: dict[str, Any] = {}

    def compile(self, launcher: str, arguments: dict[str, str]) -> dict[str, Any]:
        function = getattr(self.kernels, launcher)
        self.compiled[launcher] = self.flyc.compile(function, **self._values(arguments))
        source = function._last_compiled[1].source_ir
        (line,) = (line for line in source.splitlines() if f"func.func @{launcher}(" in line)
        return {"signature": line}

    def launch(self, launcher: str, arguments: dict[str, str]) -> dict[str, Any]:
        values = self._values(arguments).values()
        return self._recorded(lambda: self.compiled[launcher](*values))

    def call(self, launcher: str, arguments: dict[str, str]) -> dict[str, Any]:
        values = self._values(arguments)
        function = attrgetter(launcher)(self.kernels)
        return self._recorded(lambda: function(**values))

    def _values(self, arguments: dict[str, str]) -> dict[str, Any]:
        return {name: eval(text, self.names) for name, text in arguments.items()}

    def _recorded(self, launch: Callable[[], object]) -> dict[str, Any]:
        self.device.take_launches()
        self.device.call("hipGetLastError")
        launch()
        error = self.device.call("hipGetLastError")
        records = [
            {**dataclasses.asdict(record), "kernarg": record.kernarg.hex()}
            for record in self.device.take_launches()
        ]
        return {"hip_error": error, "launches": records}


def _placed_tensors() -> Callable[..., object]:
    """Makes torch tensors that say to be anywhere, of any shape."""
    import torch

    class Placed(torch.Tensor):
        place: tuple[int, tuple[int, ...], tuple[int, ...]]

        @property
        def shape(self) -> Any:  # type: ignore[override]
            return self.place[1]

        def stride(self, dim: Any = None) -> Any:
            assert dim is None
            return self.place[2]

        def data_ptr(self) -> int:
            return self.place[0]

    def make(dtype: str, *place: Any) -> object:
        empty = torch.empty(0, dtype=getattr(torch, dtype), device="meta")
        tensor = empty.as_subclass(Placed)
        tensor.place = place
        return tensor

    return make


def _serve(caller: Caller, requests: IO[str], answers: IO[str]) -> None:
    for line in requests:
        request = json.loads(line)
        try:
            answer = getattr(caller, request.pop("do"))(**request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _serve(Caller(Path(sys.argv[1]), sys.argv[2]), sys.stdin, channel)
