"""`$name` and `${expression}`: text that stands for values computed from a kernel's parameters.

The expression language is a subset of Python with Python's meaning: numbers, text, parameter
names, + - * // %, comparisons, and/or/not, `a if c else b`, min, max and parentheses. Arithmetic is
on numbers only and integers must stay within 64 bits, so an expression is always quick and small.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

MAX_LENGTH = 500

Scalar: TypeAlias = "str | int | float | bool | None"


class ExpressionError(ValueError):
    """An expression is malformed, or has no value for these parameters."""


@dataclass(frozen=True)
class Template:
    """Text with `$name` and `${expression}` in it. `names` are the parameters that it needs."""

    text: str
    parts: tuple[str | Expression, ...]
    names: frozenset[str]

    @property
    def reference(self) -> str | None:
        """The parameter, if the whole text is one `$name`."""
        part = self.parts[0] if len(self.parts) == 1 else None
        if isinstance(part, Expression) and isinstance(part.tree, ast.Name):
            return part.tree.id
        return None

    def evaluate(self, params: Mapping[str, Any]) -> Any:
        """The value for `params`: of its own type if all of the text is one `$`, else text."""
        if len(self.parts) == 1 and isinstance(self.parts[0], Expression):
            return self.parts[0].evaluate(params)
        return "".join(
            part if isinstance(part, str) else _as_text(part.evaluate(params))
            for part in self.parts
        )


@dataclass(frozen=True)
class Expression:
    """One parsed expression."""

    text: str
    tree: ast.expr

    def evaluate(self, params: Mapping[str, Any]) -> Any:
        try:
            return _evaluate(self.tree, params)
        except RecursionError:
            raise ExpressionError(f"{self.text!r:.60} is nested too deep") from None
        except (ArithmeticError, TypeError) as error:
            raise ExpressionError(f"{self.text!r:.60}: {error}") from None


_MARK = re.compile(r"\$(?:(\$)|([A-Za-z_][A-Za-z0-9_]*)|\{([^{}]*)\}|)")


def has_template(value: object) -> bool:
    return isinstance(value, str) and "$" in value


@functools.lru_cache(maxsize=4096)
def parse_template(text: str) -> Template:
    """Parse text that may hold `$name`, `${expression}` and `$$` (a dollar sign)."""
    parts: list[str | Expression] = []
    names: set[str] = set()
    end = 0
    for match in _MARK.finditer(text):
        dollar, name, expression = match.groups()
        literal = text[end : match.start()] + (dollar or "")
        end = match.end()
        if literal:
            parts.append(literal)
        if dollar:
            continue
        if name is None and expression is None:
            raise ExpressionError(
                f"the $ in {text!r:.60} starts no $name or ${{expression}}; write $$ for a dollar"
            )
        parsed = _parse(name or expression or "")
        names |= {node.id for node in ast.walk(parsed.tree) if isinstance(node, ast.Name)}
        parts.append(parsed)
    if text[end:] or not parts:
        parts.append(text[end:])
    return Template(text, tuple(parts), frozenset(names - set(_FUNCTIONS)))


def _parse(text: str) -> Expression:
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"an expression has at most {MAX_LENGTH} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text.strip(), mode="eval").body
        _check(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, ExpressionError):
            raise
        why = error.msg if isinstance(error, SyntaxError) else "too complex"
        raise ExpressionError(f"{text!r:.60} is not an expression: {why}") from None
    return Expression(text, tree)


_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max}


def _check(node: ast.expr) -> None:
    """Raise unless `node` is within the language."""
    children: list[ast.expr] = []
    if isinstance(node, ast.Constant):
        allowed = node.value is None or isinstance(node.value, (bool, int, float, str))
        if isinstance(node.value, int):
            _number(node.value)
    elif isinstance(node, ast.Name):
        allowed = node.id not in _FUNCTIONS
    elif isinstance(node, ast.BinOp):
        allowed = type(node.op) in _BINARY
        children = [node.left, node.right]
    elif isinstance(node, ast.UnaryOp):
        allowed = isinstance(node.op, (ast.USub, ast.UAdd, ast.Not))
        children = [node.operand]
    elif isinstance(node, ast.BoolOp):
        allowed = True
        children = node.values
    elif isinstance(node, ast.Compare):
        allowed = all(isinstance(op, (*_ORDER, ast.Eq, ast.NotEq)) for op in node.ops)
        children = [node.left, *node.comparators]
    elif isinstance(node, ast.IfExp):
        allowed = True
        children = [node.test, node.body, node.orelse]
    elif isinstance(node, ast.Call):
        allowed = (
            isinstance(node.func, ast.Name)
            and node.func.id in _FUNCTIONS
            and len(node.args) >= 2
            and not node.keywords
        )
        children = node.args
    else:
        allowed = False
    if not allowed:
        raise ExpressionError(
            f"{ast.unparse(node)!r:.60} is not allowed: an expression has numbers, text, parameter "
            "names, + - * // %, comparisons, and/or/not, if/else, min(a, b), max(a, b) and ()"
        )
    for child in children:
        _check(child)


def _evaluate(node: ast.expr, params: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return params[node.id]
    if isinstance(node, ast.BinOp):
        left, right = _number(_evaluate(node.left, params)), _number(_evaluate(node.right, params))
        return _number(_BINARY[type(node.op)](left, right))
    if isinstance(node, ast.UnaryOp):
        value = _evaluate(node.operand, params)
        if isinstance(node.op, ast.Not):
            return not value
        return -_number(value) if isinstance(node.op, ast.USub) else +_number(value)
    if isinstance(node, ast.BoolOp):
        return _evaluate_bool(node, params)
    if isinstance(node, ast.Compare):
        return _evaluate_compare(node, params)
    if isinstance(node, ast.IfExp):
        return _evaluate(node.body if _evaluate(node.test, params) else node.orelse, params)
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Name)
    return _FUNCTIONS[node.func.id](*(_number(_evaluate(arg, params)) for arg in node.args))


def _evaluate_bool(node: ast.BoolOp, params: Mapping[str, Any]) -> Any:
    value: Any = None
    stop = isinstance(node.op, ast.Or)
    for operand in node.values:
        value = _evaluate(operand, params)
        if bool(value) is stop:
            return value
    return value


def _evaluate_compare(node: ast.Compare, params: Mapping[str, Any]) -> bool:
    left = _evaluate(node.left, params)
    for op, operand in zip(node.ops, node.comparators, strict=True):
        right = _evaluate(operand, params)
        if isinstance(op, (ast.Eq, ast.NotEq)):
            holds = (left == right) is isinstance(op, ast.Eq)
        else:
            holds = _ORDER[type(op)](_number(left), _number(right))
        if not holds:
            return False
        left = right
    return True


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ExpressionError(f"{value!r:.40} is not a number")
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise ExpressionError("the result does not fit 64 bits")
    if isinstance(value, float) and not abs(value) < float("inf"):
        raise ExpressionError("the result is not a finite number")
    return value


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise ExpressionError(f"{value!r:.40} cannot be put into text")
