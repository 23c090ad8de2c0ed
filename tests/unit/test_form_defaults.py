"""Defaults of launcher arguments: recorded, read back with checks, and used where left out."""

from __future__ import annotations

import pytest

from runtime_loader.binding import Binder
from runtime_loader.checked import Fields
from runtime_loader.errors import ArgumentError, BundleError
from runtime_loader.hip import Device
from runtime_loader.signature import PointerForm, ScalarForm, StreamForm, StructForm, read_form
from runtime_loader.target import Target

SIGNATURE = (
    ScalarForm("n", "i32"),
    ScalarForm("m", "i8", 0xFF),
    PointerForm("bias", "f32", 4, 0),
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
        ((3,), {}, [3, 0xFF, 0, 0]),
        ((3, 4), {}, [3, 4, 0, 0]),
        ((3,), {"bias": 64}, [3, 0xFF, 64, 0]),
        ((), {"stream": 7, "n": 1}, [1, 0xFF, 0, 7]),
        ((1, 2, 8, 9), {}, [1, 2, 8, 9]),
    ],
)
def test_what_is_left_out_has_its_default(args, named, slots) -> None:
    assert Binder(SIGNATURE, "kernel", DEVICE).bind(args, named) == slots


def test_what_has_no_default_is_missing() -> None:
    binder = Binder((*SIGNATURE, StructForm("s", (ScalarForm("a", "i32", 1),))), "kernel", DEVICE)
    message = r"kernel takes \(n, m=\.\.\., bias=\.\.\., stream=None, s\); missing: n, s"
    with pytest.raises(ArgumentError, match=message):
        binder.bind((), {})
