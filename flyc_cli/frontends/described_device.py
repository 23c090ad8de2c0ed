"""The device that captured code sees: torch.cuda answers from a description, tensors hold no data.

Host wrappers ask torch for the device's name, target, number of compute units and memory, and make
tensors and streams on it. All of that is answered from the description, on any machine: a device
that is there is not asked, and none is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from flyc_cli.frontends.errors import InputError
from runtime_loader.signature import TensorForm
from runtime_loader.target import Target

# The version that `torch.version.hip` shows to captured code, so that it takes its ROCm branches.
HIP_VERSION = "7.0.0"
_ADDRESS = 0x7F00_0000_0000
# hipMalloc aligns to 256 bytes.
_ALIGNMENT = 256
_WAVE64 = ("gfx90a", "gfx942", "gfx950")
# LDS of a workgroup, in bytes (AMDGPUUsage; the RDNA and CDNA ISA guides).
_LDS = {"gfx950": 160 << 10, "gfx1250": 320 << 10}

_TORCH_TYPES = {
    "i1": "bool",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2": "float8_e5m2",
    "f8e5m2fnuz": "float8_e5m2fnuz",
    "f8e8m0fnu": "float8_e8m0fnu",
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}


@dataclass(frozen=True)
class Description:
    """A device: `units` as `multi_processor_count` counts them, `memory` in bytes."""

    target: Target
    name: str
    units: int
    memory: int


class Stream:
    """A stream of the described device, with the attributes of `torch.cuda.Stream`."""

    cuda_stream = 0
    stream_id = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = _DEVICE
        self.device_index = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream)

    def __hash__(self) -> int:
        return 0

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None

    def wait_stream(self, stream: Any) -> None:
        return None

    def wait_event(self, event: Any) -> None:
        return None

    def record_event(self, event: Any = None) -> Any:
        return event or Event()


class Event:
    """An event that has happened, with the attributes of `torch.cuda.Event`."""

    cuda_event = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        return None

    def wait(self, stream: Any = None) -> None:
        return None

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None

    def elapsed_time(self, end: Any) -> float:
        raise InputError("the captured code measures time, which a described device cannot tell")


class Properties:
    """`torch.cuda.get_device_properties` of the described device."""

    def __init__(self, device: Description) -> None:
        processor = device.target.processor
        self.name = device.name
        self.gcnArchName = str(device.target)
        self.multi_processor_count = device.units
        self.total_memory = device.memory
        self.warp_size = 64 if processor in _WAVE64 else 32
        self.major, self.minor = _capability(processor)
        self.shared_memory_per_block = _LDS.get(processor, 64 << 10)
        self.shared_memory_per_multiprocessor = self.shared_memory_per_block
        self.max_threads_per_block = 1024
        self.max_threads_per_multi_processor = 2048
        self.is_integrated = 0
        self.is_multi_gpu_board = 0

    def __getattr__(self, name: str) -> Any:
        raise InputError(f"the captured code asks for the device's {name}, which is not described")


def _capability(processor: str) -> tuple[int, int]:
    digits = processor.removeprefix("gfx")
    return int(digits[:-2]), int(digits[-2:-1], 16)


@contextmanager
def described_device(device: Description, *, data: bool = False) -> Iterator[None]:
    """Run code on the described device.

    Its tensors say they are there, and are fake ones without data (torch's `meta`), or with `data`
    ones in host memory, for code that reads values.
    """
    with described_answers(device), _DeviceTensors("cpu" if data else "meta"):
        yield


@contextmanager
def described_answers(device: Description) -> Iterator[None]:
    """Let torch.cuda answer for the described device; tensors are as ever."""
    with contextlib.ExitStack() as stack:
        for owner, name, value in _answers(device):
            stack.enter_context(mock.patch.object(owner, name, value, create=True))
        yield


def example_tensor(form: TensorForm) -> Any:
    """A tensor of a form whose extents and strides are numbers, on the described device."""
    kind = _TORCH_TYPES.get(form.dtype)
    dtype = getattr(torch, kind, None) if kind else None
    if dtype is None:
        raise InputError(
            f"argument {form.name}: torch {torch.__version__} has no tensors of {form.dtype}; "
            "captured code most often takes packed values as u8"
        )
    tensor = torch.empty_strided(form.shape, form.strides, dtype=dtype, device="cuda")
    return tensor.zero_()


def _answers(device: Description) -> Iterator[tuple[Any, str, Any]]:
    cuda = torch.cuda
    properties = Properties(device)
    stream = Stream()
    capability = (properties.major, properties.minor)
    values: dict[str, Any] = {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_properties": properties,
        "get_device_name": device.name,
        "get_device_capability": capability,
        "get_arch_list": [device.target.processor],
        "mem_get_info": (device.memory, device.memory),
        "memory_allocated": 0,
        "max_memory_allocated": 0,
        "memory_reserved": 0,
        "is_bf16_supported": True,
        "is_current_stream_capturing": False,
        "current_stream": stream,
        "default_stream": stream,
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
        **dict.fromkeys(("init", "_lazy_init", "synchronize", "set_device", "empty_cache")),
        **dict.fromkeys(("set_stream", "ipc_collect", "manual_seed", "manual_seed_all")),
        **dict.fromkeys(("reset_peak_memory_stats",)),
    }
    for name, value in values.items():
        yield cuda, name, _always(value)
    yield cuda, "Stream", Stream
    yield cuda, "ExternalStream", Stream
    yield cuda, "Event", Event
    yield cuda, "stream", _stream_context
    yield cuda, "device", _device_context
    yield torch.version, "hip", HIP_VERSION


def _always(value: Any) -> Any:
    return lambda *_, **__: value


def _stream_context(stream: Any) -> Any:
    return contextlib.nullcontext(stream)


class _device_context(contextlib.nullcontext[Any]):  # noqa: N801 - it stands for torch.cuda.device
    def __init__(self, device: Any) -> None:
        super().__init__(device)
        self.idx = 0


class ReadsValuesError(InputError):
    """Captured code decides by values of tensors."""

    def __init__(self) -> None:
        super().__init__(
            "the captured code reads values of a tensor, and fake tensors have none: add "
            "tensors: cpu for tensors of zeros, or capture a function that makes its own"
        )


class _Addresses:
    """An address for each tensor storage, aligned as hipMalloc does, for code that passes it on."""

    def __init__(self) -> None:
        self._by_storage: dict[int, int] = {}
        self._next = _ADDRESS
        self._kept: list[Any] = []

    def of(self, tensor: Any) -> int:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._by_storage:
            self._by_storage[storage._cdata] = self._next
            self._next += -(-max(storage.nbytes(), 1) // _ALIGNMENT) * _ALIGNMENT
            self._kept.append(storage)
        offset: int = tensor.storage_offset() * tensor.element_size()
        return self._by_storage[storage._cdata] + offset


_DEVICE = torch.device("cuda", 0)
_Tensor: Any = torch.Tensor
_READ_VALUES = [
    getattr(_Tensor, name)
    for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__")
]


class _DeviceTensors(TorchFunctionMode):
    """Makes tensors of kind `real` wherever the device is asked for, and lets them say they are.

    Torch would not make tensors of a device that it was not built for.
    """

    def __init__(self, real: str) -> None:
        super().__init__()
        self._real = torch.device(real)
        self._addresses = _Addresses()

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if args and isinstance(args[0], torch.Tensor) and args[0].device == self._real:
            answer = self._answer(func, args[0])
            if answer is not None:
                return answer
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        if func == _Tensor.cuda:
            return args[0].to(self._real)
        if func in (_Tensor.pin_memory, _Tensor.is_pinned):
            return args[0] if func == _Tensor.pin_memory else False
        named = {key: self._placed(value) for key, value in (kwargs or {}).items()}
        named.pop("pin_memory", None)
        try:
            return func(*map(self._placed, args), **named)
        except RuntimeError as error:
            # NotImplementedError is one; C++ code that reads a value says it in words only.
            reads = isinstance(error, NotImplementedError) or "meta tensors" in str(error)
            if self._real.type != "meta" or not reads:
                raise
            raise ReadsValuesError from None

    def _answer(self, func: Any, tensor: Any) -> Any:
        """What a tensor of the device answers instead of the real one, if that is something."""
        if func == _Tensor.device.__get__:
            return _DEVICE
        if func == _Tensor.is_cuda.__get__:
            return True
        if func in (_Tensor.is_cpu.__get__, _Tensor.is_meta.__get__):
            return False
        if func == _Tensor.get_device:
            return 0
        if func == _Tensor.data_ptr:
            return self._addresses.of(tensor)
        if func in _READ_VALUES and self._real.type == "meta":
            raise ReadsValuesError
        return None

    def _placed(self, value: Any) -> Any:
        """`value` with the device in it, if it names one, replaced."""
        if isinstance(value, torch.device):
            return self._real if value.type == "cuda" else value
        if isinstance(value, str) and value.partition(":")[0] == "cuda":
            return self._real
        return value
