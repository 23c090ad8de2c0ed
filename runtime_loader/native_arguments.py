"""Describes a signature's arguments to the native launcher: which checks, and which slots."""

from __future__ import annotations

from runtime_loader.binding import Binder
from runtime_loader.element_types import ELEMENT_TYPES
from runtime_loader.signature import (
    SLOT_OF_SCALAR,
    Form,
    PointerForm,
    ScalarForm,
    StreamForm,
    TensorForm,
)
from runtime_loader.tensor_view import accepted_dtypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# The numbers are those of ArgumentKind in csrc/native.h.
_BY_PYTHON, _TENSOR, _POINTER, _SIGNED, _UNSIGNED, _BOOL, _FLOAT32, _FLOAT64, _STREAM = range(9)

# DLPack's codes for bytes, and what torch calls them.
_BYTES = {(1, 8): "uint8", (0, 8): "int8"}


def describe(forms: Sequence[Form], binder: Binder, ordinal: int) -> tuple[tuple[object, ...], ...]:
    """What `Launcher._prepare` takes for these arguments, in this order.

    `binder` binds just these; it decides whatever the native code does not.
    """
    described = []
    slot = 0
    for form, bind in zip(forms, binder.binds, strict=True):
        kind, details = _kind(form, ordinal)
        count = len(form.slots())
        optional = isinstance(form, StreamForm)
        described.append((kind, slot, count, bind, form.name, optional, details))
        slot += count
    return tuple(described)


def _kind(form: Form, ordinal: int) -> tuple[int, tuple[object, ...]]:
    if isinstance(form, TensorForm):
        memory = _memory(form, ordinal)
        return _TENSOR, (*memory, form.shape, form.strides, form.stride_bits)
    if isinstance(form, PointerForm):
        return _POINTER, (*_memory(form, ordinal), (), (), 64)
    if isinstance(form, StreamForm):
        return _STREAM, ()
    if isinstance(form, ScalarForm):
        return _scalar(form)
    return _BY_PYTHON, ()


def _memory(form: TensorForm | PointerForm, ordinal: int) -> tuple[object, ...]:
    element = ELEMENT_TYPES[form.dtype]
    names = accepted_dtypes(element)
    # Python's binder judges a torch tensor by its dtype's name, which is stricter about bytes.
    pairs = [p for p in element.dlpack if p not in _BYTES or _BYTES[p] in element.torch]
    return ordinal, form.align, tuple(code << 8 | bits for code, bits in pairs), names


def _scalar(form: ScalarForm) -> tuple[int, tuple[object, ...]]:
    element = ELEMENT_TYPES[form.type]
    if element.kind == "bool":
        return _BOOL, ()
    if form.type in ("f32", "f64"):
        return (_FLOAT32 if form.type == "f32" else _FLOAT64), ()
    if element.kind == "float":
        return _BY_PYTHON, ()
    bits = int(SLOT_OF_SCALAR[form.type][1:])
    return (_UNSIGNED if element.kind == "uint" else _SIGNED), (bits,)
