"""Reads a device tensor through whichever protocol it speaks: torch's, CUDA array, or DLPack."""

from __future__ import annotations

from _operator import index

from runtime_loader.element_types import ELEMENT_TYPES, ElementType
from runtime_loader.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@dataclass(frozen=True)
class View:
    """Where a tensor is and how it lies.

    `shape` and `strides` are in elements. `dtype` is the type's identity in the protocol it came
    by: torch's name, a type string, or DLPack's (code, bits). `place` is the device's ordinal, a
    text for memory that is not on a GPU, or None when the object does not say.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str | tuple[int, int]
    place: int | str | None


def view_of(value: object) -> View | None:
    """The view of a tensor; None when `value` speaks none of the protocols.

    Raises `ValueError` when it speaks one in a way that no kernel argument can follow, and
    whatever the object itself raises.
    """
    if hasattr(value, "data_ptr"):
        return _torch_view(value)
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None:
        return _cuda_array_view(interface)
    if hasattr(value, "__dlpack__"):
        from runtime_loader import dlpack

        pointer, shape, strides, dtype, place = dlpack.read(value)
        return View(pointer, shape, _dense(shape) if strides is None else strides, dtype, place)
    return None


def accepted_dtypes(element: ElementType) -> frozenset[str | tuple[int, int]]:
    """Every `View.dtype` that is elements of this type."""
    return frozenset((*element.torch, *element.typestr, *element.dlpack))


def dtype_name(dtype: str | tuple[int, int]) -> str:
    """How messages name a `View.dtype`: as manifests do, where they have a name for it."""
    for element in ELEMENT_TYPES.values():
        own = (*element.torch[:1], *element.typestr[:1], *element.dlpack[:1])
        if dtype in own:
            return element.name
    return dtype if isinstance(dtype, str) else f"DLPack type code {dtype[0]} of {dtype[1]} bits"


# The names of the dtype objects that were met, as manifests' element types list them.
known_dtype_names: dict[object, str] = {}


def _torch_view(tensor: Any) -> View:
    dtype = known_dtype_names.get(tensor.dtype)
    if dtype is None:
        dtype = known_dtype_names[tensor.dtype] = str(tensor.dtype).rpartition(".")[2]
    kind = getattr(getattr(tensor, "device", None), "type", None)
    if kind is None:
        place = None
    elif kind in ("cuda", "hip"):
        place = tensor.device.index
    else:
        return View(0, tuple(tensor.shape), (), dtype, str(kind))
    return View(tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), dtype, place)


def _cuda_array_view(interface: dict[str, Any]) -> View:
    """CUDA Array Interface version 3 (numba's documentation); strides are in bytes there."""
    if interface.get("mask") is not None:
        raise ValueError("its __cuda_array_interface__ has a mask")
    pointer = index(interface["data"][0] or 0)
    shape = tuple(map(index, interface["shape"]))
    typestr = str(interface["typestr"])
    strides = interface.get("strides")
    if strides is None:
        return View(pointer, shape, _dense(shape), typestr, None)
    size = int(typestr[2:])
    if any(stride % size for stride in strides):
        raise ValueError(f"its strides {strides} are not whole elements of {size} bytes")
    return View(pointer, shape, tuple(index(s) // size for s in strides), typestr, None)


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a row-major tensor without gaps."""
    strides = []
    stride = 1
    for extent in reversed(shape):
        strides.append(stride)
        stride *= extent
    return tuple(reversed(strides))
