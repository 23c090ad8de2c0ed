"""Calls with equal keys are calls that no specialisation tells apart."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_loader.binding import Binder
from runtime_loader.errors import ArgumentError
from runtime_loader.hip import Device
from runtime_loader.op_keys import CallKey
from runtime_loader.signature import Form, PointerForm, ScalarForm, TensorForm
from runtime_loader.target import Target

DEVICE = Device(0, Target.parse("gfx942"))
DTYPES = {"f32": "float32", "f16": "float16"}


@dataclass(frozen=True)
class Tensor:
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @property
    def device(self) -> Any:
        return SimpleNamespace(type="cuda", index=0)

    def data_ptr(self) -> int:
        return self.address

    def stride(self) -> tuple[int, ...]:
        return self.strides


divisors = st.sampled_from([1, 3, 4, 8])
leaves = st.one_of(st.just(8), divisors.map(lambda d: -d))
aligns = st.sampled_from([1, 4, 6, 8])


def tensor_forms(rank: int) -> st.SearchStrategy[Form]:
    leaf = st.tuples(*[leaves] * rank)
    return st.builds(TensorForm, st.just("x"), st.sampled_from(list(DTYPES)), leaf, leaf, aligns)


pointers = st.builds(PointerForm, st.just("x"), st.sampled_from(list(DTYPES)), aligns)
memory = st.one_of(
    st.integers(0, 2).flatmap(lambda rank: st.lists(tensor_forms(rank), min_size=1, max_size=4)),
    st.lists(st.integers(0, 2).flatmap(tensor_forms), min_size=1, max_size=4),
    st.lists(pointers, min_size=1, max_size=4),
)
numbers = st.lists(
    st.sampled_from([ScalarForm("x", "i8"), ScalarForm("x", "i32"), ScalarForm("x", "f32")]),
    min_size=1,
    max_size=3,
)


def tensors(rank: int) -> st.SearchStrategy[Any]:
    numbers = st.sampled_from([0, 1, 4, 8, 12, 16, 24])
    extents = st.tuples(*[numbers] * rank)
    kinds = st.sampled_from([f"torch.{name}" for name in DTYPES.values()])
    return st.builds(Tensor, numbers, extents, extents, kinds)


values = st.one_of(
    st.integers(0, 2).flatmap(tensors), st.integers(-300, 300), st.just(1.5), st.none()
)


def refused(form: Form, value: Any) -> bool:
    try:
        Binder([form], "it", DEVICE).bind((value,), {})
    except ArgumentError:
        return True
    return False


@settings(max_examples=200)
@given(st.one_of(memory, numbers), st.lists(values, min_size=10, max_size=20))
def test_equal_keys_are_refused_alike(forms: list[Form], given_values: list[Any]) -> None:
    keys = CallKey([(form,) for form in forms])
    verdicts: dict[Any, list[bool]] = {}
    for value in given_values:
        try:
            key = keys.of((value,), {})
        except Exception:  # choosing says what is wrong with it
            continue
        found = [refused(form, value) for form in forms]
        if not all(found):  # what is refused by all, a remembered kernel refuses too
            assert verdicts.setdefault(key, found) == found
