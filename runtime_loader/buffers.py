"""Where the bytes of a buffer are in memory; ctypes itself tells that of writable ones only."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int, c_ssize_t, c_void_p


class _Buffer(ctypes.Structure):
    """`Py_buffer`, which is part of CPython's stable ABI."""

    _fields_ = (
        ("buf", c_void_p),
        ("obj", c_void_p),
        ("len", c_ssize_t),
        ("itemsize", c_ssize_t),
        ("readonly", c_int),
        ("ndim", c_int),
        ("format", c_char_p),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("suboffsets", c_void_p),
        ("internal", c_void_p),
    )


def address_of(view: memoryview) -> int:
    """The address of a contiguous view, valid as long as the view is not released."""
    buffer = _Buffer()
    get = ctypes.pythonapi.PyObject_GetBuffer
    get.argtypes = (ctypes.py_object, c_void_p, c_int)
    get(view, ctypes.byref(buffer), 0)
    address = buffer.buf or 0
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    return address
