"""Makes the HIP test device execute what is launched on it."""

from __future__ import annotations

import sys
from collections.abc import Callable

from tests.hip_device.device import HipTestDevice, RunningLaunch
from tests.hip_device.interpreter.errors import (
    InterpreterError,
    MemoryFaultError,
    NotModelledError,
)
from tests.hip_device.interpreter.launch import CodeObjectProgram, Counters, Request, run
from tests.hip_device.interpreter.memory import GlobalMemory
from tests.hip_device.interpreter.scheduler import Schedule

_SUCCESS, _ILLEGAL_ADDRESS, _LAUNCH_FAILURE, _NOT_SUPPORTED = 0, 700, 719, 801


class Executor:
    """A hook for `HipTestDevice.set_hook`: runs each launch under `schedule`.

    A kernel that goes wrong is reported on stderr and in `failures`, and its launch returns what
    HIP would: 700 for an access outside memory, 719 for a race, a hang, or an instruction that is
    not implemented (both stick), 801 for a processor that is not modelled. `report` is given the
    counters of each launch.
    """

    def __init__(
        self,
        device: HipTestDevice,
        schedule: Schedule = Schedule(),  # noqa: B008 - frozen
        report: Callable[[str, Counters], None] = lambda kernel, counters: None,
    ) -> None:
        self.schedule = schedule
        self.failures: list[InterpreterError] = []
        self._device, self._report = device, report
        self._programs: dict[str, CodeObjectProgram] = {}

    def __call__(self, launch: RunningLaunch) -> int:
        try:
            counters = self._run(launch)
        except InterpreterError as error:
            self.failures.append(error)
            print(f"HIP test device: {error}", file=sys.stderr)
            return _error_code(error)
        self._report(launch.record.kernel, counters)
        return _SUCCESS

    def _run(self, launch: RunningLaunch) -> Counters:
        record = launch.record
        if record.cluster != (1, 1, 1):
            raise UnmodelledDeviceError("workgroup clusters are not modelled")
        request = Request(
            kernel=record.kernel,
            grid=record.grid,
            block=record.block,
            kernarg=launch.segment,
            dynamic_lds=record.dynamic_lds,
            code_base=launch.load_base,
        )
        memory = GlobalMemory(self._device.find_allocation)
        return run(self._program(launch), request, memory, self.schedule)

    def _program(self, launch: RunningLaunch) -> CodeObjectProgram:
        key = launch.record.code_sha256
        found = self._programs.get(key)
        if found is None:
            try:
                found = CodeObjectProgram(launch.code_object)
            except NotModelledError as error:
                raise UnmodelledDeviceError(str(error)) from None
            self._programs[key] = found
        return found


class UnmodelledDeviceError(InterpreterError):
    """The device exists, but nothing can be executed on it."""


def _error_code(error: InterpreterError) -> int:
    if isinstance(error, UnmodelledDeviceError):
        return _NOT_SUPPORTED
    return _ILLEGAL_ADDRESS if isinstance(error, MemoryFaultError) else _LAUNCH_FAILURE
