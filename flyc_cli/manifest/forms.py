"""Argument specs to argument forms: FlyDSL's memref encoding of shapes, strides and alignment.

A form's extents and strides are those of `MemRefSpec` in `flydsl.compiler.jit_argument` (0.5.0):
≥ 0 is static, -d is dynamic and a multiple of d. The rules of that module hold here too: at least
one dimension, divisibility a power of two, alignment of one element unless told otherwise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from flyc_cli.manifest.messages import choices, nearest, shown
from flyc_cli.manifest.model import (
    Arg,
    ArgDefaults,
    ConstantArg,
    Extent,
    PointerArg,
    ScalarArg,
    StructArg,
    TensorArg,
    TypeValue,
    Value,
)
from flyc_cli.manifest.source import Spot
from runtime_loader.element_types import ELEMENT_TYPES, SCALAR_TYPES
from runtime_loader.signature import (
    MAX_RANK,
    Form,
    PointerForm,
    ScalarForm,
    StreamForm,
    StructForm,
    TensorForm,
)

MAX_ALIGN = 2**20
_MAX_EXTENT = 2**31 - 1
_DYNAMIC = re.compile(r"\?([0-9]{0,18})")
_TENSOR_TYPES = [name for name in ELEMENT_TYPES if name != "index"]

# Gives a template its value for the parameters at hand; the spot is for errors.
Resolve = Callable[[Any, Spot], Any]


def make_form(name: str, arg: Arg, defaults: ArgDefaults, resolve: Resolve, spot: Spot) -> Form:
    """The form of one argument; raise `ManifestError` at the value that is wrong."""
    if isinstance(arg, TensorArg):
        return _Tensor(arg, defaults, resolve, spot).form(name)
    if isinstance(arg, PointerArg):
        dtype = _dtype(resolve(arg.dtype, spot.at("pointer")), spot.at("pointer"))
        return PointerForm(name, dtype, _align(arg.align, dtype, defaults, resolve, spot))
    if isinstance(arg, ScalarArg):
        return _scalar(name, _type_name(resolve(arg.type, spot)), defaults, spot)
    assert isinstance(arg, StructArg)
    fields = tuple(
        make_form(field, spec, defaults, resolve, spot.at("struct", field))
        for field, spec in arg.fields.items()
        if not isinstance(spec, ConstantArg)
    )
    for form in fields:
        if isinstance(form, StreamForm):
            spot.at("struct", form.name).fail("a stream is an argument of its own, not a field")
    return StructForm(name, fields)


def struct_constants(
    args: Mapping[str, Arg], resolve: Resolve, spot: Spot, prefix: str = ""
) -> dict[str, Value]:
    """The compile-time fields of struct arguments by their path, as `config.width`."""
    found: dict[str, Value] = {}
    for name, arg in args.items():
        if isinstance(arg, ConstantArg):
            found[prefix + name] = resolve(arg.value, spot.at(name, "constexpr"))
        elif isinstance(arg, StructArg):
            inner = spot.at(name, "struct")
            found |= struct_constants(arg.fields, resolve, inner, f"{prefix}{name}.")
    return found


def _scalar(name: str, kind: Any, defaults: ArgDefaults, spot: Spot) -> Form:
    if kind == "stream":
        return StreamForm(name)
    if kind == "pointer":
        return PointerForm(name, "i8", defaults.align or 1)
    if kind not in SCALAR_TYPES:
        known = [*SCALAR_TYPES, "stream", "pointer"]
        spot.fail(
            f"{shown(kind)} is not a type of scalar; expected {choices(known)}, or a mapping for "
            f"a tensor, a pointer or a struct{nearest(kind, known)}"
        )
    return ScalarForm(name, kind)


def _type_name(value: Any) -> Any:
    return value.name if isinstance(value, TypeValue) else value


def _dtype(value: Any, spot: Spot) -> str:
    name = _type_name(value)
    if name not in _TENSOR_TYPES:
        spot.fail(
            f"{shown(name)} is not an element type; expected {choices(_TENSOR_TYPES)}"
            f"{nearest(name, _TENSOR_TYPES)}"
        )
    return str(name)


def _align(
    value: Extent | None, dtype: str, defaults: ArgDefaults, resolve: Resolve, spot: Spot
) -> int:
    if value is not None:
        return _power_of_two(resolve(value, spot.at("align")), "bytes", spot.at("align"))
    return defaults.align or (ELEMENT_TYPES[dtype].bits + 7) // 8


def _power_of_two(value: Any, unit: str, spot: Spot) -> int:
    if not _is_int(value) or not 1 <= value <= MAX_ALIGN or value & (value - 1):
        spot.fail(f"{shown(value)} is not a power of two from 1 to {MAX_ALIGN} ({unit})")
    return int(value)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class _Tensor:
    """One tensor spec for one set of parameters."""

    def __init__(self, arg: TensorArg, defaults: ArgDefaults, resolve: Resolve, spot: Spot) -> None:
        self._arg = arg
        self._defaults = defaults
        self._resolve = resolve
        self._spot = spot
        self._bits = arg.stride_bits or defaults.stride_bits or 64

    def form(self, name: str) -> TensorForm:
        arg, spot = self._arg, self._spot
        dtype = _dtype(self._resolve(arg.dtype, spot.at("dtype")), spot.at("dtype"))
        shape = self._shape()
        leading = self._leading(len(shape))
        if arg.strides is not None:
            strides = self._written_strides(shape, leading)
        elif arg.layout == "static":
            strides = self._contiguous_strides(shape, leading)
        else:
            strides = self._dynamic_strides(shape, leading)
        return TensorForm(
            name=name,
            dtype=dtype,
            shape=shape,
            strides=strides,
            align=_align(arg.align, dtype, self._defaults, self._resolve, spot),
            stride_bits=self._bits,
        )

    def _shape(self) -> tuple[int, ...]:
        spot = self._spot.at("shape")
        shape = tuple(
            self._extent(value, 1, _MAX_EXTENT, spot.at(i))
            for i, value in enumerate(self._arg.shape)
        )
        if not 1 <= len(shape) <= MAX_RANK:
            spot.fail(
                f"a tensor has 1 to {MAX_RANK} dimensions, not {len(shape)}"
                + ("" if shape else " (FlyDSL has no tensors without; pass one element as [1])")
            )
        for i, extent in enumerate(shape):
            if self._arg.layout == "static" and extent < 0:
                spot.at(i).fail(f"{self._shown(shape[i])}: layout static needs a number here")
            if self._arg.layout == "dynamic" and extent != -1:
                spot.at(i).fail(
                    f"{self._shown(extent)}: layout dynamic compiles no extent in, as for a bare "
                    'tensor; write "?", or leave out the layout to keep this extent'
                )
        return shape

    def _extent(self, value: Extent, low: int, high: int, spot: Spot) -> int:
        """A number or `?`, encoded."""
        resolved = self._resolve(value, spot)
        if _is_int(resolved) and low <= resolved <= high:
            return int(resolved)
        match = _DYNAMIC.fullmatch(resolved) if isinstance(resolved, str) else None
        if match is None:
            spot.fail(
                f'{shown(resolved)} is not a number from {low} to {high}, "?" (dynamic) or "?8" '
                "(dynamic, a multiple of 8)"
            )
        if not match[1]:
            return -1
        return -_power_of_two(int(match[1]), "a divisibility", spot)

    @staticmethod
    def _shown(extent: int) -> str:
        return str(extent) if extent >= 0 else '"?"' if extent == -1 else f'"?{-extent}"'

    def _leading(self, rank: int) -> int | None:
        if self._arg.leading_dim is None:
            return None
        spot = self._spot.at("leading_dim")
        value = self._resolve(self._arg.leading_dim, spot)
        if not _is_int(value) or not 0 <= value < rank:
            spot.fail(f"{shown(value)} is not a dimension of the shape (0 to {rank - 1})")
        return int(value)

    def _written_strides(self, shape: tuple[int, ...], leading: int | None) -> tuple[int, ...]:
        assert self._arg.strides is not None
        spot = self._spot.at("strides")
        default = self._divisibility()
        strides = tuple(
            self._extent(value, 0, 2 ** (self._bits - 1) - 1, spot.at(i))
            for i, value in enumerate(self._arg.strides)
        )
        if len(strides) != len(shape):
            spot.fail(f"{len(strides)} strides for {len(shape)} dimensions")
        if leading is not None and strides[leading] != 1:
            self._spot.at("leading_dim").fail(
                f"dimension {leading} has stride {self._shown(strides[leading])}, not 1"
            )
        if self._arg.divisible_by is not None and -1 not in strides:
            self._spot.at("divisible_by").fail('no stride is "?", so it would say nothing')
        if self._arg.layout == "static" and min(strides) < 0:
            spot.fail("layout static needs numbers only")
        if self._arg.layout == "dynamic" and [s for s in strides if s >= 0] != [1]:
            spot.fail('layout dynamic has stride 1 once and "?" for every other dimension')
        return tuple(-default if stride == -1 else stride for stride in strides)

    def _contiguous_strides(self, shape: tuple[int, ...], leading: int | None) -> tuple[int, ...]:
        """Row-major, with the leading dimension moved innermost."""
        if self._arg.divisible_by is not None:
            self._spot.at("divisible_by").fail("layout static has no dynamic stride")
        innermost = len(shape) - 1 if leading is None else leading
        order = [innermost, *(i for i in reversed(range(len(shape))) if i != innermost)]
        strides = dict(zip(order, _products([shape[i] for i in order]), strict=True))
        if max(strides.values()) >= 2 ** (self._bits - 1):
            self._spot.at("shape").fail(f"the strides of this shape exceed {self._bits} bits")
        return tuple(strides[i] for i in range(len(shape)))

    def _dynamic_strides(self, shape: tuple[int, ...], leading: int | None) -> tuple[int, ...]:
        """1 for the leading dimension, dynamic for the others."""
        if leading is None:
            leading = len(shape) - 1
            if len(shape) > 1 and shape[-1] == 1:
                first = next(i for i in range(len(shape)) if math.prod(shape[i + 1 :]) == 1)
                self._spot.at("shape").fail(
                    f"the last extent is 1, so dimension {first} of a contiguous tensor has stride "
                    f"1 too (FlyDSL would compile for the first such one): add leading_dim: {first}"
                    f" or leading_dim: {leading}"
                )
        if len(shape) == 1 and self._arg.divisible_by is not None:
            self._spot.at("divisible_by").fail("a tensor of one dimension has no dynamic stride")
        return tuple(1 if i == leading else -self._divisibility() for i in range(len(shape)))

    def _divisibility(self) -> int:
        if self._arg.divisible_by is None:
            return 1
        spot = self._spot.at("divisible_by")
        return _power_of_two(self._resolve(self._arg.divisible_by, spot), "elements", spot)


def _products(extents: list[int]) -> list[int]:
    """Running products, from 1: the stride of each dimension, innermost first."""
    return [math.prod(extents[:i]) for i in range(len(extents))]
