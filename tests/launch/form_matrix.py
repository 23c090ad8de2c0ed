"""The rows of FlyDSL's table of argument forms: as manifests have them, and as FlyDSL does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runtime_loader.element_types import ELEMENT_TYPES
from runtime_loader.signature import Form, PointerForm, ScalarForm, StructForm, TensorForm
from tests.launch.oracle_arguments import FakeTensor

NUMERICS = {
    **{f"i{bits}": f"Int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"Uint{bits}" for bits in (8, 16, 32, 64)},
    "i1": "Boolean",
    "index": "Index",
    "f16": "Float16",
    "bf16": "BFloat16",
    "f32": "Float32",
    "f64": "Float64",
    "f8e4m3fn": "Float8E4M3FN",
    "f8e8m0fnu": "Float8E8M0FNU",
    "f6e2m3fn": "Float6E2M3FN",
    "f4e2m1fn": "Float4E2M1FN",
}
# FlyDSL's structs of the matrix; the launchers' module starts with it.
STRUCTS = """
@fx.struct
class Inner:
    offset: fx.Int64
    flag: fx.Boolean
    small: fx.Uint16


@fx.struct
class Outer:
    count: fx.Int8
    inner: Inner
    half: fx.Float16
    scale: fx.Float32


@fx.struct
class Settings:
    width: fx.Constexpr[int]
    rows: fx.Uint32
    fast: fx.Constexpr[bool]
    inner: Inner
    tile: fx.Constexpr[tuple]
