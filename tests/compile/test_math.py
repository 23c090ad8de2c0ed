"""Math functions become real code on every target, or fail the build at the author's line."""

import re

import pytest

from tests.compile.building import (
    TARGETS,
    Outcomes,
    build,
    instructions,
    line_of,
    pointer,
    request,
    scalar,
)

pytestmark = pytest.mark.compile

# FlyDSL 0.5.0 alone lowers these to nothing.
ONCE_DROPPED = ("tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "atan2")
OTHERS = ("exp", "log", "sin", "cos", "sqrt", "rsqrt", "erf", "asinh", "cbrt", "log1p", "powf")
BINARY = ("atan2", "powf")


def apply(function, dtype, target="gfx942", arity=None):
    arity = arity or (2 if function in BINARY else 1)
    x, out = pointer("x", dtype, 8), pointer("out", dtype, 8)
    return request(
        "maths:apply", x, out, target=target, constexpr={"function": function, "arity": arity}
    )


def apply_to_vectors(function):
    x, out = pointer("x", "f32", 16), pointer("out", "f32", 16)
    return request("maths:apply_to_vectors", x, out, constexpr={"function": function})


SCALAR_CASES = [
    *((f, "f32", target) for target in TARGETS for f in ONCE_DROPPED),
    *((f, dtype, "gfx942") for dtype in ("f16", "bf16", "f64") for f in ONCE_DROPPED),
    *((f, "f32", "gfx942") for f in OTHERS),
]
BASELINES = sorted({("absf", dtype, target) for _, dtype, target in SCALAR_CASES})
# (function, element type, operands) that nothing lowers; translating them to LLVM IR would crash.
UNLOWERED = [
    *(("isinf", dtype, 1) for dtype in ("f32", "f16", "bf16", "f64")),
    ("isnormal", "f32", 1),
    ("clampf", "f64", 3),
    ("clampf", "bf16", 3),
]


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    power = request("maths:integer_power", pointer("x"), pointer("out"), scalar("n"))
    return build(
        {
            **{case: apply(*case) for case in (*SCALAR_CASES, *BASELINES)},
            **{f: apply_to_vectors(f) for f in (*(set(ONCE_DROPPED) - {"atan2"}), "absf", "isinf")},
            **{case: apply(*case[:2], arity=case[2]) for case in UNLOWERED},
            "fpowi": power,
            "ipowi of floats": apply("ipowi", "f32", arity=2),
        },
        capture=True,
    )


def code_of(built):
    return instructions(dict(built.stages)["isa"])


def called_functions(built):
    """What the optimised kernel still calls: device libraries are inlined whole."""
    return [line for line in code_of(built) if line in ("s_swappc_b64", "s_setpc_b64")]


@pytest.mark.parametrize(("function", "dtype", "target"), SCALAR_CASES)
def test_functions_are_computed(outcomes, function, dtype, target) -> None:
    built = outcomes.built((function, dtype, target))
    plain = code_of(outcomes.built(("absf", dtype, target)))
    code = code_of(built)
    assert len(code) > len(plain) + 5, code
    assert any(line.startswith(("global_store", "flat_store")) for line in code)
    assert called_functions(built) == []


@pytest.mark.parametrize(("function", "dtype", "target"), SCALAR_CASES)
def test_no_intrinsic_without_a_lowering_is_left(outcomes, function, dtype, target) -> None:
    if function in ONCE_DROPPED:
        text = dict(outcomes.built((function, dtype, target)).stages)["llvm-ir"]
        width = "f16" if dtype == "f16" else "f64" if dtype == "f64" else "f32"
        assert f"@__ocml_{function}_{width}" in text
        assert not re.search(rf"@llvm\.{function}\b", text)


@pytest.mark.parametrize("function", sorted(set(ONCE_DROPPED) - {"atan2"}))
def test_functions_of_vectors_are_computed_for_every_element(outcomes, function) -> None:
    one = code_of(outcomes.built((function, "f32", "gfx942")))
    plain = code_of(outcomes.built(("absf", "f32", "gfx942")))
    four = code_of(outcomes.built(function))
    assert len(four) > 2 * (len(one) - len(plain))
    assert "no libcall" not in " ".join(four)


def test_a_power_with_an_integer_exponent_is_computed(outcomes) -> None:
    text = dict(outcomes.built("fpowi").stages)["llvm-ir"]
    assert "__ocml_pown_f32" in text


@pytest.mark.parametrize(("function", "dtype", "arity"), UNLOWERED)
def test_an_operation_that_nothing_lowers_fails_at_its_line(
    outcomes, function, dtype, arity
) -> None:
    failed = outcomes.failed((function, dtype, arity))
    assert (failed.kind, failed.stage) == ("failed", "llvm-ir")
    assert f"math.{function}" in failed.message
    assert failed.source[0] == line_of("maths", "getattr(fx, function)(*operands)")


def test_the_same_in_vectors(outcomes) -> None:
    failed = outcomes.failed("isinf")
    assert (failed.kind, failed.stage) == ("failed", "llvm-ir")
    assert failed.source[0] == line_of("maths", "getattr(fx, function)(values)")


def test_what_mlir_rejects_while_tracing_is_one_message_at_its_line(outcomes) -> None:
    failed = outcomes.failed("ipowi of floats")
    assert (failed.kind, failed.stage) == ("failed", "trace")
    assert failed.message == (
        "'math.ipowi' op operand #0 must be signless-integer-like, but got 'f32'"
    )
    assert failed.source[0] == line_of("maths", "getattr(fx, function)(*operands)")
