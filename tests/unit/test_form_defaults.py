"""Defaults of launcher arguments: recorded, read back with checks, and used where left out."""

from __future__ import annotations

import pytest

from runtime_loader.binding import Binder
from runtime_loader.checked import Fields
from runtime_loader.errors import ArgumentError, BundleError
from runtime_loader.hip import Device
from runtime_loader.signature import PointerForm, ScalarForm, StreamForm, StructForm, read_form
from runtime_loader.target import Target

PAIR = StructForm(
    "pair", (ScalarForm("a", "u8", 5), StructForm("p", (PointerForm("q", "f32", 4, 8),)))
)
SIGNATURE = (
    ScalarForm("n", "i32"),
    ScalarForm("m", "i8", 0xFF),
    PointerForm("bias", "f32", 4, 0),
    PAIR,
    StreamForm("stream"),
)
DEVICE = Device(0, Target.parse("gfx942"))


@pytest.mark.parametrize("form", SIGNATURE)
def test_records_read_back(form) -> None:
    assert read_form(Fields(form.to_json(), "form")) == form


def test_a_record_without_defaults_says_nothing_of_them() -> None:
    assert "default" not in ScalarForm("n", "i32").to_json()
    assert "default" not in PointerForm("p", "f32", 4).to_json()


@pytest.mark.parametrize("default", [-1, 256, "1", 0.5, True])
def test_a_default_that_is_no_slot_of_the_type_is_refused(default) -> None:
    record = {"kind": "scalar", "name": "m", "type": "i8", "default": default}
    with pytest.raises(BundleError, match="default"):
        read_form(Fields(record, "form"))


@pytest.mark.parametrize(
    ("args", "named", "slots"),
    [
        ((3,), {}, [3, 0xFF, 0, 5, 8, 0]),
        ((3, 4), {}, [3, 4, 0, 5, 8, 0]),
        ((3,), {"bias": 64}, [3, 0xFF, 64, 5, 8, 0]),
        ((), {"stream": 7, "n": 1}, [1, 0xFF, 0, 5, 8, 7]),
        ((3,), {"pair": {"a": 1, "p": {"q": 4}}}, [3, 0xFF, 0, 1, 4, 0]),
        ((1, 2, 8, {"a": 1, "p": {"q": 4}}, 9), {}, [1, 2, 8, 1, 4, 9]),
    ],
)
def test_what_is_left_out_has_its_default(args, named, slots) -> None:
    assert Binder(SIGNATURE, "kernel", DEVICE).bind(args, named) == slots


def test_what_has_no_default_is_missing() -> None:
    half = StructForm("s", (ScalarForm("a", "i32", 1), ScalarForm("b", "i32")))
    binder = Binder((*SIGNATURE, half), "kernel", DEVICE)
    message = (
        r"kernel takes \(n, m=\.\.\., bias=\.\.\., pair=\.\.\., stream=None, s\); missing: n, s"
    )
    with pytest.raises(ArgumentError, match=message):
        binder.bind((), {})


def test_a_struct_that_is_given_is_given_whole() -> None:
    with pytest.raises(ArgumentError, match=r"'pair': wanted a struct of \(a, p\), found .*'p'"):
        Binder(SIGNATURE, "kernel", DEVICE).bind((1,), {"pair": {"a": 3}})


CONSTANTS = StructForm(
    "config", (ScalarForm("n", "i32"),), (("width", 4), ("tile", (2, 3)), ("fast", True))
)


def test_compile_time_fields_read_back() -> None:
    assert read_form(Fields(CONSTANTS.to_json(), "form")) == CONSTANTS
    assert "constants" not in StructForm("s", ()).to_json()


@pytest.mark.parametrize("value", [None, {"a": 1}, [1, [None]]])
def test_a_compile_time_field_that_is_no_plain_value_is_refused(value) -> None:
    record = {**CONSTANTS.to_json(), "constants": {"width": value}}
    with pytest.raises(BundleError, match=r"width: .* is no compile-time value"):
        read_form(Fields(record, "form"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"width": 8}, r"'config\.width': wanted 4, which was compiled in, found int 8"),
        ({"fast": 1}, r"'config\.fast': wanted True, which was compiled in, found int 1"),
        ({"tile": (2, 4)}, r"'config\.tile': wanted \(2, 3\), .* found \(2, 4\)"),
    ],
)
def test_a_compile_time_field_must_be_what_was_compiled_in(given, message) -> None:
    binder = Binder((CONSTANTS,), "kernel", DEVICE)
    assert binder.bind(({"n": 7},), {}) == [7]
    assert binder.bind(({"n": 7, "width": 4, "tile": (2, 3), "fast": True},), {}) == [7]
    with pytest.raises(ArgumentError, match=message):
        binder.bind(({"n": 7, **given},), {})
