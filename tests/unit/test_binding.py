"""Binding arguments to slots: every protocol, every check, every message."""

from __future__ import annotations

import ctypes
import math
import struct
import sys
from collections.abc import Iterator
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_loader.binding import Binder, slot_names
from runtime_loader.element_types import ELEMENT_TYPES, SCALAR_TYPES
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
from runtime_loader.target import Target
from tests.native.stand_ins import NativeBinder, StraightBinder

DEVICE = Device(0, Target("gfx942"))
ROWS = TensorForm("x", "bf16", shape=(-1, 4096), strides=(-8, 1), align=16)
STATIC = TensorForm("w", "f32", shape=(8, 4), strides=(4, 1), align=4)


@pytest.fixture(autouse=True, scope="module", params=["python", "straight", "native"])
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test here runs on the Python binder, straight code, and the native one."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "python":
            stand_in = NativeBinder if request.param == "native" else StraightBinder
            patch.setattr(sys.modules[__name__], "Binder", stand_in)
        yield


class OnDevice:
    """A torch CPU tensor that says it is in a GPU's memory."""

    def __init__(self, tensor: torch.Tensor, index: int | None = 0, kind: str = "cuda") -> None:
        self.tensor = tensor
        self.shape = tensor.shape
        self.dtype = tensor.dtype
        self.device = SimpleNamespace(type=kind, index=index)

    def data_ptr(self) -> int:
        return self.tensor.data_ptr()

    def stride(self) -> tuple[int, ...]:
        return self.tensor.stride()


class CudaArray:
    """An object with `__cuda_array_interface__` only."""

    def __init__(self, array: np.ndarray[Any, Any], **changes: Any) -> None:
        self.array = array
        interface = dict(array.__array_interface__)
        interface.pop("descr")
        self.__cuda_array_interface__ = {**interface, "version": 3, **changes}


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 2),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class DLPack:
    """torch's own DLPack capsules, with the device in them changed to a ROCm one."""

    def __init__(
        self,
        tensor: torch.Tensor,
        *,
        versioned: bool = True,
        device: tuple[int, int] = (10, 0),
        major: int | None = None,
        null_strides: bool = False,
        byte_offset: int = 0,
        lanes: int | None = None,
    ) -> None:
        self.tensor = tensor
        self.versioned = versioned
        self.device = device
        self.changes = (major, null_strides, byte_offset, lanes)
        self.asked: list[dict[str, Any]] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **how: Any) -> object:
        self.asked.append(how)
        if "max_version" in how and not self.versioned:
            raise TypeError("unexpected keyword argument 'max_version'")
        watched = self.tensor.view(self.tensor.shape)
        if self.versioned:
            capsule = watched.__dlpack__(max_version=(1, 0))
            start = get_pointer(capsule, b"dltensor_versioned")
            tensor = DLTensor.from_address(start + 32)
        else:
            capsule = watched.__dlpack__()
            start = get_pointer(capsule, b"dltensor")
            tensor = DLTensor.from_address(start)
        major, null_strides, byte_offset, lanes = self.changes
        tensor.device_type, tensor.device_id = self.device
        tensor.byte_offset = byte_offset
        if major is not None:
            ctypes.c_uint32.from_address(start).value = major
        if null_strides:
            tensor.strides = ctypes.POINTER(ctypes.c_int64)()
        if lanes is not None:
            tensor.lanes = lanes
        return capsule


def bind(form: Form, value: object, device: Device = DEVICE) -> list[int]:
    return Binder([form], "k() for gfx942", device).bind((value,), {})


def refusal(form: Form, value: object) -> str:
    with pytest.raises(ArgumentError) as caught:
        bind(form, value)
    text = str(caught.value)
    assert text.startswith(f"k() for gfx942: argument '{form.name}': wanted "), text
    return text


