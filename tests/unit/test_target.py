"""Target IDs: parsing, and which code object may run on which device."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_loader.target import Target, TargetError

FEATURES = ("sramecc", "xnack")


@st.composite
def targets(draw: Any, processor: str | None = None) -> Target:
    settings = {name: draw(st.sampled_from([None, True, False])) for name in FEATURES}
    return Target(
        processor or draw(st.sampled_from(["gfx90a", "gfx942", "gfx1100"])),
        tuple((name, on) for name, on in sorted(settings.items()) if on is not None),
    )


def loads(code: Target, device: Target) -> bool:
    """AMDGPUUsage's rule, spelled out: same processor; a feature of the code object is "any", or
    the same as the device's."""
    has = dict(device.features)
    return code.processor == device.processor and all(
        on == has.get(name) for name, on in code.features
    )


@settings(deadline=None)
@given(targets(), targets())
def test_runs_on(code: Target, device: Target) -> None:
    assert code.runs_on(device) == loads(code, device)


@settings(deadline=None)
@given(targets())
def test_candidates_are_all_that_run_most_specific_first(device: Target) -> None:
    every = [
        Target(
            device.processor,
            tuple((n, on) for n, on in zip(FEATURES, flags, strict=True) if on is not None),
        )
        for flags in itertools.product([None, True, False], repeat=2)
    ]
    candidates = device.candidates()
    assert set(candidates) == {code for code in every if loads(code, device)}
    assert len(candidates) == len(set(candidates))
    sizes = [len(code.features) for code in candidates]
    assert sizes == sorted(sizes, reverse=True)
    assert candidates[0] == device
    assert candidates[-1] == Target(device.processor)


@settings(deadline=None)
@given(targets())
def test_text_and_back(target: Target) -> None:
    assert Target.parse(str(target)) == target


def test_features_in_any_order() -> None:
    parsed = Target.parse("gfx942:xnack-:sramecc+")
    assert parsed == Target("gfx942", (("sramecc", True), ("xnack", False)))
    assert str(parsed) == "gfx942:sramecc+:xnack-"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a target ID"),
        ("sm_90", "is not a target ID"),
        ("GFX942", "is not a target ID"),
        ("gfx942:", "is not xnack"),
        ("gfx942:xnack", "'xnack' is not xnack"),
        ("gfx942:tgsplit+", "'tgsplit\\+' is not xnack"),
        ("gfx942:xnack+:xnack-", "names xnack twice"),
        ("gfx942 ", "is not a target ID"),
    ],
)
def test_what_is_no_target(text: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        Target.parse(text)
