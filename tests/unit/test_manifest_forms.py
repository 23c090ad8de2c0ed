"""Argument specs become FlyDSL's encodings of shape, strides and alignment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flyc_cli.manifest import ManifestError, expand, parse_manifest
from flyc_cli.manifest.model import ObjectValue, Request
from runtime_loader.element_types import ELEMENT_TYPES, SCALAR_TYPES
from runtime_loader.signature import (
    Form,
    PointerForm,
    ScalarForm,
    StreamForm,
    StructForm,
    TensorForm,
)


def request_for(args: Any, params: Any = None, defaults: Any = None) -> Request:
    data = {
        "flyc": 1,
        "name": "m",
        "targets": ["gfx942"],
        "defaults": {"args": defaults or {}},
        "kernels": [{"name": "k", "launcher": "m:k", "params": params or {}, "args": args}],
    }
    manifest = parse_manifest(yaml.safe_dump(data, sort_keys=False).encode(), "m.yaml", Path())
    (request,) = expand(manifest)
    return request


def forms(args: Any, params: Any = None, defaults: Any = None) -> tuple[Form, ...]:
    return request_for(args, params, defaults).args


def tensor(params: Any = None, defaults: Any = None, **spec: Any) -> TensorForm:
    (form,) = forms({"x": {"dtype": "bf16", **spec}}, params, defaults)
    assert isinstance(form, TensorForm)
    return form


@pytest.mark.parametrize(
    ("spec", "shape", "strides"),
    [
        ({"shape": ["?", "?"]}, (-1, -1), (-1, 1)),
        ({"shape": ["?", "?"], "layout": "dynamic"}, (-1, -1), (-1, 1)),
        ({"shape": ["?", "?"], "leading_dim": 0}, (-1, -1), (1, -1)),
        ({"shape": ["?", "?"], "divisible_by": 8}, (-1, -1), (-8, 1)),
        ({"shape": ["?", "$N"]}, (-1, 4096), (-1, 1)),
        ({"shape": ["?16", "$N"], "strides": ["$N", 1]}, (-16, 4096), (4096, 1)),
        ({"shape": ["?$v", "${N // 2}"], "leading_dim": 1}, (-8, 2048), (-1, 1)),
        ({"shape": [8, 64]}, (8, 64), (-1, 1)),
        ({"shape": [8, 64], "strides": ["?8", 1]}, (8, 64), (-8, 1)),
        ({"shape": [8, 64], "strides": ["?", "?"], "divisible_by": 4}, (8, 64), (-4, -4)),
        ({"shape": [8, 64], "layout": "static"}, (8, 64), (64, 1)),
        ({"shape": [8, 64], "layout": "static", "leading_dim": 0}, (8, 64), (1, 8)),
        ({"shape": [2, 3, 4], "layout": "static", "leading_dim": 1}, (2, 3, 4), (12, 1, 3)),
        ({"shape": [4, 1], "layout": "static"}, (4, 1), (1, 1)),
        ({"shape": [4, 1], "leading_dim": 0}, (4, 1), (1, -1)),
        ({"shape": ["?", 1], "strides": [1, 1]}, (-1, 1), (1, 1)),
        ({"shape": [1, "?"]}, (1, -1), (-1, 1)),
        ({"shape": [1]}, (1,), (1,)),
        ({"shape": ["?", 64], "strides": [0, 1]}, (-1, 64), (0, 1)),
        ({"shape": ["?"]}, (-1,), (1,)),
        ({"shape": ["?"] * 6}, (-1,) * 6, (-1, -1, -1, -1, -1, 1)),
        ({"shape": ["?", "?"], "layout": "dynamic", "strides": [1, "?2"]}, (-1, -1), (1, -2)),
    ],
)
def test_encodings(spec: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    form = tensor({"N": 4096, "v": 8}, **spec)
    assert (form.shape, form.strides) == (shape, strides)


def test_alignment_and_stride_width() -> None:
    shape = ["?", "?"]
    assert tensor(shape=shape).align == 2
    assert tensor(shape=shape, dtype="f4e2m1fn").align == 1
    assert tensor(shape=shape, dtype="f64").align == 8
    assert tensor(shape=shape, align=32).align == 32
    assert tensor({"a": 64}, shape=shape, align="$a").align == 64
    assert tensor(defaults={"align": 16}, shape=shape).align == 16
    assert tensor(defaults={"align": 16}, shape=shape, align=4).align == 4
    assert tensor(shape=shape).stride_bits == 64
    assert tensor(shape=shape, stride_bits=32).stride_bits == 32
    assert tensor(defaults={"stride_bits": 32}, shape=shape).stride_bits == 32
    assert tensor(defaults={"stride_bits": 32}, shape=shape, stride_bits=64).stride_bits == 64


@pytest.mark.parametrize("dtype", [name for name in ELEMENT_TYPES if name != "index"])
def test_every_element_type(dtype: str) -> None:
    assert tensor(dtype=dtype, shape=["?"]).dtype == dtype
    assert forms({"p": {"pointer": dtype}}) == (
        PointerForm("p", dtype, (ELEMENT_TYPES[dtype].bits + 7) // 8),
    )


@pytest.mark.parametrize("kind", SCALAR_TYPES)
def test_every_scalar(kind: str) -> None:
    assert forms({"n": kind}) == (ScalarForm("n", kind),)
    assert forms({"n": "$t"}, {"t": kind}) == (ScalarForm("n", kind),)


def test_pointers_streams_and_structs() -> None:
    assert forms(
        {
            "p": "pointer",
            "q": {"pointer": "$t", "align": 16},
            "s": {"struct": {"n": "i32", "x": {"struct": {"y": {"pointer": "f32"}}}}},
            "stream": "stream",
        },
        {"t": {"type": "bf16"}},
        {"align": 4},
    ) == (
        PointerForm("p", "i8", 4),
        PointerForm("q", "bf16", 16),
        StructForm(
            "s",
            (ScalarForm("n", "i32"), StructForm("x", (PointerForm("y", "f32", 4),))),
        ),
        StreamForm("stream"),
    )


def test_compile_time_fields_of_structs_are_values_by_path() -> None:
    inner = {"struct": {"rule": {"constexpr": {"object": "m:f"}}, "n": "i32"}}
    request = request_for({"s": {"struct": {"w": {"constexpr": "$t"}, "inner": inner}}}, {"t": 8})
    assert request.constexpr == {"s.w": 8, "s.inner.rule": ObjectValue("m", "f")}
    assert request.args == (StructForm("s", (StructForm("inner", (ScalarForm("n", "i32"),)),)),)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"shape": []}, "1 to 8 dimensions, not 0"),
        ({"shape": ["?"] * 9}, "1 to 8 dimensions, not 9"),
        ({"shape": [0]}, "0 is not a number from 1"),
        ({"shape": [-4]}, "-4 is not a number"),
        ({"shape": [2**31]}, "is not a number from 1 to 2147483647"),
        ({"shape": ["??"]}, "'\\?\\?' is not a number"),
        ({"shape": ["?3"]}, "3 is not a power of two"),
        ({"shape": ["?0"]}, "0 is not a power of two"),
        ({"shape": ["$f"]}, "0.5 is not a number"),
        ({"shape": ["$t"]}, "'bf16' is not a number"),
        ({"shape": ["${N // 0}"]}, "division"),
        ({"shape": ["?", 1]}, "leading_dim: 0 or leading_dim: 1"),
        ({"shape": ["?", 4, 1, "$one"]}, "leading_dim: 1 or leading_dim: 3"),
        ({"shape": ["?", "?"], "leading_dim": 2}, "2 is not a dimension"),
        ({"shape": ["?", "?"], "leading_dim": -1}, "-1 is not a dimension"),
        ({"shape": ["?", 8], "layout": "static"}, '"\\?": layout static needs a number'),
        ({"shape": ["?", 8], "layout": "dynamic"}, "8: layout dynamic compiles no extent in"),
        ({"shape": ["?", "?8"], "layout": "dynamic"}, '"\\?8": layout dynamic'),
        ({"shape": ["?", "?"], "strides": [1]}, "1 strides for 2 dimensions"),
        ({"shape": ["?", "?"], "strides": [-2, 1]}, "-2 is not a number from 0"),
        ({"shape": ["?", "?"], "strides": [1, "?"], "leading_dim": 1}, "dimension 1 has stride"),
        ({"shape": [4, 4], "strides": ["?", 1], "layout": "static"}, "numbers only"),
        ({"shape": ["?", "?"], "strides": [4, 1], "layout": "dynamic"}, "stride 1 once"),
        ({"shape": ["?", "?"], "strides": ["?", "?"], "layout": "dynamic"}, "stride 1 once"),
        ({"shape": [4, 4], "layout": "static", "divisible_by": 8}, "no dynamic stride"),
        ({"shape": ["?"], "divisible_by": 8}, "no dynamic stride"),
        ({"shape": ["?", 4], "strides": [4, 1], "divisible_by": 8}, "would say nothing"),
        ({"shape": ["?", "?"], "divisible_by": 6}, "6 is not a power of two"),
        ({"shape": ["?"], "align": 3}, "3 is not a power of two"),
        ({"shape": ["?"], "align": 0}, "0 is not a power of two"),
        ({"shape": ["?"], "align": "$t"}, "'bf16' is not a power of two"),
        ({"shape": ["?"], "dtype": "bfloat16"}, "did you mean 'bf16'"),
        ({"shape": ["?"], "dtype": "index"}, "'index' is not an element type"),
        ({"shape": ["?"], "dtype": "$N"}, "4096 is not an element type"),
        ({"shape": [2**30, 4], "layout": "static", "leading_dim": 0, "stride_bits": 32}, None),
        ({"shape": [4, 2**30, 4], "layout": "static", "stride_bits": 32}, "exceed 32 bits"),
        ({"shape": [4, 4], "strides": [2**31, 1], "stride_bits": 32}, "not a number from 0"),
    ],
)
def test_refused_tensors(spec: Any, message: str | None) -> None:
    params = {"N": 4096, "f": 0.5, "t": "bf16", "one": 1}
    if message is None:
        assert tensor(params, **spec).strides == (1, 2**30)
        return
    with pytest.raises(ManifestError, match=message):
        tensor(params, **spec)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"n": "int32"}, "'int32' is not a type of scalar.*did you mean 'i32'"),
        ({"n": "f8e5m2"}, "not a type of scalar"),
        ({"n": 3}, "expected a tensor .* found a number"),
        ({"n": {"align": 3}}, "expected a tensor"),
        ({"n": {"pointer": "f33"}}, "'f33' is not an element type"),
        ({"n": {"struct": {}}}, "no fields"),
        ({"n": {"struct": {"s": "stream"}}}, "a stream is an argument of its own"),
        ({"s": "stream", "t": "stream"}, "'s' is one already"),
        ({"n": {"dtype": "f32"}}, "a tensor needs the key 'shape'"),
        ({"n": {"shape": ["?"]}}, "a tensor needs the key 'dtype'"),
        ({"not a name": "i32"}, "not a name for an argument"),
        ({"class": "i32"}, "not a name for an argument"),
        ({"n": {"struct": {"x-y": "i32"}}}, "not a name for a field"),
    ],
)
def test_refused_arguments(args: Any, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        forms(args)


@pytest.mark.compile
@settings(deadline=None)
@given(st.data())
def test_encodings_are_those_of_flydsl(data: st.DataObject) -> None:
    """Marks on FlyDSL's own memref spec give the same shape, strides and alignment."""
    spec_of = pytest.importorskip("flydsl.compiler.jit_argument").MemRefSpec
    rank = data.draw(st.integers(1, 4))
    extents = data.draw(st.lists(st.integers(2, 9), min_size=rank, max_size=rank))
    leading = data.draw(st.integers(0, rank - 1))
    static = tensor(shape=extents, layout="static", leading_dim=leading)
    spec = spec_of(16, extents, static.strides)
    assert (static.align, static.shape, static.strides) == (
        spec.alignment,
        tuple(spec.shape),
        tuple(spec.stride),
    )

    divisor = data.draw(st.sampled_from([1, 2, 16]))
    written: dict[str, Any] = {"shape": ["?"] * rank, "leading_dim": leading}
    if rank > 1:
        written["divisible_by"] = divisor
    spec.mark_layout_dynamic(leading, divisor)
    dynamic = tensor(**written)
    assert (dynamic.shape, dynamic.strides) == (tuple(spec.shape), tuple(spec.stride))

    dims = sorted(data.draw(st.sets(st.integers(0, rank - 1))))
    stride_dims = sorted(data.draw(st.sets(st.integers(0, rank - 1))))
    spec = spec_of(16, extents, static.strides, 64, True)
    spec.mark_shape_dynamic(dims, [divisor] * len(dims))
    spec.mark_stride_dynamic(stride_dims, [divisor] * len(stride_dims))
    mixed = tensor(
        shape=[f"?{divisor}" if i in dims else n for i, n in enumerate(extents)],
        strides=[f"?{divisor}" if i in stride_dims else n for i, n in enumerate(static.strides)],
        align=64,
        stride_bits=32,
    )
    assert (mixed.align, mixed.stride_bits == 32, mixed.shape, mixed.strides) == (
        spec.get_cache_signature()
    )