def rows(count: int = 3, pad: int = 0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(count, 4096 + pad, dtype=dtype)[:, :4096]


PROTOCOLS = {
    "torch": OnDevice,
    "cuda_array": lambda t: CudaArray(t.view(torch.int16).numpy(), typestr="<V2"),
    "dlpack": DLPack,
    "old_dlpack": lambda t: DLPack(t, versioned=False),
}


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
@pytest.mark.parametrize("pad", [0, 8, 64])
def test_a_tensor_gives_pointer_extents_and_strides(protocol: str, pad: int) -> None:
    tensor = rows(3, pad)
    slots = bind(ROWS, PROTOCOLS[protocol](tensor))
    assert slots == [tensor.data_ptr(), 3, 4096 + pad]


@settings(deadline=None)
@given(st.data())
def test_slots_follow_the_form(data: Any) -> None:
    """Any mix of static and dynamic leaves, through torch and through DLPack."""
    rank = data.draw(st.integers(1, 4))
    shape = [data.draw(st.integers(2, 4)) for _ in range(rank)]  # torch exports 1s with stride 1
    order = data.draw(st.permutations(range(rank)))
    tensor = torch.zeros(*[shape[axis] for axis in order]).permute(
        [order.index(axis) for axis in range(rank)]
    )
    flags = st.lists(st.booleans(), min_size=rank, max_size=rank)
    free_extents, free_strides = data.draw(flags), data.draw(flags)
    bits = data.draw(st.sampled_from([32, 64]))
    form = TensorForm(
        "t",
        "f32",
        tuple(-1 if free else e for e, free in zip(shape, free_extents, strict=True)),
        tuple(-1 if free else s for s, free in zip(tensor.stride(), free_strides, strict=True)),
        align=4,
        stride_bits=bits,
    )
    expected = [tensor.data_ptr()]
    expected += [e for e, free in zip(shape, free_extents, strict=True) if free]
    expected += [s for s, free in zip(tensor.stride(), free_strides, strict=True) if free]
    assert bind(form, OnDevice(tensor)) == expected
    assert bind(form, DLPack(tensor)) == expected
    assert len(expected) == len(form.slots()) == len(slot_names(form))


def test_dlpack_details() -> None:
    tensor = rows()
    dense = TensorForm("x", "bf16", (3, 4096), (4096, 1), 2)
    assert bind(dense, DLPack(tensor, null_strides=True)) == [tensor.data_ptr()]
    assert bind(dense, DLPack(tensor, byte_offset=64)) == [tensor.data_ptr() + 64]
    producer = DLPack(tensor)
    bind(dense, producer)
    assert producer.asked == [{"stream": -1, "max_version": (1, 0), "copy": False}]
    old = DLPack(tensor, versioned=False)
    bind(dense, old)
    assert old.asked[-1] == {"stream": -1}
    assert "DLPack version is 2." in refusal(dense, DLPack(tensor, major=2))
    assert "vectors of 4" in refusal(dense, DLPack(tensor, lanes=4))
    assert "no fresh DLPack capsule" in refusal(
        dense, SimpleNamespace(__dlpack__=lambda **_: 5, __dlpack_device__=lambda: (10, 0))
    )


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack_capsules_are_released(versioned: bool) -> None:
    """The producer's deleter runs: its references to the storage are as many as before."""
    tensor = rows()
    storage = tensor.untyped_storage()
    before = torch._C._storage_Use_Count(storage._cdata)
    held = DLPack(tensor, versioned=versioned).__dlpack__()
    assert torch._C._storage_Use_Count(storage._cdata) > before
    del held
    for _ in range(3):
        bind(ROWS, DLPack(tensor, versioned=versioned))
    assert torch._C._storage_Use_Count(storage._cdata) == before


def test_bare_pointers_fit_static_tensors_only() -> None:
    for value in (4096, ctypes.c_void_p(4096), np.int64(4096), HipPointer(4096)):
        assert bind(STATIC, value) == [4096]
    assert "the bare pointer 0x1000, without a shape" in refusal(ROWS, 4096)
    assert "a null pointer" in refusal(STATIC, 0)
    assert "aligned to 4 bytes" in refusal(STATIC, 4098)
    assert "an address in device memory" in refusal(STATIC, 2**64)
    assert "an address in device memory" in refusal(STATIC, -4096)
    for value in (True, 1.0, "4096", None, [4096]):
        assert "wanted a f32 tensor of shape (8, 4): an object with" in refusal(STATIC, value)


class HipPointer:
    """Like hip-python's Pointer: nothing but `__int__`."""

    def __init__(self, address: int) -> None:
        self.address = address

    def __int__(self) -> int:
        return self.address


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (OnDevice(rows(dtype=torch.float16)), "wanted elements of bf16, found f16"),
        (OnDevice(torch.zeros(3, 4096, dtype=torch.complex64)), "bf16, found complex64"),
        (OnDevice(torch.zeros(4096, dtype=torch.bfloat16)), "wanted 2 dimension(s), a bf16 tensor"),
        (
            OnDevice(torch.zeros(3, 4095, dtype=torch.bfloat16)),
            "wanted shape[1] = 4096, found 4095",
        ),
        (
            OnDevice(rows(pad=4)),
            "wanted stride[0] (in elements) to be a multiple of 8 that fits i64, found 4100",
        ),
        (
            OnDevice(torch.zeros(8, 8192, dtype=torch.bfloat16)[:, ::2]),
            "wanted stride[1] (in elements) = 1, found 2",
        ),
        (OnDevice(torch.zeros(4 * 4096 + 1, dtype=torch.bfloat16)[1:].view(4, 4096)), "16 bytes"),
        (OnDevice(rows(), 1), "memory of device 0 (gfx942), found memory of device 1"),
        (OnDevice(rows(), kind="meta"), "found meta memory"),
        (rows(), "wanted memory of device 0 (gfx942), found cpu memory"),
        (np.zeros((3, 4096), np.float32), "found kDLCPU memory"),
        (DLPack(rows(), device=(10, 3)), "found memory of device 3"),
        (DLPack(rows(), device=(2, 0)), "found kDLCUDA memory"),
        (CudaArray(np.zeros((3, 4096), np.float32)), "wanted elements of bf16, found f32"),
        (CudaArray(np.zeros((3, 4096), np.int16), typestr="<V2", mask=1), "has a mask"),
        (
            CudaArray(np.zeros((3, 4096), np.int16), typestr="<V2", strides=(8193, 2)),
            "not whole elements of 2 bytes",
        ),
        (CudaArray(np.zeros((3, 4096), np.int16), typestr="<V2", shape=3), "wanted a bf16 tensor"),
        (3.5, "found float 3.5"),
        (None, "found None"),
        ([1, 2], "found a builtins.list"),
        (
            OnDevice(torch.zeros(1, dtype=torch.bfloat16).expand(2**31, 4096)),
            "shape[0] to fit i32, found 2147483648",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused(value: object, message: str) -> None:
    assert message in refusal(ROWS, value)


def test_divisibility_of_extents() -> None:
    form = TensorForm("x", "i8", (-16,), (1,), 1)
    assert bind(form, OnDevice(torch.zeros(48, dtype=torch.int8)))[1] == 48
    message = refusal(form, OnDevice(torch.zeros(40, dtype=torch.int8)))
    assert "wanted shape[0] to be a multiple of 16 that fits i32, found 40" in message


def test_strides_must_fit_their_width() -> None:
    wide = torch.zeros(1).as_strided((2, 1), (0, 1))
    far = OnDevice(wide)
    far.stride = lambda: (2**31, 1)  # type: ignore[method-assign]
    form = TensorForm("x", "f32", (2, 1), (-1, 1), 4, 32)
    assert "stride[0] (in elements) to fit i32, found 2147483648" in refusal(form, far)
    assert bind(TensorForm("x", "f32", (2, 1), (-1, 1), 4), far)[1] == 2**31


def test_strides_that_are_never_used_do_not_matter() -> None:
    form = TensorForm("x", "f32", (-1, 1), (4, 1), 4)
    one_wide = torch.zeros(5, 7)[:, :1]  # strides (7, 1)
    assert "stride[0] (in elements) = 4" in refusal(form, OnDevice(one_wide))
    single = torch.zeros(1).as_strided((1, 1), (99, 99))
    assert bind(form, OnDevice(single))[1:] == [1]
    empty = torch.zeros(0, 1).as_strided((0, 1), (99, 99))
    assert bind(form, OnDevice(empty))[1:] == [0]
    dynamic = TensorForm("x", "f32", (-1, 1), (-8, 1), 4, 32)
    assert bind(dynamic, OnDevice(single))[1:] == [1, 99]


def test_negative_strides_keep_their_sign() -> None:
    array = np.zeros((4, 2), np.float32)[::-1]
    for bits in (32, 64):
        form = TensorForm("x", "f32", (-1, 2), (-1, 1), 4, bits)
        slots = bind(form, CudaArray(array, strides=array.strides))
        assert slots == [array.__array_interface__["data"][0], 4, 2**bits - 2]


def test_null_pointers_are_only_for_empty_tensors() -> None:
    empty = CudaArray(np.zeros((0, 4096), np.int16), typestr="<V2", data=(0, False))
    assert bind(ROWS, empty) == [0, 0, 4096]
    null = CudaArray(np.zeros((3, 4096), np.int16), typestr="<V2", data=(0, False))
    assert "a null pointer" in refusal(ROWS, null)


@pytest.mark.parametrize("name", [n for n in ELEMENT_TYPES if n != "index"])
def test_every_element_type_is_accepted_as_torch_has_it(name: str) -> None:
    element = ELEMENT_TYPES[name]
    form = TensorForm("x", name, (4,), (1,), 1)
    for dtype_name in element.torch:
        if not hasattr(torch, dtype_name):
            continue
        tensor = torch.empty(4, dtype=getattr(torch, dtype_name))
        assert bind(form, OnDevice(tensor)) == [tensor.data_ptr()]
        assert bind(form, DLPack(tensor)) == [tensor.data_ptr()]


def test_pointers() -> None:
    form = PointerForm("p", "f32", 16)
    tensor = torch.zeros(64)
    assert bind(form, None) == [0]
    assert bind(form, 4096) == [4096]
    assert bind(form, ctypes.c_void_p(None)) == [0]
    assert bind(form, ctypes.c_void_p(4096)) == [4096]
    assert bind(form, HipPointer(4096)) == [4096]
    for make in (OnDevice, DLPack):
        assert bind(form, make(tensor)) == [tensor.data_ptr()]
    assert bind(form, CudaArray(tensor.numpy())) == [tensor.data_ptr()]
    assert "aligned to 16 bytes" in refusal(form, 4100)
    assert "wanted a pointer to f32, found f16" in refusal(form, OnDevice(tensor.half()))
    assert "found cpu memory" in refusal(form, tensor)
    assert "found float 1.5" in refusal(form, 1.5)
    assert "found a numpy.float32" in refusal(form, np.float32(1.5))
    assert "found bool True" in refusal(form, True)


@settings(deadline=None)
@given(st.sampled_from([n for n in SCALAR_TYPES if n[0] not in "fb"]), st.integers(-(2**65), 2**65))
def test_integers_are_range_checked(name: str, value: int) -> None:
    element = ELEMENT_TYPES[name]
    bits = element.bits
    low, high = (
        (0, 2**bits - 1) if element.kind == "uint" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )
    if name == "i1":
        low, high = 0, 1
    form = ScalarForm("n", name)
    if low <= value <= high:
        assert bind(form, value) == [value % 2**bits]
    else:
        assert f"wanted {name}, found int {value}"[:70] in refusal(form, value)


def test_numbers_come_through_the_usual_protocols() -> None:
    assert bind(ScalarForm("n", "i32"), np.int64(-5)) == [2**32 - 5]
    assert bind(ScalarForm("n", "i32"), torch.tensor(7)) == [7]
    assert bind(ScalarForm("n", "i1"), np.bool_(True)) == [1]
    assert bind(ScalarForm("n", "i1"), 0) == [0]
    assert bind(ScalarForm("n", "f32"), np.float64(1.5)) == [0x3FC00000]
    assert bind(ScalarForm("n", "f32"), 3) == [0x40400000]
    assert bind(ScalarForm("n", "f64"), -0.0) == [1 << 63]
    for name, value in [("i32", 4.0), ("i32", "4"), ("f32", "4"), ("f32", None), ("i1", 2.5)]:
        assert f"wanted {name}, found {type(value).__name__ if value else 'None'}" in refusal(
            ScalarForm("n", name), value
        )
    assert "found a torch.Tensor" in refusal(ScalarForm("n", "f32"), torch.zeros(2))


def rounded(value: float, significand: int, smallest: int) -> Fraction:
    """To nearest, ties to even, with that many bits of significand and that least exponent."""
    exact = Fraction(value)
    exponent = smallest
    while abs(exact) >= Fraction(2) ** (exponent + significand):
        exponent += 1
    quotient = exact / Fraction(2) ** exponent
    down = math.floor(quotient)
    rest = quotient - down
    up = rest > Fraction(1, 2) or (rest == Fraction(1, 2) and down % 2 == 1)
    return Fraction(down + up) * Fraction(2) ** exponent


FORMATS = {"f16": (11, -24, 65504.0), "f32": (24, -149, 3.4028234663852886e38)}


def decoded(name: str, pattern: int) -> float:
    if name == "f16":
        return float(struct.unpack("<e", pattern.to_bytes(2, "little"))[0])
    wide = pattern << 16 if name == "bf16" else pattern
    return float(struct.unpack("<f", wide.to_bytes(4, "little"))[0])


@settings(deadline=None)
@given(
    st.sampled_from(sorted(FORMATS)),
    st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.floats(-1e5, 1e5)),
)
def test_floats_round_to_nearest_even(name: str, value: float) -> None:
    significand, smallest, largest = FORMATS[name]
    form = ScalarForm("n", name)
    if abs(value) > 2 * largest:
        assert f"wanted {name}, found float" in refusal(form, value)
        return
    expected = rounded(value, significand, smallest)
    if abs(expected) > largest:
        refusal(form, value)
        return
    (pattern,) = bind(form, value)
    assert Fraction(decoded(name, pattern)) == expected
    assert math.copysign(1, decoded(name, pattern)) == math.copysign(1, value)


@settings(deadline=None)
@given(st.floats(width=32, allow_nan=False))
def test_bf16_is_cut_off_as_flydsl_does(value: float) -> None:
    assert packer("bf16")(value) == int(np.float32(value).view(np.uint32)) >> 16


@pytest.mark.parametrize("name", ["f16", "bf16", "f32"])
def test_infinities_and_nan_pass(name: str) -> None:
    for value in (math.inf, -math.inf):
        assert decoded(name, packer(name)(value)) == value
    assert math.isnan(decoded(name, packer(name)(math.nan)))


class CudaStream:
    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


@pytest.mark.parametrize(
    ("value", "handle"),
    [
        (None, 0),
        (0, 0),
        (0x7F00, 0x7F00),
        (ctypes.c_void_p(0x7F00), 0x7F00),
        (SimpleNamespace(cuda_stream=0x7F00), 0x7F00),
        (SimpleNamespace(ptr=0x7F00), 0x7F00),
        (CudaStream(0x7F00), 0x7F00),
        (SimpleNamespace(__cuda_stream__=(0, 0x7F00)), 0x7F00),
        (HipPointer(0x7F00), 0x7F00),
        (np.uint64(0x7F00), 0x7F00),
    ],
)
def test_streams(value: object, handle: int) -> None:
    assert bind(StreamForm("stream"), value) == [handle]


@pytest.mark.parametrize("value", [True, 1.5, "s", object(), -1, 2**64, SimpleNamespace(ptr="x")])
def test_what_is_no_stream_is_refused(value: object) -> None:
    assert "a stream" in refusal(StreamForm("stream"), value)


def test_structs() -> None:
    inner = StructForm("inner", (ScalarForm("b", "i1"),))
    form = StructForm("cfg", (ScalarForm("n", "i32"), STATIC, inner))
    assert form.slots() == ("i32", "ptr", "i1")
    assert slot_names(form) == ["cfg.n", "cfg.w", "cfg.inner.b"]
    as_object = SimpleNamespace(n=-1, w=4096, inner=SimpleNamespace(b=True))
    as_mapping = {"n": -1, "w": 4096, "inner": {"b": True}}
    for value in (as_object, as_mapping):
        assert bind(form, value) == [2**32 - 1, 4096, 1]
    assert "a struct of (n, w, inner), found a builtins.dict without 'w'" in refusal(form, {"n": 1})
    with pytest.raises(ArgumentError, match=r"argument 'cfg\.inner\.b': wanted i1, found int 2"):
        bind(form, {"n": 1, "w": 4096, "inner": {"b": 2}})


SIGNATURE = [ScalarForm("rows", "i32"), ScalarForm("cols", "i32"), StreamForm("stream", True)]


def test_arguments_by_position_and_name() -> None:
    binder = Binder(SIGNATURE, "k()", DEVICE)
    assert binder.bind((1, 2), {}) == [1, 2, 0]
    assert binder.bind((1, 2, 9), {}) == [1, 2, 9]
    assert binder.bind((1,), {"stream": 9, "cols": 2}) == [1, 2, 9]
    assert binder.bind((), {"cols": 2, "rows": 1}) == [1, 2, 0]


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((1,), {}, r"k\(\) takes \(rows, cols, stream=None\); missing: cols"),
        ((), {}, "missing: rows, cols"),
        ((1, 2, 3, 4), {}, "4 arguments were given"),
        ((1, 2), {"rows": 1}, "'rows' was given twice"),
        ((1,), {"colls": 2}, "no argument 'colls'; did you mean 'cols'"),
        ((1, 2), {"zzz": 2}, "no argument 'zzz'$"),
    ],
)
def test_wrong_counts_and_names(args: Any, named: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Binder(SIGNATURE, "k()", DEVICE).bind(args, named)
