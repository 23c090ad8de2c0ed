"""Binds launch arguments to host slots, checking all that the specialisation was compiled for."""

from __future__ import annotations

from ctypes import c_void_p

from runtime_loader.element_types import ELEMENT_TYPES
from runtime_loader.errors import ArgumentError
from runtime_loader.hip import Device
from runtime_loader.scalars import packer
from runtime_loader.signature import (
    Form,
    PointerForm,
    ScalarForm,
    StreamForm,
    StructForm,
    TensorForm,
)
from runtime_loader.tensor_view import View, accepted_dtypes, dtype_name, view_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, TypeAlias

# Checks one value and appends its slots, as unsigned bit patterns.
_Bind: TypeAlias = "Callable[[object, list[int]], None]"

_POINTER_MASK = (1 << 64) - 1
_MAX_EXTENT = (1 << 31) - 1
_MISSING = object()


class Binder:
    """A signature made ready for one device; `bind` gives the slots of one call's arguments.

    `label` names the specialisation in errors.
    """

    def __init__(self, signature: Sequence[Form], label: str, device: Device) -> None:
        self._label = label
        self._names = [form.name for form in signature]
        self._streams = {form.name for form in signature if isinstance(form, StreamForm)}
        self._defaults = dict(_defaults(signature))
        # One for each argument; each checks a value and appends its slots.
        self.binds = [_binder(form, _Argument(label, form.name, device)) for form in signature]

    def bind(self, args: tuple[object, ...], named: Mapping[str, object]) -> list[int]:
        """Arguments in the order of the signature, or by name; what has a default, and a stream,
        may be left out.

        Raises `ArgumentError` for a wrong count or name, and for the first value that does not
        fit.
        """
        slots: list[int] = []
        if named or len(args) != len(self.binds):
            values = self.place(args, named)
            self._check_complete(values)
            for place, (bind, name) in enumerate(zip(self.binds, self._names, strict=True)):
                if place in values:
                    bind(values[place], slots)
                else:
                    slots += self._defaults[name]
            return slots
        for bind, value in zip(self.binds, args, strict=True):
            bind(value, slots)
        return slots

    def place(self, args: tuple[object, ...], named: Mapping[str, object]) -> dict[int, object]:
        """Which of the arguments, by place, have which value. Raises `ArgumentError`."""
        if len(args) > len(self._names):
            raise self._wrong(f"{len(args)} arguments were given")
        values = dict(enumerate(args))
        for name, value in named.items():
            if name not in self._names:
                from runtime_loader.nearest import did_you_mean

                raise self._wrong(f"it has no argument {name!r}{did_you_mean(name, self._names)}")
            place = self._names.index(name)
            if place in values:
                raise self._wrong(f"argument {name!r} was given twice, by position and by name")
            values[place] = value
        return values

    def _check_complete(self, values: Mapping[int, object]) -> None:
        missing = [
            name
            for place, name in enumerate(self._names)
            if place not in values and name not in self._defaults
        ]
        if missing:
            raise self._wrong(f"missing: {', '.join(missing)}")

    def _wrong(self, found: str) -> ArgumentError:
        shown = dict.fromkeys(self._defaults, "=...") | dict.fromkeys(self._streams, "=None")
        wanted = [name + shown.get(name, "") for name in self._names]
        return ArgumentError(f"{self._label} takes ({', '.join(wanted)}); {found}")


def _defaults(signature: Sequence[Form]) -> Iterator[tuple[str, list[int]]]:
    """The arguments that may be left out, with the slots that each then has."""
    for form in signature:
        slots = _default_slots(form)
        if slots is not None:
            yield form.name, slots


def _default_slots(form: Form) -> list[int] | None:
    if isinstance(form, StreamForm):
        return [0]
    if isinstance(form, (PointerForm, ScalarForm)):
        return None if form.default is None else [form.default]
    if isinstance(form, TensorForm):
        return None
    slots: list[int] = []
    for field in form.fields:
        inner = _default_slots(field)
        if inner is None:
            return None
        slots += inner
    return slots


def slot_names(form: Form, prefix: str = "") -> list[str]:
    """What each slot of a form holds, for messages: `x`, `x.shape[0]`, `x.stride[0]`, `cfg.n`."""
    name = prefix + form.name
    if isinstance(form, StructForm):
        return [slot for field in form.fields for slot in slot_names(field, f"{name}.")]
    if isinstance(form, TensorForm):
        extents = [f"{name}.shape[{axis}]" for axis, extent in enumerate(form.shape) if extent < 0]
        strides = [f"{name}.stride[{axis}]" for axis, leaf in enumerate(form.strides) if leaf < 0]
        return [name, *extents, *strides]
    return [name]


