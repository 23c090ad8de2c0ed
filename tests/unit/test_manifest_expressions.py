"""Templates: the expression language is Python's, and nothing else gets in."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyc_cli.manifest.expressions import ExpressionError, parse_template

PARAMS: dict[str, Any] = {"N": 4096, "M": 3, "f": 0.5, "dtype": "bf16", "flag": True, "none": None}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$N", 4096),
        ("${N}", 4096),
        ("$dtype", "bf16"),
        ("${ N // 2 + M }", 2051),
        ("${min(N, 7, M)}", 3),
        ("${max(N, 7)}", 4096),
        ("${-M % 5}", 2),
        ("${N * f}", 2048.0),
        ("${1 < M <= 3}", True),
        ("${dtype == 'bf16' and not flag}", False),
        ("${64 if dtype == 'bf16' else 32}", 64),
        ("${none == None}", True),
        ("${M or 1}", 3),
        ("?$M", "?3"),
        ("a-${M + 1}-$dtype-$flag", "a-4-bf16-true"),
        ("$$N", "$N"),
        ("cost: $$${M}", "cost: $3"),
        ("", ""),
    ],
)
def test_values(text: str, value: object) -> None:
    found = parse_template(text).evaluate(PARAMS)
    assert found == value
    assert type(found) is type(value)


def test_names_and_references() -> None:
    assert parse_template("${min(a, b) + a}x$c").names == {"a", "b", "c"}
    assert parse_template("$N").reference == "N"
    assert parse_template("${N}").reference == "N"
    assert parse_template("$N ").reference is None
    assert parse_template("${N + 1}").reference is None


@pytest.mark.parametrize(
    "text",
    [
        "$",
        "a $ b",
        "${}",
        "${N",
        "${N +}",
        "${N N}",
        "${().__class__}",
        "${N.real}",
        "${__import__('os')}",
        "${open(N)}",
        "${min}",
        "${min(N)}",
        "${min(*N, 2)}",
        "${max(N, key=M)}",
        "${[N]}",
        "${N[0]}",
        "${lambda: N}",
        "${N ** N}",
        "${N / 2}",
        "${N << 2}",
        "${N & 2}",
        "${~N}",
        "${N in M}",
        "${N is M}",
        "${f'{N}'}",
        "${b'x'}",
        "${1j}",
        "${...}",
        "${(x := 3)}",
        "${" + "(" * 400 + "1" + ")" * 90 + "}",
        "${" + "1+" * 400 + "1}",
        "${99999999999999999999999}",
    ],
)
def test_refused_when_parsed(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse_template(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${N // 0}", "division"),
        ("${N % (M - 3)}", "modulo"),
        ("${dtype * 1000}", "'bf16' is not a number"),
        ("${dtype + dtype}", "not a number"),
        ("${flag + 1}", "True is not a number"),
        ("${dtype < N}", "not a number"),
        ("${N * 9223372036854775807}", "64 bits"),
        ("${f * 1e308 * 1e308}", "finite"),
        ("a${none}", "cannot be put into text"),
    ],
)
def test_refused_when_evaluated(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        parse_template(text).evaluate(PARAMS)


def test_deep_nesting_is_an_error_at_most() -> None:
    assert parse_template("${" + "-" * 80 + "N}").evaluate(PARAMS) == 4096
    with contextlib.suppress(ExpressionError):
        parse_template("${" + "-" * 490 + "N}").evaluate(PARAMS)


_ATOMS = st.sampled_from(["a", "b", "c"]) | st.integers(0, 20).map(str)


def _number(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(" ".join),
        inner.map("({})".format),
        inner.map("-{}".format),
        st.tuples(inner, inner).map(lambda p: f"min({p[0]}, {p[1]})"),
        st.tuples(inner, inner, inner).map(lambda p: f"max({p[0]}, {p[1]}, {p[2]})"),
        st.tuples(inner, inner, inner).map(lambda p: f"({p[0]} if {p[1]} else {p[2]})"),
    )


_NUMBERS = st.recursive(_ATOMS, _number, max_leaves=12)
_ORDERS = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
_CONDITIONS = st.recursive(
    st.tuples(_NUMBERS, _ORDERS, _NUMBERS).map(" ".join)
    | st.tuples(_NUMBERS, _ORDERS, _NUMBERS, _ORDERS, _NUMBERS).map(" ".join),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(" ".join),
        inner.map("not ({})".format),
    ),
    max_leaves=4,
)


@settings(deadline=None)
@given(
    _NUMBERS | _CONDITIONS,
    st.fixed_dictionaries({name: st.integers(-50, 50) for name in "abc"}),
)
def test_equals_python(text: str, params: dict[str, int]) -> None:
    if len(text) > 400:
        return
    template = parse_template("${" + text + "}")
    try:
        expected = eval(text, {"min": min, "max": max}, dict(params))
    except ZeroDivisionError:
        with pytest.raises(ExpressionError):
            template.evaluate(params)
        return
    try:
        found = template.evaluate(params)
    except ExpressionError:
        with pytest.raises(ExpressionError, match="64 bits"):
            template.evaluate(params)
        return
    assert found == expected
    assert type(found) is type(expected)


@settings(deadline=None)
@given(st.text("$(){}abN+-*/%<>=!'\" 0129.,[]:", max_size=40))
def test_any_text_is_a_template_or_an_error(text: str) -> None:
    try:
        template = parse_template(text)
        template.evaluate(dict.fromkeys(template.names, 3))
    except ExpressionError:
        pass
    else:
        assert ("$" in text) or template.evaluate({}) == text
