"""The plan evaluator against an independent model of LLVM's integers."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from runtime_loader.errors import PlanError
from runtime_loader.evaluate import LAUNCH_LIMIT, ConcreteLaunch, Evaluator
from runtime_loader.plan import (
    ARITHMETIC,
    COMPARISON,
    CONVERSION,
    DIVISION,
    EXTREMA,
    TYPE_BITS,
    Block,
    Branch,
    End,
    Launch,
    LaunchPlan,
    Op,
    check_plan,
)
from runtime_loader.specialisation import KernargLayout, KernelParam
from tests.native.stand_ins import NativeEvaluator, StraightEvaluator

INTEGERS = ["i1", "i8", "i16", "i32", "i64"]
SIGNED = {
    "i8": ctypes.c_int8,
    "i16": ctypes.c_int16,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
}
UNSIGNED = {
    "i8": ctypes.c_uint8,
    "i16": ctypes.c_uint16,
    "i32": ctypes.c_uint32,
    "i64": ctypes.c_uint64,
}


@pytest.fixture(autouse=True, scope="module", params=["python", "straight", "native"])
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test here runs on the Python evaluator, straight code, and the native one."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "python":
            stand_in = NativeEvaluator if request.param == "native" else StraightEvaluator
            patch.setattr(sys.modules[__name__], "Evaluator", stand_in)
        yield


def signed(type_: str, pattern: int) -> int:
    return -pattern if type_ == "i1" else SIGNED[type_](pattern).value


def pattern(type_: str, value: int) -> int:
    return value % 2 if type_ == "i1" else UNSIGNED[type_](value).value


def one_value_layout(size: int) -> KernargLayout:
    return KernargLayout((KernelParam(0, size, "by_value"),), size, size)


def run_op(op: Op, types: list[str], values: list[int], constants: bool) -> int:
    """Evaluate one op through a plan that launches its result as the only parameter."""
    number = len(values)
    if constants:
        inputs: tuple[str, ...] = ()
        body: list[Op | Launch] = [
            Op("const", t, constant=v) for t, v in zip(types, values, strict=True)
        ]
        slots: list[int] = []
    else:
        inputs, body, slots = tuple(types), [], values
    one, stream = number + 1, number + 2
    body += [op, Op("const", "i32", constant=1), Op("const", "ptr", constant=0)]
    size = max(TYPE_BITS[op.type], 8) // 8
    body.append(Launch(0, (one,) * 3, (one,) * 3, stream, ((number,),)))
    plan = LaunchPlan(inputs, (Block((), tuple(body), End()),))
    check_plan(plan, "test")
    (launch,) = Evaluator(plan, [one_value_layout(size)])(slots)
    return int.from_bytes(launch.kernarg, "little")


def model(name: str, type_: str, a: int, b: int) -> int | None:
    """What LLVM defines as the result, or None for undefined behaviour."""
    bits = TYPE_BITS[type_]
    sa, sb = signed(type_, a), signed(type_, b)
    if name in DIVISION:
        x, y = (sa, sb) if name[0] == "s" else (a, b)
        if y == 0:
            return None
        quotient = math.trunc(Fraction(x, y))
        if name[0] == "s" and signed(type_, pattern(type_, quotient)) != quotient:
            return None
        return pattern(type_, quotient if name.endswith("div") else x - quotient * y)
    if name in ("shl", "lshr", "ashr"):
        if b >= bits:
            return None
        exact = {"shl": a * 2**b, "lshr": a // 2**b, "ashr": math.floor(Fraction(sa, 2**b))}
        return pattern(type_, exact[name])
    if name.startswith("icmp."):
        order = {"eq": a == b, "ne": a != b}
        order |= {"slt": sa < sb, "sle": sa <= sb, "sgt": sa > sb, "sge": sa >= sb}
        order |= {"ult": a < b, "ule": a <= b, "ugt": a > b, "uge": a >= b}
        return int(order[name[5:]])
    exact = {"add": sa + sb, "sub": sa - sb, "mul": sa * sb}
    exact |= {"and": a & b, "or": a | b, "xor": a ^ b}
    exact |= {"smin": min(sa, sb), "smax": max(sa, sb), "umin": min(a, b), "umax": max(a, b)}
    return pattern(type_, exact[name])


@st.composite
def operands(draw: Any) -> tuple[str, int, int]:
    """A type and two values, often at the edges of its range."""
    type_ = draw(st.sampled_from(INTEGERS))
    bits = TYPE_BITS[type_]
    top = 2**bits - 1
    edges = [0, 1, top, 2 ** (bits - 1), 2 ** (bits - 1) - 1]
    small = st.integers(0, min(bits + 2, top))
    value = st.one_of(st.sampled_from(edges), st.integers(0, top), small)
    return type_, draw(value), draw(value)


@settings(deadline=None)
@given(st.sampled_from([*ARITHMETIC, *DIVISION, *EXTREMA, *COMPARISON]), operands(), st.booleans())
def test_binary_ops_are_llvms(name: str, given_: tuple[str, int, int], constants: bool) -> None:
    type_, a, b = given_
    op = Op(name, "i1" if name.startswith("icmp") else type_, (0, 1))
    expected = model(name, type_, a, b)
    if expected is None:
        with pytest.raises(PlanError, match=name):
            run_op(op, [type_, type_], [a, b], constants)
    else:
        assert run_op(op, [type_, type_], [a, b], constants) == expected


@settings(deadline=None)
@given(st.sampled_from(CONVERSION), operands(), st.sampled_from([*INTEGERS, "ptr"]))
def test_conversions(name: str, given_: tuple[str, int, int], to: str) -> None:
    type_, a, _ = given_
    widens = TYPE_BITS[to] - TYPE_BITS[type_]
    assume(widens <= 0 if name == "trunc" else widens >= 0)
    expected = signed(type_, a) if name == "sext" else a
    result = run_op(Op(name, to, (0,)), [type_], [a], False)
    assert result == expected % 2 ** TYPE_BITS[to]


@settings(deadline=None)
@given(st.sampled_from([0, 1]), operands())
def test_select(condition: int, given_: tuple[str, int, int]) -> None:
    type_, a, b = given_
    op = Op("select", type_, (0, 1, 2))
    result = run_op(op, ["i1", type_, type_], [condition, a, b], False)
    assert result == (a if condition else b)


def test_pointers_are_64_bit_integers() -> None:
    add = Op("add", "ptr", (0, 1))
    assert run_op(add, ["ptr", "i64"], [2**64 - 8, 24], False) == 16


@settings(deadline=None)
@given(st.data())
def test_kernarg_is_packed_at_its_offsets(data: Any) -> None:
    types = data.draw(st.lists(st.sampled_from(sorted(TYPE_BITS)), min_size=1, max_size=8))
    values = [data.draw(st.integers(0, 2 ** TYPE_BITS[t] - 1)) for t in types]
    # Cut the values into parameters of one or more leaves, with gaps between.
    cuts = sorted(data.draw(st.sets(st.integers(1, len(types)))) | {len(types)})
    params, args, end, first = [], [], 0, 0
    expected = bytearray()
    for cut in cuts:
        gap = data.draw(st.integers(0, 7))
        expected += bytes(gap)
        start = end + gap
        for i in range(first, cut):
            expected += values[i].to_bytes(max(TYPE_BITS[types[i]] // 8, 1), "little")
        end = len(expected)
        params.append(KernelParam(start, end - start, "by_value"))
        args.append(tuple(range(first, cut)))
        first = cut
    tail = data.draw(st.integers(0, 9))
    layout = KernargLayout(tuple(params), end + tail, end + tail)
    n = len(types)
    body = (
        Op("const", "i32", constant=1),
        Op("const", "ptr", constant=77),
        Launch(0, (n, n, n), (n, n, n), n + 1, tuple(args)),
    )
    plan = LaunchPlan(tuple(types), (Block((), body, End()),))
    (launch,) = Evaluator(plan, [layout])(values)
    assert launch.kernarg == bytes(expected) + bytes(tail)
    assert launch.stream == 77


NO_ARGS = KernargLayout((), 0, 0)


def test_dimensions_are_cut_to_32_bits() -> None:
    body = (
        Op("const", "i64", constant=2**32 + 5),
        Op("const", "i64", constant=2**64 - 1),
        Op("const", "i32", constant=2**32 - 4),
        Op("const", "ptr"),
        Launch(0, (0, 1, 0), (0, 0, 1), 3, (), lds=2, cluster=(0, 0, 1), cooperative=True),
    )
    plan = LaunchPlan((), (Block((), body, End()),))
    assert Evaluator(plan, [NO_ARGS])([]) == [
        ConcreteLaunch(
            0, (5, 2**32 - 1, 5), (5, 5, 2**32 - 1), (5, 5, 2**32 - 1), 2**32 - 4, 0, True, b""
        )
    ]


def launch_of(grid: int, one: int, stream: int, kernel: int = 0) -> Launch:
    return Launch(kernel, (grid, one, one), (one, one, one), stream, ())


def test_loops_and_block_parameters() -> None:
    plan = LaunchPlan(
        ("i32", "i32", "ptr", "i32"),
        (
            Block((), (), End(None, (Branch(1, (0,)),))),
            Block(
                ("i32",),
                (launch_of(4, 1, 2), Op("sub", "i32", (4, 1)), Op("icmp.ne", "i1", (5, 3))),
                End(6, (Branch(1, (5,)), Branch(2))),
            ),
            Block((), (), End()),
        ),
    )
    check_plan(plan, "test")
    evaluate = Evaluator(plan, [NO_ARGS])
    assert [launch.grid[0] for launch in evaluate([4, 1, 9, 0])] == [4, 3, 2, 1]
    assert [launch.grid[0] for launch in evaluate([2, 1, 9, 0])] == [2, 1]
    with pytest.raises(PlanError, match=f"{LAUNCH_LIMIT} launches"):
        evaluate([0, 1, 9, 0])


def test_block_parameters_are_assigned_at_once() -> None:
    """A branch that swaps two parameters reads both before it writes either."""
    plan = LaunchPlan(
        ("i32", "i32", "i1", "i1", "i32", "ptr"),
        (
            Block((), (), End(None, (Branch(1, (0, 1, 2)),))),
            Block(  # 6, 7: the pair; 8: swap again?
                ("i32", "i32", "i1"),
                (),
                End(8, (Branch(1, (7, 6, 3)), Branch(2))),
            ),
            Block((), (launch_of(6, 4, 5), launch_of(7, 4, 5)), End()),
        ),
    )
    check_plan(plan, "test")
    launches = Evaluator(plan, [NO_ARGS])([10, 20, 1, 0, 1, 0])
    assert [launch.grid[0] for launch in launches] == [20, 10]


def test_branches_choose_launches_in_order() -> None:
    plan = LaunchPlan(
        ("i1", "i32", "ptr"),
        (
            Block((), (launch_of(1, 1, 2, 1),), End(0, (Branch(1), Branch(2)))),
            Block((), (launch_of(1, 1, 2, 0),), End(None, (Branch(2),))),
            Block((), (launch_of(1, 1, 2, 1),), End()),
        ),
    )
    evaluate = Evaluator(plan, [NO_ARGS, NO_ARGS])
    assert [launch.kernel for launch in evaluate([1, 1, 0])] == [1, 0, 1]
    assert [launch.kernel for launch in evaluate([0, 1, 0])] == [1, 1]


def test_an_endless_loop_is_an_error() -> None:
    plan = LaunchPlan(
        (),
        (
            Block((), (), End(None, (Branch(1),))),
            Block((), (), End(None, (Branch(1),))),
        ),
    )
    with pytest.raises(PlanError, match="did not end"):
        Evaluator(plan, [])([])


def test_an_undefined_op_after_a_launch_launches_nothing() -> None:
    body = (launch_of(0, 0, 1), Op("sdiv", "i32", (0, 2)))
    plan = LaunchPlan(("i32", "ptr", "i32"), (Block((), body, End()),))
    with pytest.raises(PlanError, match=r"sdiv to i32 \(value 3\): 5 divided by zero"):
        Evaluator(plan, [NO_ARGS])([5, 0, 0])


def test_an_undefined_op_on_a_path_not_taken_is_no_error() -> None:
    plan = LaunchPlan(
        ("i1",),
        (
            Block((), (Op("const", "i32"),), End(0, (Branch(1), Branch(2)))),
            Block((), (Op("udiv", "i32", (1, 1)),), End()),
            Block((), (), End()),
        ),
    )
    assert Evaluator(plan, [])([0]) == []
    with pytest.raises(PlanError, match="udiv"):
        Evaluator(plan, [])([1])


def test_constant_ops_that_are_undefined_raise_when_called() -> None:
    body = (Op("const", "i8", constant=0x80), Op("const", "i8", constant=0xFF))
    plan = LaunchPlan((), (Block((), (*body, Op("sdiv", "i8", (0, 1))), End()),))
    evaluate = Evaluator(plan, [])
    with pytest.raises(PlanError, match="-128 divided by -1 overflows 8 bits"):
        evaluate([])


def test_values_read_before_they_are_defined_are_zero() -> None:
    body = (
        Op("add", "i32", (1, 2)),  # 2 = value 1 (constant, so known early) + itself: both zero yet
        Op("const", "i32", constant=7),
        launch_of(1, 2, 0),
        launch_of(2, 2, 0),
    )
    # Values: 0 stream, 1 the sum, 2 the constant.
    plan = LaunchPlan(("ptr",), (Block((), body, End()),))
    evaluate = Evaluator(plan, [NO_ARGS])
    for _ in range(2):
        assert [launch.grid[0] for launch in evaluate([0])] == [0, 7]


def test_values_of_blocks_that_did_not_run_are_zero() -> None:
    plan = LaunchPlan(
        ("i1", "i32", "ptr"),
        (
            Block((), (), End(0, (Branch(1), Branch(2)))),
            Block((), (Op("const", "i32", constant=9),), End(None, (Branch(2),))),
            Block((), (launch_of(3, 1, 2),), End()),
        ),
    )
    evaluate = Evaluator(plan, [NO_ARGS])
    assert [launch.grid[0] for launch in evaluate([1, 1, 0])] == [9]
    assert [launch.grid[0] for launch in evaluate([0, 1, 0])] == [0]


@settings(deadline=None)
@given(st.data())
def test_folding_constants_changes_nothing(data: Any) -> None:
    """Random entry blocks, some operands constants, against the same with inputs instead."""
    count = data.draw(st.integers(1, 4))
    constants = [data.draw(st.integers(0, 2**32 - 1)) for _ in range(count)]
    ops = []
    for i in range(data.draw(st.integers(1, 8))):
        name = data.draw(st.sampled_from(["add", "sub", "mul", "xor", "smax", "udiv"]))
        # Sometimes a later value, which reads as zero.
        source = st.integers(0, count + i + 1)
        ops.append((name, data.draw(source), data.draw(source)))
    total = count + len(ops)
    ops = [(n, min(a, total - 1), min(b, total - 1)) for n, a, b in ops]

    def launches(inputs: int) -> list[ConcreteLaunch] | str:
        """With the first `inputs` of the constants as inputs, and the rest as constants."""
        body: list[Op | Launch] = [Op("const", "i32", constant=c) for c in constants[inputs:]]
        body += [Op(n, "i32", (a, b)) for n, a, b in ops]
        body += [Op("const", "ptr"), launch_of(total - 1, 0, total)]
        plan = LaunchPlan(("i32",) * inputs, (Block((), tuple(body), End()),))
        try:
            return Evaluator(plan, [NO_ARGS])(constants[:inputs])
        except PlanError as error:
            return str(error)

    assert launches(0) == launches(count)
