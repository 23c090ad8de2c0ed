"""Expressions of a described launch: integers computed from the arguments of every call.

The language is that of templates (flyc_cli.manifest.expressions) without text: integers, names of
scalar arguments and of parameters, `x.shape[i]` and `x.strides[i]` of tensors, + - * // %,
comparisons, and/or/not, if/else, min and max. Values are 64-bit integers, which wrap.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flyc_cli.manifest.expressions import MAX_LENGTH, ExpressionError
from flyc_cli.manifest.messages import nearest
from runtime_loader.signature import Form, ScalarForm, TensorForm

BINARY = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_ALLOWED = (
    "numbers, names of arguments and parameters, x.shape[0], x.strides[0], + - * // %, "
    "comparisons, and/or/not, if/else, min(a, b), max(a, b) and ()"
)


@dataclass(frozen=True)
class LaunchExpression:
    """A parsed expression in which every name is known."""

    text: str
    tree: ast.expr


def parse_launch_expression(
    text: str | int, forms: Mapping[str, Form], params: Mapping[str, Any]
) -> LaunchExpression:
    """Parse and check `text`. Raises `ExpressionError`."""
    source = str(text).strip()
    if len(source) > MAX_LENGTH:
        raise ExpressionError(f"an expression has at most {MAX_LENGTH} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source, mode="eval").body
        _check(tree, forms, params)
    except (SyntaxError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else "too complex"
        raise ExpressionError(f"{source!r:.60} is not an expression: {why}") from None
    return LaunchExpression(source, tree)


def member(node: ast.expr) -> tuple[str, str, int] | None:
    """(`x`, `shape`, 0) for `x.shape[0]`."""
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Attribute)
        and isinstance(node.value.value, ast.Name)
        and isinstance(node.slice, ast.Constant)
        and type(node.slice.value) is int
    ):
        return node.value.value.id, node.value.attr, node.slice.value
    return None


def _check(node: ast.expr, forms: Mapping[str, Form], params: Mapping[str, Any]) -> None:
    children: list[ast.expr] = []
    allowed = True
    found = member(node)
    if found is not None:
        _check_member(*found, forms)
    elif isinstance(node, ast.Constant):
        allowed = isinstance(node.value, int) and -(2**63) <= node.value < 2**64
    elif isinstance(node, ast.Name):
        _check_name(node.id, forms, params)
    elif isinstance(node, ast.BinOp):
        allowed = isinstance(node.op, BINARY)
        children = [node.left, node.right]
    elif isinstance(node, ast.UnaryOp):
        allowed = isinstance(node.op, (ast.USub, ast.UAdd, ast.Not))
        children = [node.operand]
    elif isinstance(node, ast.BoolOp):
        children = node.values
    elif isinstance(node, ast.Compare):
        allowed = len(node.ops) == 1 and isinstance(node.ops[0], COMPARISONS)
        children = [node.left, *node.comparators]
    elif isinstance(node, ast.IfExp):
        children = [node.test, node.body, node.orelse]
    elif isinstance(node, ast.Call):
        allowed = (
            isinstance(node.func, ast.Name)
            and node.func.id in ("min", "max")
            and len(node.args) >= 2
            and not node.keywords
        )
        children = node.args
    else:
        allowed = False
    if not allowed:
        raise ExpressionError(
            f"{ast.unparse(node)!r:.60} is not allowed here: a launch computes with {_ALLOWED}"
        )
    for child in children:
        _check(child, forms, params)


def _check_name(name: str, forms: Mapping[str, Form], params: Mapping[str, Any]) -> None:
    form = forms.get(name)
    if form is None and name in params:
        if not isinstance(params[name], int):
            raise ExpressionError(f"the parameter {name} is {params[name]!r:.40}, not an integer")
        return
    if form is None:
        known = [*forms, *params]
        raise ExpressionError(f"there is no argument or parameter {name}{nearest(name, known)}")
    if not isinstance(form, ScalarForm) or form.type in ("f16", "bf16", "f32", "f64"):
        raise ExpressionError(f"the argument {name} is no integer; of a tensor use {name}.shape[0]")


def _check_member(name: str, attribute: str, index: int, forms: Mapping[str, Form]) -> None:
    form = forms.get(name)
    if not isinstance(form, TensorForm):
        tensors = [n for n, f in forms.items() if isinstance(f, TensorForm)]
        raise ExpressionError(f"there is no tensor argument {name}{nearest(name, tensors)}")
    if attribute not in ("shape", "strides"):
        raise ExpressionError(f"a tensor has shape and strides, not {attribute}")
    if not 0 <= index < len(form.shape):
        raise ExpressionError(f"{name} has dimensions 0 to {len(form.shape) - 1}, not {index}")
