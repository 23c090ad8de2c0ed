"""Described launches: expressions mean what Python means, sizes come from the code object."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flyc_cli.frontends.described_plan import describe_plan
from flyc_cli.frontends.errors import InputError
from flyc_cli.manifest.expressions import ExpressionError
from flyc_cli.manifest.launch_expressions import parse_launch_expression
from flyc_cli.manifest.model import LaunchSpec
from runtime_loader.errors import PlanError
from runtime_loader.evaluate import Evaluator
from runtime_loader.plan import check_plan
from runtime_loader.signature import PointerForm, ScalarForm, StreamForm, TensorForm
from runtime_loader.specialisation import KernargLayout, KernelEntry, KernelParam
from tests.fuzz.bundle_seeds import RESOURCES

X = TensorForm("x", "f32", (-1, 64, -1), (-1, -8, 1), 4)
FORMS = (
    X,
    PointerForm("p", "f32", 4),
    ScalarForm("n", "i32"),
    ScalarForm("u", "u32"),
    ScalarForm("w", "i64"),
    ScalarForm("b", "i1"),
    ScalarForm("f", "f32"),
    StreamForm("stream"),
)
PARAMS = {"tile": 16, "name": "bf16"}


def entry(*sizes: int | str) -> KernelEntry:
    params: list[KernelParam] = []
    end = 0
    for said in sizes:
        size, kind = (8, "global_buffer") if isinstance(said, str) else (said, "by_value")
        start = -(-end // min(size, 8)) * min(size, 8)
        params.append(KernelParam(start, size, kind))
        end = start + size
    return KernelEntry("k", KernargLayout(tuple(params), end, max(end, 8)), RESOURCES)


def run(launch: LaunchSpec, kernel: KernelEntry, **values: int) -> Any:
    """The launch for values of the scalars and of x's extents and strides."""
    plan = describe_plan([launch], FORMS, PARAMS, {"k": kernel})
    check_plan(plan, "the plan")
    slots = {"x": 4096, "x0": 7, "x2": 9, "s0": 640, "s1": 8, "p": 8192, "stream": 5, "f": 0}
    slots |= {"n": 0, "u": 0, "w": 0, "b": 0, **values}
    order = ("x", "x0", "x2", "s0", "s1", "p", "n", "u", "w", "b", "f", "stream")
    widths = dict(zip(order, (64, 32, 32, 64, 64, 64, 32, 32, 64, 1, 32, 64), strict=True))
    inputs = [slots[name] & (1 << widths[name]) - 1 for name in order]
    (launched,) = Evaluator(plan, [kernel.kernarg])(inputs)
    return launched


def value(text: str | int, **values: int) -> int:
    """An expression's value, as a signed 64-bit integer that a kernel was given."""
    launch = run(LaunchSpec("k", (1,), (1,), ({"i64": text},)), entry(8), **values)
    return int.from_bytes(bytes(launch.kernarg[:8]), "little", signed=True)


@pytest.mark.parametrize(
    ("text", "values", "result"),
    [
        ("x.shape[0] * 2", {}, 14),
        ("x.shape[1]", {}, 64),
        ("x.shape[2] + x.strides[1]", {}, 17),
        ("x.strides[0] - x.strides[2]", {}, 639),
        ("n", {"n": -3}, -3),
        ("u", {"u": 2**32 - 1}, 2**32 - 1),
        ("b + 1", {"b": 1}, 2),
        ("w", {"w": -(2**63)}, -(2**63)),
        ("tile * n", {"n": 3}, 48),
        ("w * 2", {"w": 2**62}, -(2**63)),
        ("not n", {"n": 0}, 1),
        ("n and tile", {"n": 0}, 0),
        ("n or tile", {"n": 0}, 16),
        (7, {}, 7),
        ("0x10", {}, 16),
    ],
)
def test_values(text: str | int, values: dict[str, int], result: int) -> None:
    assert value(text, **values) == result


small = st.integers(-50, 50)
expressions = st.recursive(
    st.sampled_from(["n", "w", "tile", "1", "3", "-7"]),
    lambda inner: (
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        )
        | st.tuples(inner, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        )
        | st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})")
        | st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        )
        | st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(
            lambda t: f"{t[0]}({t[1]}, {t[2]})"
        )
        | inner.map(lambda t: f"(-{t})")
        | inner.map(lambda t: f"(not {t})")
    ),
    max_leaves=8,
)


