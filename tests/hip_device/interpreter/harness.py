"""Runs specialisations on numpy arrays with the interpreter, under one schedule or several."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from runtime_loader.evaluate import ConcreteLaunch, Evaluator
from runtime_loader.signature import PointerForm, ScalarForm, StreamForm, TensorForm
from runtime_loader.specialisation import Specialisation
from tests.hip_device.interpreter.launch import CodeObjectProgram, Counters, Request, run
from tests.hip_device.interpreter.memory import GlobalMemory
from tests.hip_device.interpreter.scheduler import ALL_SCHEDULES, Schedule

_POISON = 0xDB


def fresh(shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array as fresh device memory is: filled with a poison pattern."""
    array = np.empty(shape, dtype)
    array.view(np.uint8).reshape(-1)[:] = _POISON
    return array


def hidden_arguments(kernel: Mapping[str, Any], request: Request) -> bytes:
    """The whole kernarg segment, with the hidden arguments that the HIP runtime fills in."""
    segment = bytearray(request.kernarg.ljust(int(kernel[".kernarg_segment_size"]), b"\0"))
    values = {"hidden_grid_dims": 3, "hidden_dynamic_lds_size": request.dynamic_lds}
    for axis, count, size in zip("xyz", request.grid, request.block, strict=True):
        values[f"hidden_block_count_{axis}"] = count
        values[f"hidden_group_size_{axis}"] = size
        values[f"hidden_remainder_{axis}"] = 0
        values[f"hidden_global_offset_{axis}"] = 0
    for argument in kernel.get(".args", []):
        kind = argument[".value_kind"]
        if kind in values:
            data = struct.pack("<Q", values[kind])[: argument[".size"]]
            segment[argument[".offset"] : argument[".offset"] + len(data)] = data
    return bytes(segment)


def bind(specialisation: Specialisation, arguments: Mapping[str, Any]) -> list[int]:
    """The host slots for arguments by name: arrays for tensors and pointers, or numbers.

    The stream is null.
    """
    slots: list[int] = []
    for form in specialisation.signature:
        if isinstance(form, TensorForm):
            array = arguments[form.name]
            strides = [stride // array.itemsize for stride in array.strides]
            extents = zip(form.shape, array.shape, strict=True)
            slots.append(array.ctypes.data)
            slots += [n for pinned, n in extents if pinned < 0]
            slots += [n for pinned, n in zip(form.strides, strides, strict=True) if pinned < 0]
        elif isinstance(form, PointerForm):
            slots.append(arguments[form.name].ctypes.data)
        elif isinstance(form, ScalarForm) and form.type == "f32":
            slots.append(int(np.float32(arguments[form.name]).view(np.uint32)))
        elif isinstance(form, ScalarForm):
            slots.append(int(arguments[form.name]) & 0xFFFFFFFF)
        elif isinstance(form, StreamForm):
            slots.append(0)
        else:
            raise TypeError(f"{form.name}: the harness does not bind {type(form).__name__}")
    return slots


def launch_kernel(
    program: CodeObjectProgram,
    kernel: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    arrays: Sequence[np.ndarray],
    schedule: Schedule = Schedule(),  # noqa: B008 - frozen
) -> Counters:
    """Run a kernel whose arguments are pointers to these arrays, which it may touch alone."""
    memory = GlobalMemory()
    pointers = [memory.add_array(array, "an array").base for array in arrays]
    base = memory.add_array(program.image.octets, "the code object").base
    kernarg = struct.pack(f"<{len(pointers)}Q", *pointers)
    request = Request(kernel, grid, block, kernarg, 0, base)
    segment = hidden_arguments(program.image.kernels[kernel].metadata, request)
    return run(program, replace(request, kernarg=segment), memory, schedule)


class Harness:
    """One specialisation's code object and plan, ready to be launched on host arrays."""

    def __init__(self, specialisation: Specialisation, code_object: bytes) -> None:
        self._specialisation = specialisation
        self._kernels = specialisation.kernels
        self._evaluate = Evaluator(
            specialisation.plan, [kernel.kernarg for kernel in specialisation.kernels]
        )
        self._code = CodeObjectProgram(code_object)

    def launch(
        self,
        arguments: Mapping[str, Any],
        schedule: Schedule = Schedule(),  # noqa: B008 - frozen
        *,
        detect_races: bool = True,
    ) -> list[Counters]:
        """Run what the plan launches for these arguments; kernels may touch their arrays alone."""
        memory = GlobalMemory()
        for name, value in arguments.items():
            if isinstance(value, np.ndarray) and value.nbytes:
                memory.add_array(value, name)
        base = memory.add_array(self._code.image.octets, "the code object").base
        return [
            run(
                self._code,
                self._request(launched, base),
                memory,
                schedule,
                detect_races=detect_races,
            )
            for launched in self._evaluate(bind(self._specialisation, arguments))
            if all(launched.grid) and all(launched.block)
        ]

    def _request(self, launched: ConcreteLaunch, base: int) -> Request:
        kernel = self._kernels[launched.kernel]
        request = Request(
            kernel.symbol, launched.grid, launched.block, launched.kernarg, launched.lds, base
        )
        metadata = self._code.image.kernels[kernel.symbol].metadata
        return replace(request, kernarg=hidden_arguments(metadata, request))

    def launch_all_ways(
        self,
        arguments: Mapping[str, Any],
        outputs: Sequence[str],
        schedules: Sequence[Schedule] = ALL_SCHEDULES,
    ) -> None:
        """Run under every schedule; raise `AssertionError` if a result differs in a byte."""
        arrays = {n: v for n, v in arguments.items() if isinstance(v, np.ndarray)}
        initial = {name: array.copy() for name, array in arrays.items()}
        first: bytes | None = None
        for schedule in schedules:
            for name, array in arrays.items():
                array[...] = initial[name]
            self.launch(arguments, schedule)
            found = b"".join(arrays[name].tobytes() for name in outputs)
            if first is not None and found != first:
                raise AssertionError(
                    f"the result under {schedule} is not that under {schedules[0]}"
                )
            first = found
