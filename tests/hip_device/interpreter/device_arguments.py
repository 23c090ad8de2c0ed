"""Arguments in the test device's memory, as our loader and FlyDSL's host functions take them."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from runtime_loader.element_types import ELEMENT_TYPES
from runtime_loader.signature import PointerForm, ScalarForm, StreamForm, TensorForm
from runtime_loader.specialisation import Specialisation
from tests.hip_device.device import HipTestDevice
from tests.launch.oracle_arguments import FakeTensor

_ENTRY = re.compile(r"^  llvm\.func @([\w$.]+)\([^\n]*llvm\.emit_c_interface", re.MULTILINE)


def host_entry(host: str) -> str:
    """The name of the host function in a lowered module."""
    (entry,) = _ENTRY.findall(host)
    return str(entry)


class DeviceArguments:
    """Copies of host arrays on the current device, by argument name; numbers stay as they are."""

    def __init__(self, device: HipTestDevice, arguments: Mapping[str, Any]) -> None:
        self._device, self._arguments = device, arguments
        self._pointers: dict[str, int] = {}
        for name, value in arguments.items():
            if isinstance(value, np.ndarray):
                self._pointers[name] = device.create("hipMalloc", max(value.nbytes, 1))
        self.upload()

    def upload(self) -> None:
        """Copy the host arrays to the device again."""
        for name, pointer in self._pointers.items():
            host = self._arguments[name]
            self._device.check("hipMemcpy", pointer, _at(host), host.nbytes, 1)

    def download(self, name: str) -> np.ndarray:
        """A copy of an array as it is on the device."""
        host = np.empty_like(self._arguments[name])
        self._device.check("hipMemcpy", _at(host), self._pointers[name], host.nbytes, 2)
        return host

    def free(self) -> None:
        for pointer in self._pointers.values():
            self._device.check("hipFree", pointer)

    def for_loader(self, specialisation: Specialisation) -> list[Any]:
        """What our kernels are called with; the stream is null."""
        values: list[Any] = []
        for form in specialisation.signature:
            if isinstance(form, TensorForm):
                array = self._arguments[form.name]
                strides = tuple(stride // array.itemsize for stride in array.strides)
                dtype = f"torch.{ELEMENT_TYPES[form.dtype].torch[0]}"
                values.append(FakeTensor(self._pointers[form.name], array.shape, strides, dtype))
            elif isinstance(form, PointerForm):
                values.append(self._pointers[form.name])
            elif isinstance(form, StreamForm):
                values.append(None)
            else:
                values.append(self._arguments[form.name])
        return values

    def for_flydsl(self, specialisation: Specialisation) -> list[bytes]:
        """The slots of FlyDSL's host function: a tensor is a pointer and its packed layout."""
        slots: list[bytes] = []
        for form in specialisation.signature:
            if isinstance(form, TensorForm):
                array = self._arguments[form.name]
                slots.append(struct.pack("<Q", self._pointers[form.name]))
                extents = zip(array.shape, form.shape, strict=True)
                strides = zip(array.strides, form.strides, strict=True)
                leaves = [struct.pack("<i", n) for n, pinned in extents if pinned < 0]
                leaves += [
                    struct.pack("<q", n // array.itemsize) for n, pinned in strides if pinned < 0
                ]
                slots += [b"".join(leaves)] if leaves else []
            elif isinstance(form, PointerForm):
                slots.append(struct.pack("<Q", self._pointers[form.name]))
            elif isinstance(form, StreamForm):
                slots.append(bytes(8))
            elif isinstance(form, ScalarForm):
                code = "<f" if form.type == "f32" else "<i"
                slots.append(struct.pack(code, self._arguments[form.name]))
        return slots


def call_flydsl(function: Any, slots: list[bytes]) -> None:
    """Call a host function that FlyDSL's JIT compiled."""
    storages = [(ctypes.c_uint64 * (len(slot) // 8 + 1))() for slot in slots]
    for storage, slot in zip(storages, slots, strict=True):
        ctypes.memmove(storage, slot, len(slot))
    function((ctypes.c_void_p * len(storages))(*map(ctypes.addressof, storages)))


def _at(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
