"""Reads DLPack capsules in place: the layout of dlpack.h 1.x through the PyCapsule C API.

A capsule is only looked into, never consumed, so its own destructor releases the tensor (DLPack's
"Python Specification": a producer's destructor frees a capsule that nobody renamed).
"""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64

ROCM, ROCM_HOST = 10, 11
DEVICE_TYPES = {
    1: "kDLCPU",
    2: "kDLCUDA",
    3: "kDLCUDAHost",
    4: "kDLOpenCL",
    7: "kDLVulkan",
    8: "kDLMetal",
    10: "kDLROCM",
    11: "kDLROCMHost",
    13: "kDLCUDAManaged",
    14: "kDLOneAPI",
}
_MAX_RANK = 64
_NEWEST = (1, 0)


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", c_uint64),
        ("tensor", _Tensor),
    )


# The symbols get prototypes of their own: ctypes.pythonapi shares its function objects.
_is_valid = ctypes.PYFUNCTYPE(c_int, ctypes.py_object, c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def read(
    value: object,
) -> tuple[int, tuple[int, ...], tuple[int, ...] | None, tuple[int, int], int | str]:
    """The pointer, shape, strides (elements), (type code, bits) and place of a DLPack producer.

    Strides are None for a dense row-major tensor. The place is a ROCm device's ordinal, or a text
    for memory that a kernel cannot use. Raises `ValueError` for what dlpack.h allows and a kernel
    argument cannot be.
    """
    place = _place(*value.__dlpack_device__())  # type: ignore[attr-defined]
    if isinstance(place, str):
        return 0, (), (), (0, 0), place
    capsule = _capsule(value)
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if managed.major > _NEWEST[0]:
            raise ValueError(f"its DLPack version is {managed.major}.{managed.minor}, not 1.x")
        tensor = managed.tensor
    elif _is_valid(capsule, b"dltensor"):
        tensor = _Tensor.from_address(_pointer(capsule, b"dltensor"))
    else:
        raise ValueError("its __dlpack__ gave no fresh DLPack capsule")
    rank = tensor.ndim
    if not 0 <= rank <= _MAX_RANK:
        raise ValueError(f"its DLPack tensor has {rank} dimensions")
    # torch packs two 4-bit elements in one of its own: 4 bits, 2 lanes.
    if tensor.lanes != 1 and (tensor.bits, tensor.lanes) != (4, 2):
        raise ValueError(f"its DLPack elements are vectors of {tensor.lanes}")
    return (
        (tensor.data or 0) + tensor.byte_offset,
        tuple(tensor.shape[:rank]) if rank else (),
        tuple(tensor.strides[:rank]) if rank and tensor.strides else None,
        (tensor.code, tensor.bits),
        _place(tensor.device_type, tensor.device_id),
    )


def _place(device_type: int, device_id: int) -> int | str:
    if device_type == ROCM:
        return int(device_id)
    return DEVICE_TYPES.get(int(device_type), f"DLPack device type {int(device_type)}")


def _capsule(value: object) -> object:
    """A capsule of the very memory, with no wait on any stream (-1: the caller orders streams)."""
    export = value.__dlpack__  # type: ignore[attr-defined]
    try:
        return export(stream=-1, max_version=_NEWEST, copy=False)
    except TypeError:  # a producer from before DLPack 1.0
        return export(stream=-1)
