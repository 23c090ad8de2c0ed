"""The loader's JSON against the standard library's."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_loader.plain_json import dumps, loads

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=20,
)


@settings(deadline=None)
@given(values)
def test_text_is_what_json_would_write(value: Any) -> None:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    assert dumps(value) == text
    assert loads(text) == value


@settings(deadline=None)
@given(st.text(alphabet='{}[]",:0123456789.eE+-truefalsn \\u', max_size=30))
def test_reads_what_json_reads(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(ValueError):  # noqa: PT011 - any kind of it
            loads(text)
        return
    if text == text.strip():
        assert loads(text) == expected


@pytest.mark.parametrize("text", ["", " ", "1 2", "[1", "NaN", "-Infinity", "{'a': 1}", '{"a":1}x'])
def test_refuses_what_is_not_json(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any kind of it
        loads(text)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_refuses_numbers_that_are_not_finite(value: float) -> None:
    with pytest.raises(ValueError, match="is not JSON"):
        dumps([value])


@pytest.mark.parametrize("value", [{1: 2}, object(), b"x", {"a": {1, 2}}])
def test_refuses_what_has_no_text(value: object) -> None:
    with pytest.raises(TypeError):
        dumps(value)
