"""The HIP test device with execution: faults, graphs, several devices, hidden arguments."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.hip_device.compile_sample import CompiledSample
from tests.hip_device.device import HipTestDevice
from tests.hip_device.interpreter.executor import Executor
from tests.hip_device.interpreter.launch import Counters
from tests.hip_device.launching import as_extra

pytestmark = [pytest.mark.compile, pytest.mark.device]

Sample = Callable[[str, str], CompiledSample]
_ROWS, _COLUMNS = 8, 64
_TARGETS = ("gfx942:sramecc+:xnack-", "gfx1201")
_BYTES = 4 * _ROWS * _COLUMNS


@pytest.fixture
def executor(loaded_device: HipTestDevice) -> Iterator[Executor]:
    """A device of each kind that executes what is launched."""
    loaded_device.configure(*_TARGETS, "gfx1250:sramecc+")
    hook = Executor(loaded_device)
    loaded_device.set_hook(hook)
    yield hook
    loaded_device.reset()


class _Matrix:
    """A tensor of 8 x 64 float32 on the current device, and a kernel to launch on it."""

    def __init__(self, device: HipTestDevice, compiled: CompiledSample, kernel: bytes) -> None:
        self.device = device
        self.pointer = device.create("hipMalloc", _BYTES)
        module = device.create("hipModuleLoadData", compiled.hsaco)
        self._function = device.create("hipModuleGetFunction", module, kernel)

    def write(self, values: np.ndarray) -> None:
        self.device.check("hipMemcpy", self.pointer, _address(values), _BYTES, 1)

    def read(self) -> np.ndarray:
        values = np.empty((_ROWS, _COLUMNS), np.float32)
        self.device.check("hipMemcpy", _address(values), self.pointer, _BYTES, 2)
        return values

    def launch(self, arguments: bytes, grid: tuple[int, int, int], stream: int = 0) -> int:
        layout = struct.pack("<iiq", _ROWS, _COLUMNS, _COLUMNS)
        segment = struct.pack("<Q", self.pointer) + layout + arguments
        return self.device.call(
            "hipModuleLaunchKernel",
            self._function, *grid, _COLUMNS, 1, 1, 0, stream, None, as_extra(segment),
        )  # fmt: skip

    def scale(self, factor: float, rows: int = _ROWS, stream: int = 0) -> int:
        return self.launch(struct.pack("<fi", factor, rows), (rows, 1, 1), stream)


def _address(values: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(values.ctypes.data)


def _numbers() -> np.ndarray:
    return np.arange(_ROWS * _COLUMNS, dtype=np.float32).reshape(_ROWS, _COLUMNS)


@pytest.mark.parametrize("ordinal", [0, 1])
def test_each_device_runs_its_own_code(
    executor: Executor, loaded_device: HipTestDevice, sample: Sample, ordinal: int
) -> None:
    loaded_device.check("hipSetDevice", ordinal)
    compiled = sample("scale", _TARGETS[ordinal].partition(":")[0])
    matrix = _Matrix(loaded_device, compiled, b"scale_kernel_0")
    matrix.write(_numbers())
    assert matrix.scale(3.0, rows=5) == 0
    expected = _numbers()
    expected[:5] *= 3
    np.testing.assert_array_equal(matrix.read(), expected)
    assert executor.failures == []


def test_hidden_arguments(executor: Executor, loaded_device: HipTestDevice, sample: Sample) -> None:
    matrix = _Matrix(loaded_device, sample("sizes", "gfx942"), b"sizes_kernel_0")
    assert matrix.launch(struct.pack("<i", _ROWS), (_ROWS, 3, 1)) == 0
    assert (matrix.read() == 64 * 3).all()


def test_a_captured_graph_replays_with_execution(
    executor: Executor, loaded_device: HipTestDevice, sample: Sample
) -> None:
    matrix = _Matrix(loaded_device, sample("scale", "gfx942"), b"scale_kernel_0")
    matrix.write(_numbers())
    stream = loaded_device.create("hipStreamCreate")
    loaded_device.check("hipStreamBeginCapture", stream, 0)
    assert matrix.scale(2.0, stream=stream) == 0
    graph = ctypes.c_void_p()
    loaded_device.check("hipStreamEndCapture", stream, ctypes.byref(graph))
    np.testing.assert_array_equal(matrix.read(), _numbers())
    replay = loaded_device.create("hipGraphInstantiate", graph, None, None, 0)
    for _ in range(3):
        loaded_device.check("hipGraphLaunch", replay, stream)
    np.testing.assert_array_equal(matrix.read(), _numbers() * 8)


def test_an_access_outside_memory_sticks(
    executor: Executor,
    loaded_device: HipTestDevice,
    sample: Sample,
    capfd: pytest.CaptureFixture[str],
) -> None:
    matrix = _Matrix(loaded_device, sample("scale", "gfx942"), b"scale_kernel_0")
    matrix.write(_numbers())
    assert matrix.scale(2.0, rows=_ROWS + 1) == 700
    assert loaded_device.call("hipDeviceSynchronize") == 700
    assert loaded_device.call("hipMalloc", ctypes.byref(ctypes.c_void_p()), 8) == 700
    (failure,) = executor.failures
    assert "scale_kernel_0: [global_load_dword" in str(failure)
    assert "0 bytes past the end of allocation of 2048 bytes" in str(failure)
    assert str(failure) in capfd.readouterr().err


def test_freed_memory_is_outside(
    executor: Executor, loaded_device: HipTestDevice, sample: Sample
) -> None:
    matrix = _Matrix(loaded_device, sample("scale", "gfx942"), b"scale_kernel_0")
    loaded_device.check("hipFree", matrix.pointer)
    assert matrix.scale(2.0) == 700


def test_fresh_memory_shows(
    executor: Executor, loaded_device: HipTestDevice, sample: Sample
) -> None:
    matrix = _Matrix(loaded_device, sample("scale", "gfx942"), b"scale_kernel_0")
    assert matrix.scale(1.0) == 0
    assert (matrix.read().view(np.uint32) == 0xDBDBDBDB).all()


def test_a_processor_without_tables_says_so(
    executor: Executor, loaded_device: HipTestDevice, sample: Sample
) -> None:
    loaded_device.check("hipSetDevice", 2)
    matrix = _Matrix(loaded_device, sample("scale", "gfx1250"), b"scale_kernel_0")
    assert matrix.scale(2.0) == 801
    assert "execution on gfx1250 is not modelled" in str(executor.failures[0])
    assert loaded_device.call("hipDeviceSynchronize") == 0


def test_counters_are_reported(loaded_device: HipTestDevice, sample: Sample) -> None:
    loaded_device.configure("gfx942")
    reported: list[tuple[str, Counters]] = []
    hook = Executor(loaded_device, report=lambda *report: reported.append(report))
    loaded_device.set_hook(hook)
    matrix = _Matrix(loaded_device, sample("scale", "gfx942"), b"scale_kernel_0")
    matrix.write(_numbers())
    assert matrix.scale(2.0) == 0
    loaded_device.reset()
    ((kernel, counters),) = reported
    assert kernel == "scale_kernel_0"
    assert (counters.workgroups, counters.waves) == (_ROWS, _ROWS)
    # Each row is loaded and stored once, besides the arguments.
    assert counters.bytes_stored == _BYTES
    assert counters.bytes_loaded > _BYTES
    assert counters.instructions["vector memory"] == 2 * _ROWS
    assert counters.total == sum(counters.instructions.values())
    assert "8 workgroups, 8 waves" in str(counters)
