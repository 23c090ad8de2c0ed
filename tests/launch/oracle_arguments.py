"""Random launch arguments: a Python value for our loader and, encoded apart from it, host slots.

The slots follow FlyDSL's `flydsl.compiler.jit_argument` (0.5.0): the data pointer, then one packed
struct of the dynamic extents and strides; each leaf of a struct is an argument of its own.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st

from runtime_loader.element_types import ELEMENT_TYPES
from runtime_loader.signature import (
    Form,
    PointerForm,
    ScalarForm,
    StreamForm,
    StructForm,
    TensorForm,
)

STREAM = "the stream of the test"
_FLOAT_CODES = {"f16": ("<H", "<e"), "f32": ("<I", "<f"), "f64": ("<Q", "<d")}


@dataclass(frozen=True)
class Drawn:
    """One argument: what our kernel is called with, and what FlyDSL's host function gets.

    A slot is bytes, or STREAM where each side puts a stream of its own.
    """

    value: Any
    slots: tuple[bytes | str, ...]


@dataclass(frozen=True)
class FakeTensor:
    """Device memory that only says where it is and how it lies, as torch tensors do."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    def data_ptr(self) -> int:
        return self.pointer

    def stride(self) -> tuple[int, ...]:
        return self.strides


def arguments(signature: Sequence[Form]) -> st.SearchStrategy[list[Drawn]]:
    """Sound arguments for every form of a signature, in order, with what is extreme among them."""
    return st.tuples(*map(argument, signature)).map(list)


def argument(form: Form) -> st.SearchStrategy[Drawn]:
    if isinstance(form, TensorForm):
        return _tensor(form)
    if isinstance(form, PointerForm):
        return st.one_of(st.sampled_from([None, 0]), _address(form.align)).map(
            lambda address: Drawn(address, (struct.pack("<Q", address or 0),))
        )
    if isinstance(form, ScalarForm):
        return _scalar(form.type)
    if isinstance(form, StreamForm):
        return st.sampled_from(
            [Drawn(None, (bytes(8),)), Drawn(0, (bytes(8),)), Drawn(STREAM, (STREAM,))]
        )
    return _struct(form)


def _address(align: int) -> st.SearchStrategy[int]:
    return st.integers(1, (2**64 - 1) // align).map(lambda number: number * align)


def _integer(low: int, high: int) -> st.SearchStrategy[int]:
    """Small numbers, the limits, and everything between."""
    ends = [v for v in (low, low + 1, -1, 0, 1, high - 1, high) if low <= v <= high]
    small = st.integers(max(low, -5), min(high, 5000))
    return st.one_of(small, small, st.sampled_from(ends), st.integers(low, high))


@st.composite
def _tensor(draw: st.DrawFn, form: TensorForm) -> Drawn:
    shape, strides = [], []
    for extent in form.shape:
        dynamic = _integer(0, (2**31 - 1) // -extent) if extent < 0 else st.just(0)
        shape.append(draw(dynamic) * -extent if extent < 0 else extent)
    limit = 2 ** (form.stride_bits - 1)
    for stride, extent in zip(form.strides, shape, strict=True):
        if stride < 0:
            strides.append(draw(_integer(-limit // -stride, (limit - 1) // -stride)) * -stride)
        elif extent <= 1 and draw(st.booleans()):
            strides.append(draw(st.integers(0, 9)))  # no one may rely on it
        else:
            strides.append(stride)
    pointer = draw(_address(form.align))
    layout = b"".join(
        [struct.pack("<i", shape[axis]) for axis, leaf in enumerate(form.shape) if leaf < 0]
        + [
            struct.pack("<i" if form.stride_bits == 32 else "<q", strides[axis])
            for axis, leaf in enumerate(form.strides)
            if leaf < 0
        ]
    )
    slots = (struct.pack("<Q", pointer), *([layout] if layout else []))
    if not layout and draw(st.booleans()):
        return Drawn(pointer, slots)
    dtype = f"torch.{ELEMENT_TYPES[form.dtype].torch[0]}"
    return Drawn(FakeTensor(pointer, tuple(shape), tuple(strides), dtype), slots)


@st.composite
def _struct(draw: st.DrawFn, form: StructForm) -> Drawn:
    drawn = {field.name: draw(argument(field)) for field in form.fields}
    values = {name: field.value for name, field in drawn.items()}
    slots = tuple(slot for field in drawn.values() for slot in field.slots)
    return Drawn(values if draw(st.booleans()) else SimpleNamespace(**values), slots)


def _scalar(name: str) -> st.SearchStrategy[Drawn]:
    element = ELEMENT_TYPES[name]
    size = max(element.bits, 8) // 8
    if element.kind == "float":
        return st.integers(0, 2**element.bits - 1).map(lambda bits: _float(name, bits))
    if element.kind == "bool":
        return st.booleans().map(lambda flag: Drawn(flag, (bytes([flag]),)))
    unsigned = element.kind == "uint"
    low = 0 if unsigned else -(2 ** (element.bits - 1))
    return _integer(low, low + 2**element.bits - 1).map(
        lambda number: Drawn(number, (number.to_bytes(size, "little", signed=not unsigned),))
    )


def _float(name: str, bits: int) -> Drawn:
    """The number with these bits; one and the same NaN for all NaNs."""
    if name == "bf16":
        value = struct.unpack("<f", struct.pack("<I", bits << 16))[0]
        pattern, quiet = "<H", 0x7FC0
    else:
        pattern, number = _FLOAT_CODES[name]
        value = struct.unpack(number, struct.pack(pattern, bits))[0]
        quiet = struct.unpack(pattern, struct.pack(number, math.nan))[0]
    if math.isnan(value):
        value, bits = math.nan, quiet
    return Drawn(value, (struct.pack(pattern, bits),))