class _Argument:
    """What errors about one argument say of it; `path` is its name, dotted inside a struct."""

    def __init__(self, label: str, path: str, device: Device) -> None:
        self.label = label
        self.path = path
        self.device = device

    def field(self, name: str) -> _Argument:
        return _Argument(self.label, f"{self.path}.{name}", self.device)

    def error(self, wanted: str, found: str) -> ArgumentError:
        return ArgumentError(
            f"{self.label}: argument {self.path!r}: wanted {wanted}, found {found}"
        )


def _binder(form: Form, argument: _Argument) -> _Bind:
    if isinstance(form, TensorForm):
        return _tensor_binder(form, argument)
    if isinstance(form, PointerForm):
        return _pointer_binder(form, argument)
    if isinstance(form, ScalarForm):
        return _scalar_binder(form, argument)
    if isinstance(form, StreamForm):
        return _stream_binder(argument)
    return _struct_binder(form, argument)


def _tensor_binder(form: TensorForm, argument: _Argument) -> _Bind:
    accepted = accepted_dtypes(ELEMENT_TYPES[form.dtype])
    ordinal = argument.device.ordinal
    extents = form.shape
    rank = len(extents)
    static = all(leaf >= 0 for leaf in (*form.shape, *form.strides))
    dynamic_extents = [axis for axis, extent in enumerate(extents) if extent < 0]
    dynamic_strides = [axis for axis, stride in enumerate(form.strides) if stride < 0]
    stride_limit = 1 << (form.stride_bits - 1)
    stride_mask = (1 << form.stride_bits) - 1
    empty_when_raw = 0 in extents

    def bind(value: object, slots: list[int]) -> None:
        raw = _plain_pointer(value)
        if raw is not None:
            if not static:
                raise argument.error(_describe(form), f"the bare pointer {raw:#x}, without a shape")
            _check_pointer(raw, form.align, empty_when_raw, argument)
            slots.append(raw)
            return
        view = _view(value, _describe, form, argument)
        if view.place is not None and view.place != ordinal:
            raise _wrong_place(view.place, argument)
        if view.dtype not in accepted:
            raise argument.error(f"elements of {form.dtype}", dtype_name(view.dtype))
        shape, strides = view.shape, view.strides
        if len(shape) != rank:
            raise argument.error(
                f"{rank} dimension(s), {_describe(form)}", f"{len(shape)}: shape {shape}"
            )
        empty = 0 in shape
        for axis, wanted in enumerate(extents):
            extent = shape[axis]
            if extent != wanted and (wanted >= 0 or extent % -wanted or extent > _MAX_EXTENT):
                raise argument.error(
                    f"shape[{axis}] {_leaf(wanted, 32)}", f"{extent} (shape {shape})"
                )
        for axis, wanted in enumerate(form.strides):
            stride = strides[axis]
            if stride == wanted or empty or shape[axis] <= 1:
                continue
            if wanted >= 0 or stride % -wanted or not -stride_limit <= stride < stride_limit:
                raise argument.error(
                    f"stride[{axis}] (in elements) {_leaf(wanted, form.stride_bits)}",
                    f"{stride} (shape {shape}, strides {strides})",
                )
        _check_pointer(view.pointer, form.align, empty, argument)
        slots.append(view.pointer)
        for axis in dynamic_extents:
            slots.append(shape[axis])
        for axis in dynamic_strides:
            slots.append(strides[axis] & stride_mask)

    return bind


def _pointer_binder(form: PointerForm, argument: _Argument) -> _Bind:
    accepted = accepted_dtypes(ELEMENT_TYPES[form.dtype])
    ordinal = argument.device.ordinal

    def bind(value: object, slots: list[int]) -> None:
        pointer = 0 if value is None else _plain_pointer(value)
        if pointer is None:
            view = _view(value, _describe_pointer, form, argument)
            if view.place is not None and view.place != ordinal:
                raise _wrong_place(view.place, argument)
            if view.dtype not in accepted:
                raise argument.error(f"a pointer to {form.dtype}", dtype_name(view.dtype))
            pointer = view.pointer
        _check_pointer(pointer, form.align, True, argument)
        slots.append(pointer)

    return bind


def _scalar_binder(form: ScalarForm, argument: _Argument) -> _Bind:
    pack = packer(form.type)

    def bind(value: object, slots: list[int]) -> None:
        try:
            slots.append(pack(value))
        except Exception as error:
            raise argument.error(f"{form.type}", f"{_show(value)} ({error})") from None

    return bind


