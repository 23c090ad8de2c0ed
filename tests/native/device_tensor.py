"""Torch CPU tensors that say, through the DLPack exchange API too, that they are on a GPU."""

from __future__ import annotations

import ctypes
import subprocess
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import torch

_SOURCE = Path(__file__).parent / "rocm_exchange.c"


def device_tensor_type(directory: Path) -> type[torch.Tensor]:
    """The class; `torch.Tensor.as_subclass` makes a tensor one of it. Built under `directory`.

    `place(device_type, ordinal)` of the class moves all of them at once (DLPack's numbers).
    """
    library = directory / "rocm_exchange.so"
    include = f"-I{sysconfig.get_paths()['include']}"
    command = ["gcc", "-std=gnu11", "-O2", "-shared", "-fPIC", include, _SOURCE, "-o", library]
    subprocess.run(list(map(str, command)), check=True)
    made = ctypes.PyDLL(str(library))
    made.rocm_exchange.restype = ctypes.py_object
    made.rocm_exchange.argtypes = (ctypes.py_object,)

    class DeviceTensor(torch.Tensor):
        __torch_function__ = torch._C._disabled_torch_function_impl
        __dlpack_c_exchange_api__ = made.rocm_exchange(
            vars(torch.Tensor)["__dlpack_c_exchange_api__"]
        )
        device = SimpleNamespace(type="cuda", index=0)  # type: ignore[assignment]
        place = staticmethod(made.set_place)

    return DeviceTensor
