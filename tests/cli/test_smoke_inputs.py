"""Generated arguments: that they satisfy the signature they were made for, and do not overlap."""

from __future__ import annotations

import itertools
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyc_cli.smoke.inputs import DeviceArray, Inputs
from flyc_cli.smoke.values import pattern, scalar
from runtime_loader.binding import Binder
from runtime_loader.element_types import ELEMENT_TYPES, SCALAR_TYPES
from runtime_loader.errors import ArgumentError
from runtime_loader.hip import Device
from runtime_loader.signature import PointerForm, ScalarForm, StreamForm, StructForm, TensorForm
from runtime_loader.target import Target

TENSOR_TYPES = [name for name in ELEMENT_TYPES if name != "index"]


class HostWorkspace:
    """Hands out addresses as a device would, and remembers how long each buffer is."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self._next = 1 << 30

    def filled(self, size: int, pattern: bytes, what: str) -> int:
        address = self._next
        self._next += -(-max(size, 1) // 4096) * 4096
        self.sizes[address] = size
        return address


@st.composite
def tensors(draw: st.DrawFn) -> TensorForm:
    """Forms that a manifest can ask for: dense in some order, any part of it dynamic."""
    rank = draw(st.integers(1, 4))
    extents = draw(st.lists(st.integers(1, 6), min_size=rank, max_size=rank))
    order = draw(st.permutations(range(rank)))
    shape, strides, step = list(extents), [0] * rank, 1
    for axis in order:
        strides[axis] = step
        step *= extents[axis]
    # What follows a dynamic extent in memory order cannot have a static stride.
    after_dynamic = False
    for axis in order:
        if after_dynamic or (strides[axis] != 1 and draw(st.booleans())):
            strides[axis] = -draw(st.integers(1, 8))
        if draw(st.booleans()):
            shape[axis] = -draw(st.integers(1, 16))
            after_dynamic = True
    return TensorForm(
        "x", draw(st.sampled_from(TENSOR_TYPES)), tuple(shape), tuple(strides),
        draw(st.sampled_from([1, 4, 16])), draw(st.sampled_from([32, 64])),
    )  # fmt: skip


@given(tensors())
def test_generated_tensors_fit_their_form_and_their_memory(form: TensorForm) -> None:
    workspace = HostWorkspace()
    (argument,) = Inputs(workspace, {}, {}).make([form])  # type: ignore[arg-type]
    array = argument.value
    assert isinstance(array, DeviceArray)
    bind = Binder([form], "sample", Device(0, Target.parse("gfx942"))).bind
    assert bind((array,), {})[0] == array.pointer
    last = sum((e - 1) * s for e, s in zip(array.shape, array.strides, strict=True))
    interface = array.__cuda_array_interface__
    size = ELEMENT_TYPES[form.dtype].bits // 8 or 1
    assert workspace.sizes[array.pointer] == (last + 1) * size
    assert interface["strides"] == tuple(stride * size for stride in array.strides)


@given(tensors())
def test_elements_do_not_overlap(form: TensorForm) -> None:
    (argument,) = Inputs(HostWorkspace(), {"x": "x".join("3" * len(form.shape))}, {}).make(  # type: ignore[arg-type]
        [TensorForm("x", form.dtype, (-1,) * len(form.shape), _dynamic(form), 1)]
    )
    array = argument.value
    offsets = [
        sum(i * s for i, s in zip(index, array.strides, strict=True))
        for index in itertools.product(*map(range, array.shape))
    ]
    assert len(set(offsets)) == len(offsets)


def _dynamic(form: TensorForm) -> tuple[int, ...]:
    """The form's strides, all dynamic but the first that is 1."""
    leading = form.strides.index(1) if 1 in form.strides else -1
    return tuple(1 if axis == leading else -abs(stride) for axis, stride in enumerate(form.strides))


@pytest.mark.parametrize("type_", SCALAR_TYPES)
def test_scalars_of_every_type(type_: str) -> None:
    form = ScalarForm("n", type_)
    (argument,) = Inputs(HostWorkspace(), {}, {"n": "1"}).make([form])  # type: ignore[arg-type]
    Binder([form], "sample", Device(0, Target.parse("gfx942"))).bind((argument.value,), {})
    with pytest.raises(ArgumentError, match=f"argument n: 'lots' is not a value of type {type_}"):
        scalar(type_, "lots", "n")


@pytest.mark.parametrize("dtype", TENSOR_TYPES)
def test_patterns_are_ordinary_numbers(dtype: str) -> None:
    made = pattern(dtype)
    size = ELEMENT_TYPES[dtype].bits // 8 or 1
    assert len(made) % size == 0
    if dtype == "bf16":
        widened = b"".join(bytes(2) + made[i : i + 2] for i in range(0, len(made), 2))
        numbers = struct.unpack(f"<{len(made) // 2}f", widened)
    elif dtype in ("f16", "f32", "f64"):
        numbers = struct.unpack(f"<{len(made) // size}{'efd'[size.bit_length() - 2]}", made)
    else:
        return
    assert all(math.isfinite(number) and -1 <= number < 1 for number in numbers)
    assert len(set(numbers)) > 100


def test_structs_pointers_and_streams() -> None:
    inner = StructForm("c", (ScalarForm("rows", "i32"), PointerForm("p", "f16", 16)))
    signature = [StructForm("s", (inner, ScalarForm("eps", "f32"))), StreamForm("stream")]
    shapes, values = {"s.c.p": "8x4"}, {"s.c.rows": "0x10", "s.eps": "0.5"}
    workspace = HostWorkspace()
    struct_argument, stream = Inputs(workspace, shapes, values).make(signature)  # type: ignore[arg-type]
    assert struct_argument.value["c"]["rows"] == 16
    assert struct_argument.value["eps"] == 0.5
    assert workspace.sizes[struct_argument.value["c"]["p"]] == 64
    assert stream.value is None


@pytest.mark.parametrize(
    ("shapes", "values", "said"),
    [
        ({"y": "1"}, {}, "--shape y: there is no such argument"),
        ({}, {"x": "1"}, "--set x: there is no such argument"),
        ({"x": "3x4x5"}, {}, "3 extent"),
        ({"x": "-3x4"}, {}, "not a shape"),
    ],
)
def test_options_that_fit_nothing(shapes, values, said: str) -> None:
    form = TensorForm("x", "f32", (-1, 4), (-1, 1), 16)
    with pytest.raises(ArgumentError, match=said):
        Inputs(HostWorkspace(), shapes, values).make([form])  # type: ignore[arg-type]