def _stream_binder(argument: _Argument) -> _Bind:
    def bind(value: object, slots: list[int]) -> None:
        try:
            handle = _stream_handle(value)
        except Exception as error:
            raise argument.error("a stream", f"{_show(value)} ({error})") from None
        if handle is None or not 0 <= handle <= _POINTER_MASK:
            raise argument.error(
                "a stream: None, a handle as an integer, or an object with .cuda_stream, .ptr or "
                "__cuda_stream__",
                _show(value),
            )
        slots.append(handle)

    return bind


def _struct_binder(form: StructForm, argument: _Argument) -> _Bind:
    fields = [(field.name, _binder(field, argument.field(field.name))) for field in form.fields]
    names = ", ".join(name for name, _ in fields)

    def bind(value: object, slots: list[int]) -> None:
        for name, bind_field in fields:
            item = _field(value, name)
            if item is _MISSING:
                raise argument.error(f"a struct of ({names})", f"{_show(value)} without {name!r}")
            bind_field(item, slots)
        for name, wanted in form.constants:
            item = _field(value, name)
            if item is not _MISSING and (type(item) is not type(wanted) or item != wanted):
                field = argument.field(name)
                raise field.error(f"{wanted!r}, which was compiled in", _show_constant(item))

    return bind


def _field(struct: object, name: str) -> object:
    from collections.abc import Mapping  # few kernels take structs

    if isinstance(struct, Mapping):
        return struct.get(name, _MISSING)
    return getattr(struct, name, _MISSING)


def _plain_pointer(value: object) -> int | None:
    """The address in a bare pointer: an int, a c_void_p, or an object that is one to `int()`."""
    if type(value) is int:
        return value
    if isinstance(value, c_void_p):
        return value.value or 0
    if isinstance(value, (bool, float, str)) or hasattr(value, "data_ptr"):
        return None
    if any(hasattr(value, name) for name in _ARRAY_PROTOCOLS):
        return None
    # A pointer of hip-python has only __int__; a number that also has __float__ is no pointer.
    if hasattr(value, "__index__") or (
        hasattr(value, "__int__") and not hasattr(value, "__float__")
    ):
        return int(value)  # type: ignore[call-overload, no-any-return]
    return None


_ARRAY_PROTOCOLS = ("__cuda_array_interface__", "__dlpack__")


def _stream_handle(value: Any) -> int | None:
    if value is None:
        return 0
    if type(value) is int:
        return value
    if isinstance(value, (bool, float, str)):
        return None
    if isinstance(value, c_void_p):
        return value.value or 0
    for name in ("cuda_stream", "ptr"):
        handle = getattr(value, name, None)
        if handle is not None:
            return int(handle)
    protocol = getattr(value, "__cuda_stream__", None)
    if protocol is not None:
        _, handle = protocol() if callable(protocol) else protocol
        return int(handle)
    if hasattr(value, "__index__") or hasattr(value, "__int__"):
        return int(value)
    return None


def _view(value: object, describe: Callable[[Any], str], form: Form, argument: _Argument) -> View:
    try:
        view = view_of(value)
    except Exception as error:
        raise argument.error(describe(form), f"{_show(value)} ({error})") from None
    if view is None:
        raise argument.error(
            f"{describe(form)}: an object with data_ptr(), __cuda_array_interface__ or __dlpack__",
            _show(value),
        )
    return view


def _check_pointer(pointer: int, align: int, may_be_null: bool, argument: _Argument) -> None:
    if pointer % align:
        raise argument.error(f"an address aligned to {align} bytes", f"{pointer:#x}")
    if not 0 < pointer <= _POINTER_MASK and (pointer or not may_be_null):
        raise argument.error(
            "an address in device memory", f"{pointer:#x}" if pointer else "a null pointer"
        )


def _wrong_place(place: int | str, argument: _Argument) -> ArgumentError:
    found = f"memory of device {place}" if isinstance(place, int) else f"{place} memory"
    return argument.error(f"memory of {argument.device}", found)


def _describe(form: TensorForm) -> str:
    """`a bf16 tensor of shape (?, 4096)`, dynamic extents as in manifests."""
    extents = ["?" if extent < 0 else str(extent) for extent in form.shape]
    return f"a {form.dtype} tensor of shape ({', '.join(extents)})"


def _describe_pointer(form: PointerForm) -> str:
    return f"a pointer to {form.dtype}"


def _leaf(wanted: int, bits: int) -> str:
    if wanted >= 0:
        return f"= {wanted}"
    return f"to fit i{bits}" if wanted == -1 else f"to be a multiple of {-wanted} that fits i{bits}"


def _show_constant(value: object) -> str:
    return f"{value!r:.60}" if isinstance(value, tuple) else _show(value)


def _show(value: object) -> str:
    """A short text for a value; never the contents of a tensor."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return f"{type(value).__name__} {value!r:.60}" if value is not None else "None"
    return f"a {type(value).__module__}.{type(value).__qualname__}"
