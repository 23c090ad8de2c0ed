"""Generated arguments for a signature: tensors and buffers in device memory, and scalars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flyc_cli.smoke.memory import Workspace
from flyc_cli.smoke.values import element_size, pattern, scalar
from runtime_loader.element_types import ELEMENT_TYPES
from runtime_loader.errors import ArgumentError
from runtime_loader.nearest import did_you_mean
from runtime_loader.signature import (
    Form,
    PointerForm,
    ScalarForm,
    StreamForm,
    StructForm,
    TensorForm,
)

# What a dynamic extent is, about, unless `--shape` says otherwise, and how long a bare buffer is.
_EXTENT = 128
_BUFFER_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class DeviceArray:
    """A tensor in device memory, with `__cuda_array_interface__` (version 3; strides in bytes)."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        size = element_size(self.dtype)
        return {
            "version": 3,
            "data": (self.pointer, False),
            "shape": self.shape,
            "strides": tuple(stride * size for stride in self.strides),
            "typestr": ELEMENT_TYPES[self.dtype].typestr[0],
        }


@dataclass(frozen=True)
class Argument:
    """One argument of the call: its value, and a text that says what was made."""

    name: str
    value: Any
    text: str


class Inputs:
    """Makes arguments in a workspace.

    `shapes` gives extents by argument (`128x4096`; for a pointer, its number of elements) and
    `values` gives scalars, both as texts; fields of structs are called `config.rows`.
    """

    def __init__(
        self, workspace: Workspace, shapes: Mapping[str, str], values: Mapping[str, str]
    ) -> None:
        self._workspace = workspace
        self._shapes = shapes
        self._values = values

    def make(self, signature: Sequence[Form]) -> list[Argument]:
        """Arguments in the signature's order. Raises `ArgumentError` and `HipError`."""
        flat = [item for form in signature for item in _flat(form, "")]
        self._check_names(
            "--shape", self._shapes, [n for n, f in flat if isinstance(f, TensorForm | PointerForm)]
        )
        self._check_names("--set", self._values, [n for n, f in flat if isinstance(f, ScalarForm)])
        return [self._argument(form, form.name) for form in signature]

    def _check_names(self, option: str, given: Mapping[str, str], known: Sequence[str]) -> None:
        for name in given:
            if name not in known:
                raise ArgumentError(
                    f"{option} {name}: there is no such argument{did_you_mean(name, known)}; "
                    f"{option} takes {', '.join(known) or 'nothing here'}"
                )

    def _argument(self, form: Form, name: str) -> Argument:
        if isinstance(form, TensorForm):
            return self._tensor(form, name)
        if isinstance(form, PointerForm):
            return self._buffer(form, name)
        if isinstance(form, ScalarForm):
            value = scalar(form.type, self._values.get(name, "1"), name)
            return Argument(name, value, f"{form.type} {value}")
        if isinstance(form, StreamForm):
            return Argument(name, None, "the default stream")
        return self._struct(form, name)

    def _tensor(self, form: TensorForm, name: str) -> Argument:
        if name in self._shapes:
            shape = _read_shape(self._shapes[name], name)
            if len(shape) != len(form.shape):
                raise ArgumentError(
                    f"--shape {name}: {len(shape)} extent(s); {name} has {len(form.shape)}"
                )
        else:
            shape = tuple(e if e >= 0 else -(-_EXTENT // -e) * -e for e in form.shape)
        strides = _strides(form, shape)
        last = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
        size = (last + 1) * element_size(form.dtype) if all(shape) else 0
        pointer = self._workspace.filled(size, pattern(form.dtype), name)
        text = (
            f"{form.dtype}[{', '.join(map(str, shape))}] strides [{', '.join(map(str, strides))}]"
        )
        return Argument(name, DeviceArray(pointer, shape, strides, form.dtype), text)

    def _buffer(self, form: PointerForm, name: str) -> Argument:
        elements = _BUFFER_ELEMENTS
        if name in self._shapes:
            elements = 1
            for extent in _read_shape(self._shapes[name], name):
                elements *= extent
        size = elements * element_size(form.dtype)
        pointer = self._workspace.filled(size, pattern(form.dtype), name)
        return Argument(name, pointer, f"pointer to {elements:,} {form.dtype}")

    def _struct(self, form: StructForm, name: str) -> Argument:
        fields = [self._argument(field, f"{name}.{field.name}") for field in form.fields]
        value = {f.name: made.value for f, made in zip(form.fields, fields, strict=True)}
        return Argument(name, value, "{" + ", ".join(f"{f.name}: {f.text}" for f in fields) + "}")


def _flat(form: Form, prefix: str) -> list[tuple[str, Form]]:
    name = prefix + form.name
    if isinstance(form, StructForm):
        return [item for field in form.fields for item in _flat(field, f"{name}.")]
    return [(name, form)]


def _read_shape(text: str, name: str) -> tuple[int, ...]:
    parts = text.split("x")
    if not all(part.isdecimal() and part.isascii() for part in parts):
        raise ArgumentError(f"--shape {name}: {text!r} is not a shape such as 128x4096")
    return tuple(map(int, parts))


def _strides(form: TensorForm, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Static strides as they are; the dynamic ones row-major around them, without overlap."""
    strides = list(form.strides)
    span = 1  # elements that the dimensions placed so far reach over
    for stride, extent in zip(strides, shape, strict=True):
        if stride >= 0:
            span = max(span, stride * extent)
    for axis in range(len(shape) - 1, -1, -1):
        if strides[axis] < 0:
            divisor = -strides[axis]
            strides[axis] = -(-span // divisor) * divisor
            span = max(span, strides[axis] * shape[axis])
    return tuple(strides)