"""
_STRUCT: dict[str, Any] = {
    "struct": {
        "count": "i8",
        "inner": {"struct": {"offset": "i64", "flag": "i1", "small": "u16"}},
        "half": "f16",
        "scale": "f32",
    }
}
_SETTINGS: dict[str, Any] = {
    "struct": {
        "width": {"constexpr": 4},
        "rows": "u32",
        "fast": {"constexpr": True},
        "inner": _STRUCT["struct"]["inner"],
        "tile": {"constexpr": {"tuple": [2, 3]}},
    }
}


@dataclass(frozen=True)
class Row:
    """One form: `spec` for a manifest's `args`, `annotation` for the launcher's parameter.

    `write` gives the FlyDSL expression of a value of the form. `example` is the value to compile
    for; by default one that has nothing special.
    """

    name: str
    spec: Any
    annotation: str
    write: Callable[[Form, Any], str]
    example: Any = None


def example_of(form: Form) -> Any:
    """A value for which FlyDSL compiles exactly this form."""
    if isinstance(form, TensorForm):
        shape = tuple(-2 * extent if extent < 0 else extent for extent in form.shape)
        strides = tuple(-64 * stride if stride < 0 else stride for stride in form.strides)
        return FakeTensor(form.align * 4, shape, strides, "")
    if isinstance(form, PointerForm):
        return form.align * 4
    if isinstance(form, StructForm):
        return {field.name: example_of(field) for field in form.fields}
    return 1


def _place(form: TensorForm, value: Any) -> str:
    if isinstance(value, FakeTensor):
        # Our loader ignores the strides of axes with one element; FlyDSL's `mark_*` look at them.
        pairs = zip(value.strides, form.strides, strict=True)
        strides = tuple(own if wanted < 0 else wanted for own, wanted in pairs)
        return f"{value.pointer}, {value.shape}, {strides}"
    return f"{value}, {form.shape}, {form.strides}"


def _dlpack(marks: str = "", options: str = "") -> Callable[[Form, Any], str]:
    def write(form: Form, value: Any) -> str:
        assert isinstance(form, TensorForm)
        code, bits = ELEMENT_TYPES[form.dtype].dlpack[0]
        memory = f"Memory({code}, {bits}, {_place(form, value)})"
        return f"flyc.from_dlpack({memory}{options}){marks}"

    return write


def _torch(form: Form, value: Any) -> str:
    assert isinstance(form, TensorForm)
    return f"Placed({ELEMENT_TYPES[form.dtype].torch[0]!r}, {_place(form, value)})"


def _pointer(form: Form, value: Any) -> str:
    assert isinstance(form, PointerForm)
    element = f"fx.{NUMERICS[form.dtype]}"
    return f"flyc.from_c_void_p({element}, {value}, assumed_align={form.align})"


def _number(form: Form, value: Any) -> str:
    assert isinstance(form, ScalarForm)
    return f"fx.{NUMERICS[form.type]}({_plain(form, value)})"


def _plain(form: Form, value: Any) -> str:
    return f"float({str(value)!r})" if isinstance(value, float) else repr(value)


def _struct(name: str) -> Callable[[Form, Any], str]:
    def write(form: Form, value: Any) -> str:
        assert isinstance(form, StructForm)
        values = value if isinstance(value, dict) else vars(value)
        fields = []
        for field in form.fields:
            own = _struct("Inner") if isinstance(field, StructForm) else _number
            fields.append(f"{field.name}={own(field, values[field.name])}")
        fields += [f"{constant}={value!r}" for constant, value in form.constants]
        return f"kernels.{name}({', '.join(fields)})"

    return write


def _tensor(name: str, write: Callable[[Form, Any], str], dtype: str = "f32", **spec: Any) -> Row:
    return Row(name, {"dtype": dtype, **spec}, "fx.Tensor", write)


def _tensors() -> list[Row]:
    dynamic = [
        _tensor(f"bare, rank {rank}", _torch, shape=["?"] * rank, leading_dim=rank - 1)
        for rank in range(1, 7)
    ]
    one_column = Row(
        "bare, one column",
        {"dtype": "f16", "shape": ["?", "?"], "leading_dim": 0},
        "fx.Tensor",
        _torch,
        FakeTensor(64, (8, 1), (1, 1), ""),
    )
    return [
        *dynamic,
        one_column,
        _tensor("bare, column-major", _torch, "bf16", shape=["?", "?"], leading_dim=0),
        _tensor("static", _dlpack(), shape=[8, 24], layout="static"),
        _tensor("static, rank 6", _dlpack(), shape=[2, 1, 3, 1, 2, 2], layout="static"),
        _tensor("static, one element", _dlpack(), "f64", shape=[1], layout="static"),
        _tensor("broadcast rows", _dlpack(), shape=[8, 4], strides=[0, 1]),
        _tensor("no unit stride", _dlpack(), shape=[8, 4], strides=[16, 2]),
        _tensor(
            "dynamic shape", _dlpack(".mark_shape_dynamic(0)"), shape=["?", 64], strides=[64, 1]
        ),
        _tensor(
            "dynamic shapes, divisible",
            _dlpack(".mark_shape_dynamic([0, 2], [16, 8])"),
            "f16",
            shape=["?16", 4, "?8"],
            strides=[256, 64, 1],
        ),
        _tensor(
            "dynamic stride",
            _dlpack(".mark_stride_dynamic(0, divisibility=16)"),
            shape=[4, 64],
            strides=["?16", 1],
        ),
        _tensor(
            "dynamic shape and strides",
            _dlpack(".mark_shape_dynamic(1, 2).mark_stride_dynamic([0, 1], [8, 4])"),
            shape=[4, "?2"],
            strides=["?8", "?4"],
        ),
        _tensor(
            "dynamic layout, divisible",
            _dlpack(".mark_layout_dynamic(leading_dim=1, divisibility=8)", ", assumed_align=16"),
            "bf16",
            shape=["?", "?"],
            leading_dim=1,
            divisible_by=8,
            align=16,
        ),
        _tensor(
            "strides of 32 bits",
            _dlpack(".mark_layout_dynamic(leading_dim=2)", ", use_32bit_stride=True"),
            shape=["?", "?", "?"],
            leading_dim=2,
            stride_bits=32,
        ),
        _tensor(
            "aligned",
            _dlpack("", ", assumed_align=256"),
            "i8",
            shape=[64],
            layout="static",
            align=256,
        ),
        *(
            _tensor(f"{dtype} elements", _dlpack(), dtype, shape=[16], layout="static")
            for dtype, element in ELEMENT_TYPES.items()
            if element.dlpack and element.dlpack[0][0] <= 13
        ),
    ]


def _others() -> list[Row]:
    return [
        *(
            Row(f"pointer to {dtype}", {"pointer": dtype, "align": align}, "fx.Pointer", _pointer)
            for dtype, align in (
                *(("f32", 4), ("i8", 1), ("bf16", 16), ("f8e4m3fn", 1), ("f6e2m3fn", 1)),
                *(("f4e2m1fn", 8), ("f8e8m0fnu", 4), ("i64", 128)),
            )
        ),
        *(
            Row(f"{type_}", type_, f"fx.{NUMERICS[type_]}", _number)
            for type_ in (
                *(f"i{b}" for b in (1, 8, 16, 32, 64)),
                *(f"u{b}" for b in (8, 16, 32, 64)),
            )
        ),
        *(
            Row(f"{type_}", type_, f"fx.{NUMERICS[type_]}", _number)
            for type_ in ("index", "f16", "bf16", "f32", "f64")
        ),
        Row("Python int", "i32", "fx.Int32", _plain),
        Row("Python float", "f32", "fx.Float32", _plain),
        Row("Python bool", "i1", "fx.Boolean", _plain),
        Row("int without annotation", "i32", "", _plain),
        Row("struct", _STRUCT, "Outer", _struct("Outer")),
        Row("inner struct", _STRUCT["struct"]["inner"], "Inner", _struct("Inner")),
        Row("struct with compile-time fields", _SETTINGS, "Settings", _struct("Settings")),
    ]


ROWS = [*_tensors(), *_others()]
