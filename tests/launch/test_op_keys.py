"""What operators remember: calls that look alike to them get the kernel that choosing gives."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import runtime_loader as rt
from flyc_cli.bundle_writer import BundleContents, TableContents, write_bundle
from runtime_loader import _native
from runtime_loader import op as op_module
from runtime_loader.native_op import NativeOp
from runtime_loader.records import replace
from runtime_loader.signature import PointerForm, ScalarForm, TensorForm
from runtime_loader.table import TableRow
from tests.hip_device.device import HipTestDevice
from tests.launch.samples import specialisation
from tests.launch.test_launch import Array
from tests.launch.test_op import FORMS, Halves, Strided, variant

pytestmark = [pytest.mark.device, pytest.mark.compile]
ROCM = 10


@pytest.fixture(scope="session")
def kinds_path(make_bundle: Callable[..., Path], code_objects: dict[str, bytes]) -> Path:
    """By layout, by dtype, and by rank."""
    code = code_objects["gfx942"]
    specs = [variant(code, kind) for kind in FORMS]
    # A vector gives as many slots as a matrix with one dynamic extent and stride.
    for like, form in (
        ("any", TensorForm("x", "f16", (-1, -1), (-1, 1), 2)),
        ("n64", TensorForm("x", "f32", (-1,), (-8,), 4)),
    ):
        spec = variant(code, like)
        kind = "f16" if form.dtype == "f16" else "flat"
        signature = (form, *spec.signature[1:])
        specs.append(replace(spec, params={"kind": kind}, signature=signature))
    return make_bundle(*specs, name="kinds")


def tensors(tensor_type: Any) -> st.SearchStrategy[Any]:
    """Of several dtypes, ranks, layouts and alignments, through each protocol."""
    memory = torch.zeros(1 << 16, dtype=torch.uint8)

    def made(dtype: torch.dtype, rows: int, columns: int, more: int, offset: int, how: str) -> Any:
        typed = memory.view(dtype)
        if how == "flat":
            return typed.as_strided((rows,), (columns,), offset).as_subclass(tensor_type)
        tensor = typed.as_strided((rows, columns), (columns + more, 1), offset)
        if how == "exchange":
            return tensor.as_subclass(tensor_type)
        if how == "scalar":
            return 7
        array = Strided if dtype == torch.float32 else type("HalfRows", (Strided, Halves), {})
        return array(4096 + offset * typed.element_size(), (rows, columns), columns + more)

    return st.builds(
        made,
        st.sampled_from([torch.float32, torch.float16]),
        st.integers(1, 4),
        st.sampled_from([1, 8, 64, 65, 128]),
        st.sampled_from([0, 1, 8, 64]),
        st.sampled_from([0, 1, 2, 4]),
        st.sampled_from(["exchange", "torch", "flat", "scalar"]),
    )


def test_what_is_remembered_is_what_choosing_gives(
    device: HipTestDevice, kinds_path: Path, tensor_type: Any
) -> None:
    tensor_type.place(ROCM, 0)
    bundle = rt.load(kinds_path)
    op = bundle.op("scale")
    chosen: dict[str, int] = {}

    @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
    @given(tensors(tensor_type), st.sampled_from([1, 2]), st.booleans())
    def check(x: Any, parts: int, by_name: bool) -> None:
        args = () if by_name else (x, parts)
        named = {"factor": 1.0} | ({"parts": parts, "x": x} if by_name else {})
        wanted = op.explain(*args, **named).chosen
        device.take_launches()
        if wanted is None:
            with pytest.raises((rt.MissError, rt.ArgumentError)):
                op(*args, **named)
            assert device.take_launches() == ()
            return
        kernel = bundle.kernel("scale", kind=wanted.partition("kind=")[2].partition(")")[0])
        before = kernel.launch_count
        op(*args, **named)
        assert kernel.label == wanted
        assert kernel.launch_count == before + 2
        chosen[wanted] = chosen.get(wanted, 0) + 1

    check()
    assert len(chosen) == len(FORMS) + 2


def test_pointers_to_other_elements(
    device: HipTestDevice, make_bundle: Callable[..., Path], code_objects: dict[str, bytes]
) -> None:
    made = []
    for dtype in ("f32", "f16"):
        spec = specialisation("gfx942", code_objects["gfx942"], dtype=dtype)
        form = PointerForm("x", dtype, 4)
        signature = (form, ScalarForm("rows", "i32"), *spec.signature[1:])
        made.append(replace(spec, signature=signature))
    op = rt.load(make_bundle(*made)).op("scale")
    for _ in range(2):
        for array, dtype in ((Array, "f32"), (Halves, "f16")):
            x = array(4096, (3, 64))
            assert op.kernel(x, 3, 1, 1.0).specialisation.params == {"dtype": dtype}
            before = op.kernel(x, 3, 1, 1.0).launch_count
            op(x, 3, 1, 1.0)
            assert op.kernel(x, 3, 1, 1.0).launch_count == before + 2


@pytest.fixture
def by_rows(tmp_path: Path, code_objects: dict[str, bytes]) -> rt.Op:
    """A table decides, by the number of rows."""
    specs = [variant(code_objects["gfx942"], "any", tile=tile) for tile in (1, 2)]
    rows = [TableRow("gfx942", {"M": m}, {"kind": "any", "tile": t}) for m, t in ((16, 1), (64, 2))]
    tables = {"scale": TableContents((), ("M",), rows)}
    codes = {specs[0].code_object: code_objects["gfx942"]}
    bundle = rt.load(
        write_bundle(tmp_path, BundleContents("t", {}, specs, codes, tables=tables)).link
    )
    return bundle.op("scale", keys={"M": "x.shape[0]"})


def test_more_kinds_of_calls_than_are_remembered(
    device: HipTestDevice, by_rows: rt.Op, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(op_module, "_KEPT", 50)
    device.set_recording(False)
    count = 17_000 if isinstance(by_rows, NativeOp) else 170
    for rows in range(1, count):
        by_rows(Array(4096, (rows, 64)), 1, 1.0)
    launches = [
        by_rows.kernel(Array(4096, (rows, 64)), 1, 1.0).launch_count for rows in (16, count)
    ]
    assert launches == [2 * 16, 2 * (count - 17)]
    for rows, tile in ((16, 1), (17, 2)):
        kernel = by_rows.kernel(Array(4096, (rows, 64)), 1, 1.0)
        before = kernel.launch_count
        by_rows(Array(4096, (rows, 64)), 1, 1.0)
        assert kernel.specialisation.params["tile"] == tile
        assert kernel.launch_count == before + 2


def test_more_dtype_objects_than_are_numbered(device: HipTestDevice, kinds_path: Path) -> None:
    """Objects that are made anew each time, and equal."""
    op = rt.load(kinds_path).op("scale")

    class Anew(Array):
        name = "float32"

        @property
        def dtype(self) -> str:  # type: ignore[override]
            return f"torch.{self.name}"

    for number in range(40):
        x = Anew(4096, (3, 64))
        x.name = ("float32", "float16")[number % 2]
        kind = ("dense64", "f16")[number % 2]
        kernel = op.kernel(x, 1, 1.0)
        before = kernel.launch_count
        op(x, 1, 1.0)
        assert (kernel.specialisation.params["kind"], kernel.launch_count) == (kind, before + 2)


def test_a_forked_child_is_refused(device: HipTestDevice, kinds_path: Path) -> None:
    op = rt.load(kinds_path).op("scale")
    op(Array(4096, (3, 64)), 1, 1.0)
    child = os.fork()
    if child == 0:
        try:
            op(Array(4096, (3, 64)), 1, 1.0)
        except rt.HipUnavailableError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_operators_are_collected(device: HipTestDevice, kinds_path: Path) -> None:
    op = rt.load(kinds_path).op("scale")
    op(Array(4096, (3, 64)), 1, 1.0)
    op.itself = op  # type: ignore[attr-defined]
    gone = weakref.ref(op)
    del op
    gc.collect()
    assert gone() is None


READER = (2, 0, True, 15, ((False, 0, 0),))


@pytest.mark.parametrize(
    ("ordinal", "readers"),
    [
        (-1, ()),
        (64, ()),
        (0, ((3, 0, True, 0, ()),)),
        (0, ((0, 1, True, 0, ()),)),
        (0, ((2, 0, True, 0, ((False, 8, 0),)),)),
        (0, ((2, 0, True, 0, ((False, 0, -1),)),)),
        (0, ((2, 0, True, 0, ((False, 0, 0),) * 17),)),
        (0, (READER,) * 40),
        (0, (READER,) * 200),
    ],
)
def test_what_is_out_of_the_native_bounds(
    ordinal: int, readers: tuple[Any, ...], implementation: str
) -> None:
    selection = _native.Selection()
    with pytest.raises(ValueError, match="native selection"):
        selection._add_table(0, ())
    with pytest.raises(ValueError, match="of which device"):
        selection._prepare(("x",), -1, 0)
    with pytest.raises(ValueError, match="too many arguments"):
        selection._prepare(("x",) * 129, 0, 0)
    selection._prepare(("x",), 0, 0)
    with pytest.raises(ValueError, match="native selection"):
        selection._add_table(ordinal, readers)
    selection._add_table(0, (READER,))
    with pytest.raises(ValueError, match="native selection"):
        selection._add_table(0, (READER,))
