"""Drives the HIP test device from Python: configure it, inject errors, read back launches."""

from __future__ import annotations

import ctypes
import sys
import traceback
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_uint8, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class HipCallError(Exception):
    """A HIP call that a test expected to succeed did not."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call} gave {name} ({code})")
        self.code = code


@dataclass(frozen=True)
class LaunchRecord:
    """One accepted kernel launch.

    `kernarg` holds the explicit arguments, with zeros between them; `kernarg_size` is the size of
    the whole segment, hidden arguments included. Sizes are in bytes, `grid` in workgroups.
    """

    sequence: int
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dynamic_lds: int
    static_lds: int
    stream: int
    graph_exec: int
    device: int
    cooperative: bool
    kernarg: bytes
    kernarg_size: int
    code_sha256: str
    module_id: int


@dataclass(frozen=True)
class RunningLaunch:
    """What a hook sees: the record, the whole kernarg segment and the loaded code object."""

    record: LaunchRecord
    segment: bytes
    code_object: bytes
    load_base: int
    load_size: int


class _Launch(ctypes.Structure):
    _fields_ = (
        ("sequence", c_uint64),
        ("module_id", c_uint64),
        ("stream", c_uint64),
        ("graph_exec", c_uint64),
        ("kernel", c_char_p),
        ("kernarg", c_void_p),
        ("code_object", c_void_p),
        ("code_object_size", c_uint64),
        ("load_base", c_void_p),
        ("load_size", c_uint64),
        ("code_sha256", c_uint8 * 32),
        ("grid", c_uint32 * 3),
        ("block", c_uint32 * 3),
        ("cluster", c_uint32 * 3),
        ("dynamic_lds", c_uint32),
        ("static_lds", c_uint32),
        ("kernarg_size", c_uint32),
        ("explicit_size", c_uint32),
        ("device", c_int32),
        ("cooperative", c_int32),
    )

    def record(self) -> LaunchRecord:
        return LaunchRecord(
            sequence=self.sequence,
            kernel=self.kernel.decode(),
            grid=(self.grid[0], self.grid[1], self.grid[2]),
            block=(self.block[0], self.block[1], self.block[2]),
            cluster=(self.cluster[0], self.cluster[1], self.cluster[2]),
            dynamic_lds=self.dynamic_lds,
            static_lds=self.static_lds,
            stream=self.stream,
            graph_exec=self.graph_exec,
            device=self.device,
            cooperative=bool(self.cooperative),
            kernarg=ctypes.string_at(self.kernarg, self.explicit_size),
            kernarg_size=self.kernarg_size,
            code_sha256=bytes(self.code_sha256).hex(),
            module_id=self.module_id,
        )


_Hook = ctypes.CFUNCTYPE(c_int, POINTER(_Launch), c_void_p)

_COUNTERS = (
    "hiptest_launch_count",
    "hiptest_function_count",
    "hiptest_function_calls",
    "hiptest_live_modules",
    "hiptest_live_allocations",
    "hiptest_live_streams",
)


class HipTestDevice:
    """The test device in this process. The library's state is global: one instance at a time.

    `path` is the library that `build` made. A library that is already loaded under that path,
    by the loader or by FlyDSL's runtime, is the same one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        for name in _COUNTERS:
            self._library[name].restype = c_uint64
        self._library.hiptest_function_name.restype = c_char_p
        self._library.hipGetErrorName.restype = c_char_p
        self._library.hipGetErrorString.restype = c_char_p
        self._hook: Any = None

    # HIP itself

    def call(self, name: str, *args: Any) -> int:
        """The error code of one HIP call. Integers are passed with 64 bits."""
        wide = (c_uint64(arg) if type(arg) is int else arg for arg in args)
        return int(self._library[name](*wide))

    def check(self, name: str, *args: Any) -> None:
        """A HIP call that has to succeed; otherwise `HipCallError`."""
        code = self.call(name, *args)
        if code != 0:
            raise HipCallError(name, code, self.error_name(code))

    def create(self, name: str, *args: Any) -> int:
        """The handle or pointer that a HIP call stores through its first argument."""
        result = c_void_p()
        self.check(name, byref(result), *args)
        return result.value or 0

    def error_name(self, code: int) -> str:
        return str(self._library.hipGetErrorName(code).decode())

    def error_string(self, code: int) -> str:
        return str(self._library.hipGetErrorString(code).decode())

    # Configuration

    def configure(self, *targets: str) -> None:
        """Start again with these devices, such as "gfx942:sramecc+:xnack-"; none means none."""
        self.forget_hook()
        if self._library.hiptest_configure(",".join(targets).encode()) != 0:
            raise ValueError(f"the HIP test device cannot model {', '.join(targets)}")

    def reset(self) -> None:
        """Back to the state after loading: devices of HIPTEST_DEVICES, nothing allocated."""
        self.forget_hook()
        self._library.hiptest_reset()

    def set_memory(self, device: int, size: int) -> None:
        """The device's memory in bytes."""
        if self._library.hiptest_set_memory(device, c_uint64(size)) != 0:
            raise ValueError(f"device {device} cannot have {size} bytes of memory")

    def require_init(self, required: bool) -> None:
        """Whether module loading needs an earlier hipInit (303 otherwise)."""
        self._library.hiptest_require_init(int(required))

    def set_recording(self, enabled: bool) -> None:
        """Without recording and hook, a launch checks little more than null pointers."""
        self._library.hiptest_set_recording(int(enabled))

    def set_hook(self, hook: Callable[[RunningLaunch], int]) -> None:
        """Call `hook` for every accepted launch; its result is the HIP error of the launch.

        An exception in it is printed and makes the launch fail with hipErrorUnknown (999).
        """

        def call(launch: Any, _context: Any) -> int:
            seen = launch.contents
            running = RunningLaunch(
                record=seen.record(),
                segment=ctypes.string_at(seen.kernarg, seen.kernarg_size),
                code_object=ctypes.string_at(seen.code_object, seen.code_object_size),
                load_base=seen.load_base,
                load_size=seen.load_size,
            )
            try:
                return hook(running)
            except Exception:
                traceback.print_exc(file=sys.stderr)
                return 999

        self._hook = _Hook(call)
        self._library.hiptest_set_hook(self._hook, None)

    def forget_hook(self) -> None:
        self._library.hiptest_set_hook(None, None)
        self._hook = None

    # Failures

    def fail(self, name: str, code: int, *, nth: int = 1, repeat: bool = False) -> None:
        """Let the nth call of `name` from now on fail, or every call from the nth."""
        self._library.hiptest_fail(name.encode(), c_uint64(nth), code, int(repeat))

    def set_sticky(self, code: int) -> None:
        """Let every later call fail, as after a fault on the device."""
        self._library.hiptest_set_sticky(code)

    def lose_device(self, device: int, code: int = 719) -> None:
        """Let every call that concerns the device fail."""
        if self._library.hiptest_lose_device(device, code) != 0:
            raise ValueError(f"there is no device {device} to lose")

    def clear_failures(self) -> None:
        self._library.hiptest_clear_failures()

    # What happened

    def launches(self) -> tuple[LaunchRecord, ...]:
        """The recorded launches, in order of acceptance."""
        records = []
        for index in range(self._library.hiptest_launch_count()):
            launch = _Launch()
            self._library.hiptest_get_launch(c_uint64(index), byref(launch))
            records.append(launch.record())
        return tuple(records)

    def take_launches(self) -> tuple[LaunchRecord, ...]:
        """The recorded launches, which are then forgotten."""
        records = self.launches()
        self._library.hiptest_clear_launches()
        return records

    def calls(self) -> dict[str, int]:
        """How often each HIP function was called since the last reset."""
        counts = {}
        for index in range(self._library.hiptest_function_count()):
            count = self._library.hiptest_function_calls(c_uint64(index))
            if count:
                counts[self._library.hiptest_function_name(c_uint64(index)).decode()] = count
        return counts

    def find_allocation(self, address: int) -> tuple[int, int] | None:
        """Base and size of the allocation that holds an address, code objects included."""
        base, size = c_void_p(), c_uint64()
        code = self._library.hiptest_find_allocation(c_void_p(address), byref(base), byref(size))
        return None if code else (base.value or 0, size.value)

    def live_modules(self) -> int:
        return int(self._library.hiptest_live_modules())

    def live_allocations(self) -> int:
        return int(self._library.hiptest_live_allocations())

    def live_streams(self) -> int:
        return int(self._library.hiptest_live_streams())
