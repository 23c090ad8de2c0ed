"""Argument forms: what each launcher argument is, and which host slots it becomes.

The forms and their slots are those of FlyDSL's `flydsl.compiler.jit_argument` (0.5.0): a tensor is
a pointer, then its dynamic extents (i32, ascending), then its dynamic strides (i64, or i32 with
`stride_bits` 32, ascending); a struct is its fields in order; a stream is a pointer.
"""

from __future__ import annotations

from runtime_loader.checked import Fields
from runtime_loader.element_types import ELEMENT_TYPES, SCALAR_TYPES
from runtime_loader.errors import BundleError
from runtime_loader.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

MAX_RANK = 8
_EXTENT_LIMIT = 2**62


@dataclass(frozen=True)
class TensorForm:
    """A tensor in device memory.

    `shape` and `strides` (both in elements, one entry per dimension): a value ≥ 0 is static and
    compiled in; a value -d is dynamic and promised to be a multiple of d. `align` is the promised
    alignment of the data pointer, in bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    align: int
    stride_bits: int = 64

    def slots(self) -> tuple[str, ...]:
        return (
            "ptr",
            *("i32" for extent in self.shape if extent < 0),
            *(f"i{self.stride_bits}" for stride in self.strides if stride < 0),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "tensor",
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "strides": list(self.strides),
            "align": self.align,
            "stride_bits": self.stride_bits,
        }

    @classmethod
    def read(cls, fields: Fields) -> TensorForm:
        shape = fields.integers("shape", -_EXTENT_LIMIT, _EXTENT_LIMIT)
        strides = fields.integers("strides", -_EXTENT_LIMIT, _EXTENT_LIMIT)
        if len(shape) != len(strides) or len(shape) > MAX_RANK:
            raise BundleError(f"{fields.what}: bad rank ({len(shape)} and {len(strides)})")
        return cls(
            name=fields.text("name"),
            dtype=_one_of(fields, "dtype", ELEMENT_TYPES),
            shape=shape,
            strides=strides,
            align=fields.integer("align", 1, 2**20),
            stride_bits=_stride_bits(fields),
        )


@dataclass(frozen=True)
class PointerForm:
    """A bare device pointer to `dtype` elements; `align` is promised in bytes. None means null.

    `default` is the address that the launcher takes when the argument is left out, if it may be.
    """

    name: str
    dtype: str
    align: int
    default: int | None = None

    def slots(self) -> tuple[str, ...]:
        return ("ptr",)

    def to_json(self) -> dict[str, Any]:
        record = {"kind": "pointer", "name": self.name, "dtype": self.dtype, "align": self.align}
        return record if self.default is None else {**record, "default": self.default}

    @classmethod
    def read(cls, fields: Fields) -> PointerForm:
        return cls(
            name=fields.text("name"),
            dtype=_one_of(fields, "dtype", ELEMENT_TYPES),
            align=fields.integer("align", 1, 2**20),
            default=_default(fields, 64),
        )


@dataclass(frozen=True)
class ScalarForm:
    """A number; `type` is one of SCALAR_TYPES.

    `default` is the bit pattern that the launcher takes when the argument is left out, if it may
    be.
    """

    name: str
    type: str
    default: int | None = None

    def slots(self) -> tuple[str, ...]:
        return (SLOT_OF_SCALAR[self.type],)

    def to_json(self) -> dict[str, Any]:
        record = {"kind": "scalar", "name": self.name, "type": self.type}
        return record if self.default is None else {**record, "default": self.default}

    @classmethod
    def read(cls, fields: Fields) -> ScalarForm:
        kind = _one_of(fields, "type", SLOT_OF_SCALAR)
        return cls(fields.text("name"), kind, _default(fields, ELEMENT_TYPES[kind].bits))


@dataclass(frozen=True)
class StreamForm:
    """The stream to launch on. `implicit`: the launcher declares none, and FlyDSL appends one."""

    name: str
    implicit: bool = False

    def slots(self) -> tuple[str, ...]:
        return ("ptr",)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "stream", "name": self.name, "implicit": self.implicit}

    @classmethod
    def read(cls, fields: Fields) -> StreamForm:
        return cls(name=fields.text("name"), implicit=fields.flag("implicit"))


@dataclass(frozen=True)
class StructForm:
    """A FlyDSL `@fx.struct`: an object or mapping with one attribute or item for each field.

    `constants` are the plain ones of its compile-time fields (numbers, text, tuples of them), with
    the values that were compiled in. The struct may be left out if all its fields have defaults.
    """

    name: str
    fields: tuple[Form, ...]
    constants: tuple[tuple[str, object], ...] = ()

    def slots(self) -> tuple[str, ...]:
        return tuple(slot for field in self.fields for slot in field.slots())

    def to_json(self) -> dict[str, Any]:
        record: dict[str, Any] = {
            "kind": "struct",
            "name": self.name,
            "fields": [field.to_json() for field in self.fields],
        }
        if self.constants:
            record["constants"] = {name: _listed(value) for name, value in self.constants}
        return record

    @classmethod
    def read(cls, fields: Fields) -> StructForm:
        constants = {} if fields.optional("constants") is None else fields.mapping("constants")
        return cls(
            name=fields.text("name"),
            fields=fields.objects("fields", read_form),
            constants=tuple(
                (name, _constant(value, f"{fields.what}: {name}"))
                for name, value in constants.items()
            ),
        )


Form: TypeAlias = TensorForm | PointerForm | ScalarForm | StreamForm | StructForm

# The host slot of each scalar type: LLVM integers carry no sign, and an index is 64 bits wide.
SLOT_OF_SCALAR: dict[str, str] = {
    name: "i64" if name == "index" else f"i{ELEMENT_TYPES[name].bits}" if name[0] == "u" else name
    for name in SCALAR_TYPES
}

_READERS: dict[str, Callable[[Fields], Form]] = {
    "tensor": TensorForm.read,
    "pointer": PointerForm.read,
    "scalar": ScalarForm.read,
    "stream": StreamForm.read,
    "struct": StructForm.read,
}


def read_form(fields: Fields) -> Form:
    """Decode one argument form of a specialisation record."""
    reader = _READERS.get(fields.text("kind"))
    if reader is None:
        raise BundleError(f"{fields.what}: unknown argument kind {fields.text('kind')!r:.40}")
    try:
        return reader(fields)
    except RecursionError:
        raise BundleError(f"{fields.what}: structs are nested too deep") from None


def _constant(value: object, what: str) -> object:
    if isinstance(value, list):
        return tuple(_constant(item, what) for item in value)
    if not isinstance(value, (bool, int, float, str)):
        raise BundleError(f"{what}: {value!r:.40} is no compile-time value")
    return value


def _listed(value: object) -> object:
    return [_listed(item) for item in value] if isinstance(value, tuple) else value


def _one_of(fields: Fields, key: str, known: dict[str, Any]) -> str:
    name = fields.text(key)
    if name not in known:
        raise BundleError(f"{fields.what}: {key} {name!r:.40} is not a type that flyc knows")
    return name


def _default(fields: Fields, bits: int) -> int | None:
    return None if fields.optional("default") is None else fields.integer("default", 0, 2**bits - 1)


def _stride_bits(fields: Fields) -> int:
    bits = fields.integer("stride_bits")
    if bits not in (32, 64):
        raise BundleError(f"{fields.what}: strides of {bits} bits; only 32 and 64 exist")
    return bits
