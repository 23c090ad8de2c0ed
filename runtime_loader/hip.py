"""HIP: the runtime library bound with ctypes; each failed call is an exception that says why."""

from __future__ import annotations

import ctypes
import os
from _thread import allocate_lock
from ctypes import POINTER, c_char, c_char_p, c_int, c_size_t, c_uint, c_void_p

from runtime_loader import hip_library
from runtime_loader.device_properties import arch_name
from runtime_loader.errors import HipError, HipUnavailableError
from runtime_loader.evaluate import ConcreteLaunch
from runtime_loader.target import Target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LIBRARY_VARIABLE = hip_library.VARIABLE
SYNC_VARIABLE = "FLYC_SYNC"

_NO_DEVICE = 100  # hipErrorNoDevice
_NO_DEVICE_HELP = (
    "Is the amdgpu driver loaded, may this user open /dev/kfd and /dev/dri, and does "
    "HIP_VISIBLE_DEVICES name a device?"
)

# hip_runtime_api.h: HIP_LAUNCH_PARAM_*.
_BUFFER_POINTER, _BUFFER_SIZE, _PARAMS_END = 1, 2, 3
# hipStreamLegacy and hipStreamPerThread belong to whichever device is current.
_LAST_SPECIAL_STREAM = 2
# hipErrorStreamCaptureImplicit: the default stream would wait for one that is being captured.
_CAPTURE_IMPLICIT = 906

_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "hipInit": (c_uint,),
    "hipRuntimeGetVersion": (POINTER(c_int),),
    "hipGetDeviceCount": (POINTER(c_int),),
    "hipGetDevice": (POINTER(c_int),),
    "hipSetDevice": (c_int,),
    "hipGetDevicePropertiesR0600": (c_void_p, c_int),
    "hipGetDeviceProperties": (c_void_p, c_int),
    "hipDeviceSynchronize": (),
    "hipModuleLoadData": (POINTER(c_void_p), c_void_p),
    "hipModuleUnload": (c_void_p,),
    "hipModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "hipStreamGetDevice": (c_void_p, POINTER(c_int)),
    "hipStreamIsCapturing": (c_void_p, POINTER(c_int)),
    "hipStreamSynchronize": (c_void_p,),
    "hipThreadExchangeStreamCaptureMode": (POINTER(c_int),),
    "hipModuleLaunchKernel": (c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p),
    "hipModuleLaunchCooperativeKernel": (c_void_p, *[c_uint] * 7, c_void_p, c_void_p),
    "hipDrvLaunchKernelEx": (c_void_p, c_void_p, c_void_p, c_void_p),
}


class Device:
    """A GPU as HIP numbers it; `target` is its `gcnArchName`."""

    __slots__ = ("ordinal", "target")

    def __init__(self, ordinal: int, target: Target) -> None:
        self.ordinal = ordinal
        self.target = target

    def __str__(self) -> str:
        return f"device {self.ordinal} ({self.target})"


