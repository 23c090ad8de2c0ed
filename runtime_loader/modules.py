"""Loaded code objects: one HIP module for each (content, device), whoever asks for it first.

Modules stay loaded as long as the process, because a captured graph may hold their kernels. Those
that were only ever loaded with `keep=False`, and of which no launch was captured, may be unloaded
once nothing refers to their functions any more (`unload_unused`).
"""

from __future__ import annotations

from _thread import allocate_lock
from _weakref import ref

from runtime_loader.capture import (
    and_back,
    known_capture,
    refuse_capture,
    refused_by_hip,
    undisturbed,
)
from runtime_loader.code_object import CodeObject, CodeObjectError, read_code_object
from runtime_loader.errors import BundleError, HipError, HipUnavailableError
from runtime_loader.hip import Device, Hip
from runtime_loader.post_load import post_load_functions
from runtime_loader.records import dataclass
from runtime_loader.specialisation import KernargLayout, Specialisation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Module:
    """A code object on a device, and the function handles that have been asked of it."""

    def __init__(self) -> None:
        self.lock = allocate_lock()
        self.kept = False  # for ever, whatever refers to it
        self.users: dict[int, ref[Functions]] = {}  # by id; none are counted once it is kept
        self.lent = 0  # how often it got a user
        self.forget()

    def forget(self) -> None:
        """As nothing loaded."""
        self.image: bytes | memoryview = b""  # HIP reads it as long as the module lives
        self.code_object: CodeObject | None = None
        self.handle = 0
        self.functions: dict[str, int] = {}
        self.post_loaded: set[str] = set()

    def is_unused(self) -> bool:
        """Whether it is loaded for nobody any more."""
        return self.handle != 0 and not self.kept and not self.users

    def lend(self, handles: Sequence[int]) -> Functions:
        """These handles, as a use of the module for as long as they live."""
        functions = Functions(self, handles)
        if not self.kept:
            self.lent += 1
            number, users = id(functions), self.users
            users[number] = ref(functions, lambda _: users.pop(number, None))
        return functions


class Functions(list[int]):
    """The handles of a specialisation's kernels, valid as long as this object lives."""

    __slots__ = ("__weakref__", "_module")

    def __init__(self, module: Module, handles: Sequence[int]) -> None:
        super().__init__(handles)
        self._module = module

    def keep(self) -> None:
        """Never unload the module: a graph holds its kernels."""
        self._module.kept = True


@dataclass(frozen=True)
class Unloaded:
    """What `unload_unused` did: `modules` that it unloaded, their `size` in bytes, and those that
    it could not unload, each with the reason."""

    modules: int
    size: int
    failed: tuple[str, ...]


_modules: dict[tuple[Hip, str, int], Module] = {}
_modules_lock = allocate_lock()


def load_functions(
    hip: Hip,
    device: Device,
    spec: Specialisation,
    image: Callable[[], bytes | memoryview],
    *,
    keep: bool = True,
    stream: int = 0,
) -> Functions:
    """The function handles of a specialisation's kernels on a device, loading what is needed.

    `image` gives the verified bytes of its code object; it is called by the first thread that
    needs them. The kernarg layouts of the specialisation are checked against the code object's
    own metadata before HIP sees it, and its post-load functions have run on the module afterwards.
    With `keep=False` the module may be unloaded once no such handles are in use. `stream` is the
    one to be launched on, if that is known: nothing is loaded while it is captured.
    Raises `BundleError`, `CaptureError`, `PostLoadError` and `HipError`.
    """
    hip.check_process()
    key = (hip, spec.code_object, device.ordinal)
    with _modules_lock:
        module = _modules.setdefault(key, Module())
    with module.lock:
        if module.code_object is None:
            module.image = image()
            module.code_object = _parse(module.image, spec)
        _check(module.code_object, spec)
        symbols = [kernel.symbol for kernel in spec.kernels]
        missing = [symbol for symbol in symbols if symbol not in module.functions]
        hooks = post_load_functions(spec.post_load, spec.label()) if spec.post_load else []
        if missing:
            try:
                _on_device(hip, device, lambda: _load(hip, device, spec, module, missing, stream))
            except HipError as error:
                from runtime_loader.faults import with_fault

                raise with_fault(error, hip, device) from None
        for name, function in hooks:
            if name not in module.post_loaded:
                _on_device(hip, device, _call(function, module.handle))
                module.post_loaded.add(name)
        module.kept = module.kept or keep
        return module.lend([module.functions[symbol] for symbol in symbols])


