"""NAME=VALUE texts against the parameters of a bundle."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyc_cli.inspect.selection import choose_targets, is_value
from flyc_cli.text import byte_size, shown_value
from runtime_loader.target import Target

scalars = st.one_of(
    st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()
)


@given(st.one_of(scalars, st.none(), st.lists(scalars, max_size=3)))
def test_what_is_shown_selects_what_it_was_shown_for(value: object) -> None:
    stored = json.loads(json.dumps(value))
    assert is_value(shown_value(stored), stored)


@pytest.mark.parametrize(
    ("text", "value", "same"),
    [
        ("4096", 4096, True),
        ("4096", 4097, False),
        ("4096", "4096", True),
        ("1", True, False),
        ("1", 1.0, True),
        ("1.0", 1, False),
        ("True", True, True),
        ("true", "True", False),
        ("[1,2]", [1, 2], True),
        ("null", None, True),
        ("bf16", "bf16", True),
        ("bf16", 16, False),
        ("", 0, False),
    ],
)
def test_values(text: str, value: object, same: bool) -> None:
    assert is_value(text, value) is same


def test_targets() -> None:
    names = ["gfx942:xnack-", "gfx942", "gfx942:xnack+", "gfx950"]
    assert choose_targets(None, names) == names
    assert choose_targets(Target.parse("gfx942"), names) == ["gfx942"]
    assert choose_targets(Target.parse("gfx942"), names[:1] + names[2:]) == [names[0], names[2]]
    assert choose_targets(Target.parse("gfx90a"), names) == []


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (96_123, "96.1 kB"), (999_960, "1.0 MB"),
     (3_400_000, "3.4 MB"), (2_000_000_000, "2.0 GB")],
)  # fmt: skip
def test_sizes(size: int, text: str) -> None:
    assert byte_size(size) == text
