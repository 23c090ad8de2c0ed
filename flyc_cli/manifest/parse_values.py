"""Parameter values and arguments of a manifest, checked for form."""

from __future__ import annotations

from typing import Any

from flyc_cli.manifest.cursor import Cursor, identifier, python_name
from flyc_cli.manifest.messages import choices, shown
from flyc_cli.manifest.model import (
    Arg,
    ConstantArg,
    EnumValue,
    Extent,
    ListValue,
    ObjectValue,
    PointerArg,
    ScalarArg,
    StructArg,
    TensorArg,
    TupleValue,
    TypeValue,
    Value,
)
from flyc_cli.manifest.parse_settings import read_stride_bits

_TAGS = ("type", "enum", "object", "tuple", "list")


def read_value(cursor: Cursor) -> Value:
    """A parameter's value: a scalar, or a mapping with one tag."""
    if isinstance(cursor.value, list):
        cursor.fail(
            "a list here is not swept; write {list: [...]} or {tuple: [...]} to pass one list"
        )
    if not isinstance(cursor.value, dict):
        scalar: Value = cursor.value
        return scalar
    fields = cursor.fields("a typed value", _TAGS)
    if len(cursor.value) != 1:
        cursor.fail(f"a typed value has one key: {choices(_TAGS)}")
    (tag,) = cursor.value
    inner = fields[tag]
    if tag == "type":
        return TypeValue(inner.text("a type such as bf16"))
    if tag == "enum":
        module, qualname = python_name(inner, "modes:Mode.FAST")
        if "." not in qualname:
            inner.fail(f"{shown(inner.value)} names no member, such as modes:Mode.FAST")
        return EnumValue(module, qualname)
    if tag == "object":
        return ObjectValue(*python_name(inner, "layouts:ROW_MAJOR"))
    if not isinstance(inner.value, list):
        inner.expected("a list of values")
    items = tuple(read_value(Cursor(v, inner.spot.at(i))) for i, v in enumerate(inner.value))
    return TupleValue(items) if tag == "tuple" else ListValue(items)


def read_arg(cursor: Cursor) -> Arg:
    if isinstance(cursor.value, str):
        return ScalarArg(cursor.value)
    kinds = "a tensor ({dtype, shape}), a pointer ({pointer}), a struct ({struct}) or a type"
    if not isinstance(cursor.value, dict):
        cursor.expected(kinds)
    if "pointer" in cursor.value:
        fields = cursor.fields("a pointer", ("pointer", "align"))
        dtype = fields["pointer"].text("an element type such as f32")
        return PointerArg(dtype, fields.get("align", _extent, None))
    if "struct" in cursor.value:
        inner = cursor.fields("a struct", ("struct",))["struct"]
        members: dict[str, Arg] = {}
        for name, spec in inner.entries("fields by name"):
            members[identifier(name, "a field", spec.spot)] = _read_field(spec)
        if not members:
            inner.fail("the struct has no fields")
        return StructArg(members)
    if "constexpr" in cursor.value:
        cursor.fail("only a field of a struct is written {constexpr: …}; list it under constexpr")
    if not {"dtype", "shape"} & set(cursor.value):
        cursor.fail(f"expected {kinds}")
    fields = cursor.fields(
        "a tensor",
        (
            *("dtype", "shape", "strides", "leading_dim", "align", "divisible_by", "layout"),
            "stride_bits",
        ),
        ("dtype", "shape"),
    )
    return TensorArg(
        dtype=fields["dtype"].text("an element type such as bf16"),
        shape=_extents(fields["shape"]),
        strides=fields.get("strides", _extents, None),
        leading_dim=fields.get("leading_dim", _extent, None),
        align=fields.get("align", _extent, None),
        divisible_by=fields.get("divisible_by", _extent, None),
        layout=fields.get("layout", lambda c: c.one_of("a layout", ("static", "dynamic")), None),
        stride_bits=fields.get("stride_bits", read_stride_bits, None),
    )


def _read_field(cursor: Cursor) -> Arg:
    if isinstance(cursor.value, dict) and "constexpr" in cursor.value:
        fields = cursor.fields("a compile-time field", ("constexpr",))
        return ConstantArg(read_value(fields["constexpr"]))
    return read_arg(cursor)


def _extents(cursor: Cursor) -> tuple[Extent, ...]:
    if not isinstance(cursor.value, list):
        cursor.expected('a list such as ["?", $N]')
    return tuple(_extent(Cursor(value, cursor.spot.at(i))) for i, value in enumerate(cursor.value))


def _extent(cursor: Cursor) -> Extent:
    value: Any = cursor.value
    if isinstance(value, dict) and None in value.values():
        cursor.fail('write a dynamic extent in quotes: "?"')
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        cursor.expected('a number, $name, "${expression}" or "?"')
    return value