# How many forks are between this process and the one that imported this; cheaper than asking for
# its number at each launch.
_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class Hip:
    """An initialised HIP runtime. `path` is the library as it was found; if `synchronous`, each
    launch waits for its end.

    Every method raises `HipError` with what was being done when a call fails, and
    `HipUnavailableError` when there is no device, or in a child that was forked after HIP was
    initialised.
    """

    synchronous = False

    def __init__(self, library: ctypes.CDLL, path: str) -> None:
        self.path = path
        self._library = library
        self._calls: dict[str, Any] = {}
        self._devices: dict[int, Device] = {}
        self._count: int | None = None
        self._error_name = self._text_function("hipGetErrorName")
        self._error_string = self._text_function("hipGetErrorString")
        self._launch_kernel = self._function("hipModuleLaunchKernel")
        self._launch_plainly = self._symbol("hipModuleLaunchKernel")
        self._launch_plainly.restype = c_int
        self._spare_buffers: dict[int, list[_ArgumentBuffer]] = {}
        self._get_device = self._function("hipGetDevice")
        self._pid, self._forks = os.getpid(), _forks
        code = self._function("hipInit")(0)
        if code:
            raise HipUnavailableError(
                f"HIP has no usable device: hipInit failed with {self._name(code)} ({code}: "
                f"{self._text(code)}) in {path}. {_NO_DEVICE_HELP}"
            )

    def version(self) -> int:
        """The number that hipRuntimeGetVersion gives, such as 70051831 for HIP 7.0."""
        value = c_int()
        self.call("hipRuntimeGetVersion", "asking for HIP's version", ctypes.byref(value))
        return value.value

    def device_count(self) -> int:
        count = c_int()
        self.call("hipGetDeviceCount", "counting devices", ctypes.byref(count))
        return count.value

    def current_device(self) -> int:
        """The ordinal of the calling thread's current device."""
        self.check_process()
        ordinal = c_int()
        code = self._get_device(ctypes.byref(ordinal))
        if code:
            raise self.error("hipGetDevice", code, "asking for the current device")
        return ordinal.value

    def set_device(self, ordinal: int) -> None:
        self.call("hipSetDevice", f"making device {ordinal} current", ordinal)

    def device(self, ordinal: int | None = None) -> Device:
        """The device of that ordinal, by default the current one."""
        if ordinal is None:
            ordinal = self.current_device()
        known = self._devices.get(ordinal)
        if known is not None:
            return known
        count = self.device_count()
        if not 0 <= ordinal < count:
            raise HipUnavailableError(f"there is no device {ordinal}: HIP has {count} device(s)")
        device = Device(ordinal, Target.parse(arch_name(self, ordinal)))
        self._devices[ordinal] = device
        return device

    def load_module(self, image: bytes | memoryview, doing: str) -> int:
        """Load a code object on the current device.

        HIP keeps reading `image` (ROCm/clr: the program is added without a copy), so it must stay
        alive, unmoved, as long as the module.
        """
        where: bytes | int
        if isinstance(image, memoryview):
            from runtime_loader.buffers import address_of

            where = address_of(image)
        else:
            where = image
        module = c_void_p()
        self.call("hipModuleLoadData", doing, ctypes.byref(module), where)
        return self._handle(module, "hipModuleLoadData", doing)

    def unload_module(self, module: int, doing: str) -> None:
        self.call("hipModuleUnload", doing, module)

    def synchronise(self, doing: str) -> None:
        """Wait for all work of the current device."""
        self.call("hipDeviceSynchronize", doing)

    def function(self, module: int, symbol: str, doing: str) -> int:
        """The handle of a kernel in a module."""
        function = c_void_p()
        self.call("hipModuleGetFunction", doing, ctypes.byref(function), module, symbol.encode())
        return self._handle(function, "hipModuleGetFunction", doing)

    def stream_device(self, stream: int) -> int | None:
        """The ordinal of the device that a stream belongs to; None when it follows the thread's
        current device, or when this HIP cannot tell."""
        if stream <= _LAST_SPECIAL_STREAM or not self.has("hipStreamGetDevice"):
            return None
        ordinal = c_int()
        self.call("hipStreamGetDevice", f"using stream {stream:#x}", stream, ctypes.byref(ordinal))
        return ordinal.value

    def is_captured(self, stream: int) -> bool:
        """Whether launches on a stream go into a graph; of the default stream, whether any stream
        is being captured that waits for it."""
        if not self.has("hipStreamIsCapturing"):
            return False
        self.check_process()
        status = c_int()
        code = self._function("hipStreamIsCapturing")(stream, ctypes.byref(status))
        if code and code != _CAPTURE_IMPLICIT:
            raise self.error("hipStreamIsCapturing", code, f"using stream {stream:#x}")
        return bool(code or status.value)

    def launch(
        self, function: int, launch: ConcreteLaunch, offsets: tuple[int, ...], doing: str
    ) -> None:
        """Launch one kernel; `offsets` are those of its parameters in the packed kernarg."""
        if launch.cluster is None and not launch.cooperative:
            size = (*launch.grid, *launch.block, launch.lds)
            self.launch_packed(function, size, launch.stream, launch.kernarg, doing)
        else:
            self.launch_with_attributes(function, launch, offsets, doing)

    def launch_with_attributes(
        self, function: int, launch: ConcreteLaunch, offsets: tuple[int, ...], doing: str
    ) -> None:
        """A launch with clusters, or a cooperative one."""
        from runtime_loader.launch_attributes import launch_with_attributes  # few kernels need it

        launch_with_attributes(self, function, launch, offsets, doing)

    def launch_packed(
        self, function: int, size: tuple[int, ...], stream: int, kernarg: bytes, doing: str
    ) -> None:
        """A plain launch; `size` is grid, block and dynamic LDS."""
        spare = self._spare_buffers.setdefault(len(kernarg), [])
        try:
            buffer = spare.pop()  # for this launch alone: other threads launch meanwhile
        except IndexError:
            buffer = _ArgumentBuffer(len(kernarg))
        buffer.bytes.raw = kernarg
        # Without a prototype numbers go as they are (c_uint), at half the cost of the call.
        on = c_void_p(stream) if stream else None
        code = self._launch_plainly(c_void_p(function), *size, on, None, buffer.extra)
        spare.append(buffer)
        if code:
            raise self.error("hipModuleLaunchKernel", code, doing)

    def launch_addresses(self, captures: bool) -> tuple[int, int, int, int]:
        """Where hipModuleLaunchKernel, hipGetDevice, hipStreamGetDevice and hipStreamIsCapturing
        are.

        The second and third are 0 when there is nothing to ask: with one device, everything is on
        it. The last is 0 unless `captures` matter.
        """
        launch = _address(self._launch_kernel)
        is_capturing = self._address_if_there("hipStreamIsCapturing") if captures else 0
        if self.single_device():
            return launch, 0, 0, is_capturing
        stream_device = self._address_if_there("hipStreamGetDevice")
        return launch, _address(self._get_device), stream_device, is_capturing

    def single_device(self) -> bool:
        """Whether the process has one device, so that no current device can be another."""
        if self._count is None:
            self._count = self.device_count()
        return self._count == 1

    def check_process(self) -> None:
        """Refuse to go on in a child process that inherited an initialised HIP: it cannot work."""
        if _forks != self._forks:
            raise HipUnavailableError(
                f"HIP was initialised in process {self._pid}, which then forked this one "
                f"({os.getpid()}); HIP does not survive a fork. Start the process with the "
                "'spawn' or 'forkserver' method, or fork before the first kernel is loaded"
            )

    def error(self, call: str, code: int, doing: str) -> HipError | HipUnavailableError:
        """What to raise for a failed call."""
        error = HipError(call, code, self._name(code), self._text(code), doing)
        if code == _NO_DEVICE:
            return HipUnavailableError(f"HIP has no device: {error}. {_NO_DEVICE_HELP}")
        return error

    def has(self, name: str) -> bool:
        """Whether the library has a function."""
        return hasattr(self._library, name)

    def call(self, name: str, doing: str, *args: Any) -> None:
        """Call a function of HIP. Raises `HipError`: it failed while `doing` this."""
        self.check_process()
        code = self._function(name)(*args)
        if code:
            raise self.error(name, code, doing)

    def _function(self, name: str) -> Any:
        function = self._calls.get(name)
        if function is None:
            function = self._symbol(name)
            function.restype = c_int
            function.argtypes = _PROTOTYPES[name]
            self._calls[name] = function
        return function

    def _address_if_there(self, name: str) -> int:
        return _address(self._function(name)) if self.has(name) else 0

    def _text_function(self, name: str) -> Any:
        function = self._symbol(name)
        function.restype = c_char_p
        function.argtypes = (c_int,)
        return function

    def _symbol(self, name: str) -> Any:
        try:
            return self._library[name]
        except AttributeError:
            raise HipUnavailableError(
                f"{self.path} has no symbol {name}: it is not a HIP runtime, or one too old for "
                "this kernel"
            ) from None

    def _name(self, code: int) -> str:
        return (self._error_name(code) or b"an unnamed error").decode(errors="replace")

    def _text(self, code: int) -> str:
        return (self._error_string(code) or b"no description").decode(errors="replace")

    def _handle(self, handle: c_void_p, call: str, doing: str) -> int:
        if not handle.value:
            raise HipError(call, 0, "hipSuccess", "but no handle", doing)
        return handle.value


class _ArgumentBuffer:
    """Room for one launch's packed arguments, and the `extra` array that says so to HIP."""

    __slots__ = ("_size", "bytes", "extra")

    def __init__(self, size: int) -> None:
        self.bytes = (c_char * size)()
        self._size = c_size_t(size)
        self.extra = (c_void_p * 5)(
            *(_BUFFER_POINTER, ctypes.addressof(self.bytes)),
            *(_BUFFER_SIZE, ctypes.addressof(self._size), _PARAMS_END),
        )


def _address(function: Any) -> int:
    return ctypes.cast(function, c_void_p).value or 0


_lock = allocate_lock()
_runtime: Hip | None = None


def runtime() -> Hip:
    """This process's HIP, initialised by the first call. Raises `HipUnavailableError`."""
    global _runtime
    if _runtime is None:
        with _lock:
            if _runtime is None:
                _runtime = _kind()(*hip_library.find_library())
    return _runtime


def _kind() -> type[Hip]:
    if os.environ.get(SYNC_VARIABLE, "0") in ("", "0"):
        return Hip
    from runtime_loader.synchronous import SynchronousHip  # for hunting faults

    return SynchronousHip
