"""Launching through ctypes in the device's own tests, with either form of arguments."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_size_t, c_void_p
from dataclasses import dataclass

from tests.hip_device.device import HipTestDevice

# The explicit arguments of scale_kernel: tensor pointer, its layout, factor, rows.
SCALE_SIZES = (8, 16, 4, 4)
SCALE_BYTES = 32


def as_params(values: Sequence[bytes]) -> ctypes.Array[c_void_p]:
    """A kernelParams array. It keeps its buffers alive."""
    buffers = [ctypes.create_string_buffer(value, len(value)) for value in values]
    params = (c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
    params.buffers = buffers  # type: ignore[attr-defined]
    return params


def as_extra(segment: bytes, size: int | None = None) -> ctypes.Array[c_void_p]:
    """An `extra` array: 1 buffer, 2 size, 3 end. It keeps its buffers alive."""
    buffer = ctypes.create_string_buffer(segment, max(len(segment), 1))
    length = c_size_t(len(segment) if size is None else size)
    extra = (c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(length), 3)
    extra.buffers = (buffer, length)  # type: ignore[attr-defined]
    return extra


@dataclass(frozen=True)
class ScaleKernel:
    """scale_kernel_0, loaded on the device that was current."""

    device: HipTestDevice
    module: int
    function: int

    @classmethod
    def load(cls, device: HipTestDevice, hsaco: bytes) -> ScaleKernel:
        module = device.create("hipModuleLoadData", hsaco)
        function = device.create("hipModuleGetFunction", module, b"scale_kernel_0")
        return cls(device, module, function)

    def launch(
        self,
        *,
        grid: tuple[int, int, int] = (1, 1, 1),
        block: tuple[int, int, int] = (64, 1, 1),
        lds: int = 0,
        stream: int = 0,
        segment: bytes = bytes(SCALE_BYTES),
    ) -> int:
        """The HIP error of one launch."""
        return self.device.call(
            "hipModuleLaunchKernel",
            self.function,
            *grid,
            *block,
            lds,
            stream,
            None,
            as_extra(segment),
        )
