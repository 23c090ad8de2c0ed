"""Operators: each call selects what it fits and what was compiled for the most."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_void_p
from pathlib import Path
from typing import Any

import pytest

import runtime_loader as rt
from flyc_cli.bundle_writer import BundleContents, TableContents, write_bundle
from runtime_loader.records import replace
from runtime_loader.signature import TensorForm
from runtime_loader.specialisation import Specialisation
from runtime_loader.table import TableRow
from tests.hip_device.device import HipTestDevice
from tests.launch.samples import specialisation
from tests.launch.test_launch import Array

pytestmark = [pytest.mark.device, pytest.mark.compile]

# Parameters of scale's x: shape, strides, alignment.
FORMS = {
    "any": ((-1, -1), (-1, 1), 4),
    "aligned": ((-1, -1), (-1, 1), 16),
    "wide": ((-1, -64), (-64, 1), 16),
    "n64": ((-1, 64), (-1, 1), 4),
    "dense64": ((-1, 64), (64, 1), 4),
}


class Strided(Array):
    """A tensor of which rows are further apart than they are long."""

    def __init__(self, address: int, shape: tuple[int, int], pitch: int) -> None:
        super().__init__(address, shape)
        self.pitch = pitch

    def stride(self) -> tuple[int, int]:
        return self.pitch, 1


class Halves(Array):
    dtype = "torch.float16"


def variant(code: bytes, kind: str, **params: Any) -> Specialisation:
    shape, strides, align = FORMS[kind]
    made = specialisation("gfx942", code, kind=kind, **params)
    slots = ("ptr", *("i32" for e in shape if e < 0), *("i64" for s in strides if s < 0))
    # The plan takes the rows alone, whatever else the form gives.
    plan = made.plan
    extra = len(slots) - 2
    if extra:
        plan = _with_inputs(plan, slots)
    form = TensorForm("x", "f32", shape, strides, align)
    return replace(made, signature=(form, *made.signature[1:]), plan=plan)


def _with_inputs(plan: Any, slots: tuple[str, ...]) -> Any:
    """The plan with more inputs after the rows, which it does not use."""
    extra = len(slots) - 2

    def moved(number: int) -> int:
        return number if number < 2 else number + extra

    (block,) = plan.blocks
    body = []
    for item in block.body:
        if hasattr(item, "grid"):
            body.append(
                replace(
                    item,
                    grid=tuple(map(moved, item.grid)),
                    block=tuple(map(moved, item.block)),
                    stream=moved(item.stream),
                    args=tuple(tuple(map(moved, leaves)) for leaves in item.args),
                    lds=None if item.lds is None else moved(item.lds),
                )
            )
        else:
            body.append(replace(item, operands=tuple(map(moved, item.operands))))
    inputs = (*slots, *plan.inputs[2:])
    return replace(plan, inputs=inputs, blocks=(replace(block, body=tuple(body)),))


@pytest.fixture(scope="session")
def forms_path(make_bundle: Callable[..., Path], code_objects: dict[str, bytes]) -> Path:
    return make_bundle(*(variant(code_objects["gfx942"], kind) for kind in FORMS), name="forms")


@pytest.mark.parametrize(
    ("x", "kind"),
    [
        (Array(4096, (3, 7)), "aligned"),
        (Array(4100, (3, 7)), "any"),
        (Array(4096, (3, 64)), "dense64"),
        (Array(4100, (3, 64)), "dense64"),
        (Strided(4096, (3, 64), 72), "n64"),
        (Strided(4096, (3, 128), 192), "wide"),
        (Strided(4096, (3, 128), 130), "aligned"),
        # The stride of a single row means nothing.
        (Strided(4096, (1, 64), 72), "dense64"),
    ],
)
def test_what_fixes_most_is_taken(
    device: HipTestDevice, forms_path: Path, x: Array, kind: str
) -> None:
    bundle = rt.load(forms_path)
    op = bundle.op("scale")
    for call in (op.kernel, op):  # chosen, then remembered
        call(x, 1, factor=2.0)
    chosen = op.kernel(x, 1, factor=2.0)
    assert chosen is bundle.kernel("scale", kind=kind)
    assert chosen.launch_count == 2
    assert device.live_modules() == 1
    explained = op.explain(x, 1, 2.0)
    assert explained.chosen == chosen.label
    assert len(explained.others) == len(FORMS) - 1
    assert f"not scale(kind={next(k for k in FORMS if k != kind)}" in str(explained)


def test_each_call_selects_anew(device: HipTestDevice, forms_path: Path) -> None:
    """Calls that look alike to some specialisations, and not to others."""
    op = rt.load(forms_path).op("scale")
    for _ in range(2):
        for x, kind in [
            (Array(4096, (3, 64)), "dense64"),
            (Strided(4096, (3, 64), 72), "n64"),
            (Array(4096, (3, 65)), "aligned"),
            (Array(4104, (3, 65)), "any"),
            (Array(4096, (9, 64)), "dense64"),
        ]:
            assert op.kernel(x, 1, 1.0).specialisation.params["kind"] == kind


def test_nothing_fits(device: HipTestDevice, forms_path: Path) -> None:
    bundle = rt.load(forms_path)
    op = bundle.op("scale")
    with pytest.raises(rt.MissError) as caught:
        op(Halves(4096, (3, 64)), 1, 1.0)
    text = str(caught.value)
    assert f"scale in {forms_path}: no specialisation takes these arguments" in text
    for kind in FORMS:
        assert f"scale(kind={kind}) for gfx942: argument 'x': wanted elements of f32" in text
    explained = op.explain(Halves(4096, (3, 64)), 1, 1.0)
    assert explained.chosen is None
    assert set(explained.others) == {f"scale(kind={kind}) for gfx942" for kind in FORMS}
    for wrong in [(), (Array(4096, (3, 64)), 1), (None, 1, 1.0), (object(), 1, 1.0)]:
        with pytest.raises(rt.MissError):
            op(*wrong)
    with pytest.raises(rt.MissError, match="it has no argument 'y'"):
        op(Array(4096, (3, 64)), 1, y=1.0)
    assert device.take_launches() == ()
    assert device.live_modules() == 0


def test_parameters_narrow_the_choice(device: HipTestDevice, forms_path: Path) -> None:
    bundle = rt.load(forms_path)
    op = bundle.op("scale", kind="any")
    assert op.kernel(Array(4096, (3, 64)), 1, 1.0) is bundle.kernel("scale", kind="any")
    assert op.explain(Array(4096, (3, 64)), 1, 1.0).reason == "it is the only one for this device"
    with pytest.raises(rt.MissError, match="no scale"):
        bundle.op("scale", kind="dense65").kernel()
    with pytest.raises(rt.MissError, match="no parameter 'knd'; did you mean 'kind'"):
        bundle.op("scale", knd="any").kernel()
    with pytest.raises(rt.MissError, match="no kernel 'scala'"):
        bundle.op("scala").kernel()


def test_equal_ones_are_told(
    device: HipTestDevice, make_bundle: Callable[..., Path], code_objects: dict[str, bytes]
) -> None:
    path = make_bundle(*(variant(code_objects["gfx942"], "any", fast=f) for f in (True, False)))
    bundle = rt.load(path)
    x = Array(4096, (3, 64))
    with pytest.raises(rt.MissError, match=r"fit these arguments equally well; name a parameter"):
        bundle.op("scale")(x, 1, 1.0)
    bundle.op("scale", fast=True)(x, 1, 1.0)


def test_the_most_specific_target_and_other_devices(
    device: HipTestDevice, bundle_path: Path
) -> None:
    bundle = rt.load(bundle_path)
    op = bundle.op("scale")
    assert str(op.kernel(Array(4096, (1, 128)), 1, 1.0).specialisation.target) == "gfx942:xnack-"
    on_third = bundle.op("scale", device=2)
    kernel = on_third.kernel(Array(4096, (1, 64), device=2), 1, 1.0)
    assert (kernel.device.ordinal, str(kernel.specialisation.target)) == (2, "gfx1100")
    # Without a device, the current one of each call.
    op(Array(4096, (1, 64)), 1, 1.0)
    device.check("hipSetDevice", 2)
    op(Array(4096, (1, 64), device=2), 1, 1.0)
    assert [launch.device for launch in device.take_launches()] == [0, 0, 2, 2]


def test_a_call_that_would_load_during_its_stream_s_capture(
    device: HipTestDevice, forms_path: Path
) -> None:
    op = rt.load(forms_path).op("scale")
    stream = device.create("hipStreamCreateWithFlags", 1)
    x = Array(4096, (3, 64))
    device.check("hipStreamBeginCapture", c_void_p(stream), 1)
    with pytest.raises(rt.CaptureError, match="preload"):
        op(x, 1, 1.0, stream)
    graph = c_void_p()
    device.check("hipStreamEndCapture", c_void_p(stream), byref(graph))
    op(x, 1, 1.0, stream)
    device.check("hipStreamBeginCapture", c_void_p(stream), 1)
    op(x, 1, 1.0, stream)
    device.check("hipStreamEndCapture", c_void_p(stream), byref(graph))


@pytest.fixture
def tuned(tmp_path: Path, code_objects: dict[str, bytes]) -> rt.Bundle:
    """Rows decide by the number of rows of x, nearest, and by `fast`, exactly."""
    code = code_objects["gfx942"]
    specs = [variant(code, "any", tile=tile) for tile in (1, 2)] + [variant(code, "n64", tile=3)]
    rows = [
        TableRow("gfx942", {"fast": fast, "M": m}, {"kind": kind, "tile": tile})
        for fast, m, kind, tile in [
            (0, 16, "any", 1), (0, 64, "any", 2), (1, 16, "n64", 3),
        ]
    ]  # fmt: skip
    contents = BundleContents(
        "tuned",
        {},
        specs,
        {specs[0].code_object: code},
        tables={"scale": TableContents(("fast",), ("M",), rows)},
    )
    return rt.load(write_bundle(tmp_path, contents).link)


def test_tables_decide(device: HipTestDevice, tuned: rt.Bundle) -> None:
    op = tuned.op("scale", keys={"M": "x.shape[0]", "fast": "parts"})
    for rows, fast, tile in [(16, 0, 1), (17, 0, 2), (900, 0, 2), (5, 1, 3), (5, 0, 1)]:
        x = Array(4096, (rows, 64))
        for kernel in (op.kernel(x, fast, 1.0), op.kernel(x, parts=fast, factor=1.0)):
            assert kernel.specialisation.params["tile"] == tile
    explained = op.explain(Array(4096, (17, 64)), 0, 1.0)
    assert explained.reason == "the table's row for M=64, fast=0"
    with pytest.raises(rt.ArgumentError, match=r"argument 'x': wanted shape\[1\] = 64"):
        op(Array(4096, (5, 65)), 1, 1.0)
    with pytest.raises(rt.MissError, match="has no row for M=5, fast=7"):
        op(Array(4096, (5, 64)), 7, 1.0)
    with pytest.raises(rt.ArgumentError, match="argument 'x' is missing, which the table needs"):
        op(parts=0, factor=1.0)


def test_keys_that_come_from_nowhere(device: HipTestDevice, tuned: rt.Bundle) -> None:
    x = Array(4096, (16, 64))
    with pytest.raises(rt.MissError, match=r"looked up with fast, and 'fast' is no argument: say"):
        tuned.op("scale", keys={"M": "x.shape[0]"})(x, 1, 1.0)
    with pytest.raises(rt.MissError, match="the table of scale has no key N; its keys are fast, M"):
        tuned.op("scale", keys={"N": "x.shape[1]"})(x, 1, 1.0)
    with pytest.raises(rt.ArgumentError, match=r"argument 'x' has no shape\[2\]"):
        tuned.op("scale", keys={"M": "x.shape[2]", "fast": "parts"})(x, 0, 1.0)
    with pytest.raises(rt.MissError, match="where tile was asked to be another"):
        tuned.op("scale", tile=2, keys={"M": "x.shape[0]", "fast": "parts"})(x, 0, 1.0)