@given(expressions, small, small)
def test_expressions_mean_what_they_mean_in_python(text: str, n: int, w: int) -> None:
    try:
        expected = int(eval(text, {"n": n, "w": w, "tile": 16}))
    except ZeroDivisionError:
        with pytest.raises(PlanError, match="zero"):
            value(text, n=n, w=w)
        return
    assume(-(2**63) <= expected < 2**63)
    try:
        found = value(text, n=n, w=w)
    except PlanError:
        # Both branches of a choice are computed, so the one not taken may divide by zero.
        assume("if" in text or "and" in text or "or" in text)
        return
    assert found == expected


def test_the_whole_launch() -> None:
    launch = LaunchSpec(
        "k",
        ("(n + 255) // 256", 2),
        (256,),
        ("p", "x", "n", "n + 1", 0, "f", ({"i32": "n"}, {"i64": "w"}), {"i16": "n * 2"}),
        lds="n * 4",
        cluster=(2, 1, 1),
    )
    kernel = entry("pointer", "pointer", 4, 8, 8, 4, 12, 2)
    launched = run(launch, kernel, n=1000, w=-1, f=0x3F800000)
    assert launched.grid == (4, 2, 1)
    assert launched.block == (256, 1, 1)
    assert launched.lds == 4000
    assert launched.cluster == (2, 1, 1)
    assert launched.stream == 5


def test_all_arguments_in_order_by_default() -> None:
    kernel = entry("pointer", "pointer", 4, 4, 8, 1, 4)
    launched = run(LaunchSpec("k", (1,), (1,)), kernel, n=3)
    assert launched.grid == (1, 1, 1)


@pytest.mark.parametrize(
    ("args", "kernel", "message"),
    [
        (("p",), entry("pointer", 4), "takes 2 arguments by its metadata .*; the launch passes 1"),
        (("f",), entry(8), "takes 8 bytes at offset 0 by its metadata; f has 4 bytes"),
        (("n",), entry(8), "write {i64: n} to convert it"),
        (("n",), entry("pointer"), "takes 8 bytes at offset 0 by its metadata; n has 4 bytes"),
        (("w",), entry("pointer"), "takes a pointer at offset 0 by its metadata; w is none"),
        ((0,), entry("pointer"), "takes a pointer at offset 0 by its metadata; 0 is none"),
        (({"i32": "n"},), entry(8), r"takes 8 bytes at .*; \{i32: n\} has 4 bytes"),
        ((("p", "n"),), entry(16), "takes 16 bytes at .*; the launch passes 12 bytes there"),
        (("n + 1",), entry(12), "takes 12 bytes at .*; n . 1 has 8 bytes"),
    ],
)
def test_disagreement_with_the_metadata(args: Any, kernel: KernelEntry, message: str) -> None:
    with pytest.raises(InputError, match=message):
        describe_plan([LaunchSpec("k", (1,), (1,), args)], FORMS, PARAMS, {"k": kernel})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m", "there is no argument or parameter m"),
        ("y.shape[0]", "there is no tensor argument y"),
        ("p.shape[0]", "there is no tensor argument p"),
        ("x", "the argument x is no integer; of a tensor use x.shape"),
        ("f + 1", "the argument f is no integer"),
        ("x.size[0]", "a tensor has shape and strides, not size"),
        ("x.shape[3]", "x has dimensions 0 to 2, not 3"),
        ("x.shape[n]", "is not allowed here"),
        ("name", "the parameter name is 'bf16', not an integer"),
        ("1.5", "'1.5' is not allowed here"),
        ("n / 2", "'n / 2' is not allowed here"),
        ("n < 2 < 3", "is not allowed here"),
        ("abs(n)", "is not allowed here"),
        ("n +", "is not an expression: invalid syntax"),
        ("", "is not an expression"),
        ("(" * 300 + "1" + ")" * 300, "at most 500 characters"),
        ("__import__('os')", "is not allowed here"),
        (str(2**64), "is not allowed here"),
    ],
)
def test_expressions_that_are_refused(text: str, message: str) -> None:
    forms: Any = {form.name: form for form in FORMS}
    with pytest.raises(ExpressionError, match=message):
        parse_launch_expression(text, forms, PARAMS)
