"""Loaded code objects: one HIP module for each (content, device), whoever asks for it first.

Modules stay loaded as long as the process: a captured graph may hold their kernels.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable, Sequence

from runtime_loader.code_object import CodeObject, CodeObjectError, read_code_object
from runtime_loader.errors import BundleError
from runtime_loader.hip import Device, Hip
from runtime_loader.post_load import post_load_functions
from runtime_loader.specialisation import KernargLayout, Specialisation


class Module:
    """A code object on a device, and the function handles that have been asked of it."""

    def __init__(self) -> None:
        self.lock = allocate_lock()
        self.image = b""  # HIP reads it as long as the module lives
        self.code_object: CodeObject | None = None
        self.handle = 0
        self.functions: dict[str, int] = {}
        self.post_loaded: set[str] = set()


_modules: dict[tuple[Hip, str, int], Module] = {}
_modules_lock = allocate_lock()


def load_functions(
    hip: Hip, device: Device, spec: Specialisation, image: Callable[[], bytes | memoryview]
) -> list[int]:
    """The function handles of a specialisation's kernels on a device, loading what is needed.

    `image` gives the verified bytes of its code object; it is called by the first thread that
    needs them. The kernarg layouts of the specialisation are checked against the code object's
    own metadata before HIP sees it, and its post-load functions have run on the module afterwards.
    Raises `BundleError`, `PostLoadError` and `HipError`.
    """
    hip.check_process()
    key = (hip, spec.code_object, device.ordinal)
    with _modules_lock:
        module = _modules.setdefault(key, Module())
    with module.lock:
        if module.code_object is None:
            module.image = bytes(image())
            module.code_object = _parse(module.image, spec)
        _check(module.code_object, spec)
        symbols = [kernel.symbol for kernel in spec.kernels]
        missing = [symbol for symbol in symbols if symbol not in module.functions]
        hooks = post_load_functions(spec.post_load, spec.label()) if spec.post_load else []
        if missing:
            _on_device(hip, device, lambda: _load(hip, device, spec, module, missing))
        for name, function in hooks:
            if name not in module.post_loaded:
                _on_device(hip, device, _call(function, module.handle))
                module.post_loaded.add(name)
        return [module.functions[symbol] for symbol in symbols]


def _call(function: Callable[[int], object], handle: int) -> Callable[[], None]:
    def call() -> None:
        function(handle)

    return call


def _load(
    hip: Hip, device: Device, spec: Specialisation, module: Module, symbols: Sequence[str]
) -> None:
    where = f"{spec.code_object[:16]} of {spec.label()} on {device}"
    if not module.handle:
        module.handle = hip.load_module(module.image, f"loading code object {where}")
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
    try:
        action()
    finally:
        hip.set_device(before)


def _parse(image: bytes, spec: Specialisation) -> CodeObject:
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