def unload_unused(hip: Hip) -> Unloaded:
    """Unload the modules whose functions nothing uses, nor any graph, once their work is done.

    Waits once for each device that has such modules; launches may go on meanwhile. HIP does not
    wait during a capture, whichever thread captures, and trying ends the capture: where a capture
    is known, nothing is unloaded. A module that is not unloaded stays, for the next attempt.
    """
    hip.check_process()
    with _modules_lock:
        known = [(key, module) for key, module in _modules.items() if key[0] is hip]
    unused: dict[int, list[tuple[Module, int]]] = {}
    for (_, _, ordinal), module in known:
        with module.lock:
            if module.is_unused():
                unused.setdefault(ordinal, []).append((module, module.lent))
    sizes: list[int] = []
    failed: list[str] = []
    for ordinal, modules in unused.items():
        try:
            _unload(hip, hip.device(ordinal), modules, sizes, failed)
        except (HipError, HipUnavailableError) as error:
            failed.append(str(error))
    return Unloaded(len(sizes), sum(sizes), tuple(failed))


def _unload(
    hip: Hip,
    device: Device,
    modules: Sequence[tuple[Module, int]],
    sizes: list[int],
    failed: list[str],
) -> None:
    """Unload modules, given with how often they had been lent when nothing used them."""

    told = known_capture(hip, device)
    if told is not None:
        failed.append(f"nothing is unloaded from {device} during a stream capture ({told} tells)")
        return

    def unload() -> None:
        hip.synchronise(f"waiting for {device} before unloading from it")
        for module, lent in modules:
            with module.lock:
                if not module.is_unused() or module.lent != lent:  # launched since
                    continue
                try:
                    hip.unload_module(module.handle, f"unloading a code object from {device}")
                except HipError as error:
                    failed.append(str(error))
                    continue
                sizes.append(len(module.image))
                module.forget()

    undisturbed(hip, lambda: _on_device(hip, device, unload))


def _call(function: Callable[[int], object], handle: int) -> Callable[[], None]:
    def call() -> None:
        function(handle)

    return call


def _load(
    hip: Hip,
    device: Device,
    spec: Specialisation,
    module: Module,
    symbols: Sequence[str],
    stream: int,
) -> None:
    where = f"{spec.code_object[:16]} of {spec.label()} on {device}"
    if not module.handle:
        refuse_capture(hip, device, stream, f"{spec.label()} on {device}")
        try:
            module.handle = hip.load_module(module.image, f"loading code object {where}")
        except HipError as error:
            raise refused_by_hip(error, f"{spec.label()} on {device}") from None
    for symbol in symbols:
        module.functions[symbol] = hip.function(
            module.handle, symbol, f"finding kernel {symbol} in code object {where}"
        )


def _on_device(hip: Hip, device: Device, action: Callable[[], object]) -> None:
    """Run `action` with `device` current, and make the caller's device current again."""
    before = hip.current_device()
    if before == device.ordinal:
        action()
        return
    hip.set_device(device.ordinal)
    and_back(action, lambda: hip.set_device(before))


def _parse(image: bytes | memoryview, spec: Specialisation) -> CodeObject:
    try:
        return read_code_object(image)
    except CodeObjectError as error:
        raise BundleError(f"{spec.label()}: {error}") from None


def _check(code_object: CodeObject, spec: Specialisation) -> None:
    if code_object.target != spec.target:
        raise BundleError(
            f"{spec.label()}: its code object {spec.code_object[:16]} is for {code_object.target}"
        )
    for kernel in spec.kernels:
        metadata = code_object.kernels.get(kernel.symbol)
        if metadata is None:
            raise BundleError(
                f"{spec.label()}: its code object {spec.code_object[:16]} has no kernel "
                f"{kernel.symbol}; it has {', '.join(code_object.kernels) or 'none'}"
            )
        if metadata.kernarg != kernel.kernarg:
            raise BundleError(
                f"{spec.label()}: the bundle and the code object disagree about the arguments of "
                f"{kernel.symbol}: {_layout(kernel.kernarg)}; {_layout(metadata.kernarg)}"
            )


def _layout(layout: KernargLayout) -> str:
    params = ", ".join(f"{p.size} bytes at {p.offset} ({p.kind})" for p in layout.params)
    return f"[{params}] in {layout.size} of {layout.segment_size} bytes"
