"""Element types: the names that manifests use, with width in bits and DLPack identity."""

from __future__ import annotations

from runtime_loader.records import dataclass


@dataclass(frozen=True)
class ElementType:
    """One element or scalar type.

    `bits` is the width of an element, `kind` one of int, uint, float, bool or index.
    `dlpack` lists the accepted (code, bits) pairs of DLPack's DLDataType, best first;
    `typestr` the accepted `__cuda_array_interface__` / numpy type strings;
    `torch` the accepted `str(tensor.dtype)` without the `torch.` prefix.
    Types without a code of their own in those systems are passed as bytes (uint8).
    """

    name: str
    bits: int
    kind: str
    dlpack: tuple[tuple[int, int], ...] = ()
    typestr: tuple[str, ...] = ()
    torch: tuple[str, ...] = ()


_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_BYTES = ((_UINT, 8), (_INT, 8))


def _narrow(name: str, bits: int, code: int, *torch: str) -> ElementType:
    return ElementType(
        name, bits, "float", ((code, bits), *_BYTES), ("|u1", "|i1"), (*torch, "uint8", "int8")
    )


# DLPack codes 7 to 17 are those of dlpack.h 1.1 (kDLFloat8_e3m4 ... kDLFloat4_e2m1fn).
_ALL = (
    ElementType("i1", 1, "bool", ((_BOOL, 8), (_UINT, 8)), ("|b1",), ("bool",)),
    ElementType("i8", 8, "int", ((_INT, 8),), ("|i1",), ("int8",)),
    ElementType("i16", 16, "int", ((_INT, 16),), ("<i2",), ("int16",)),
    ElementType("i32", 32, "int", ((_INT, 32),), ("<i4",), ("int32",)),
    ElementType("i64", 64, "int", ((_INT, 64),), ("<i8",), ("int64",)),
    ElementType("u8", 8, "uint", ((_UINT, 8),), ("|u1",), ("uint8",)),
    ElementType("u16", 16, "uint", ((_UINT, 16),), ("<u2",), ("uint16",)),
    ElementType("u32", 32, "uint", ((_UINT, 32),), ("<u4",), ("uint32",)),
    ElementType("u64", 64, "uint", ((_UINT, 64),), ("<u8",), ("uint64",)),
    ElementType("index", 64, "index"),
    ElementType("f16", 16, "float", ((_FLOAT, 16),), ("<f2",), ("float16",)),
    ElementType("bf16", 16, "float", ((_BFLOAT, 16),), ("<V2", "|V2"), ("bfloat16",)),
    ElementType("f32", 32, "float", ((_FLOAT, 32),), ("<f4",), ("float32",)),
    ElementType("f64", 64, "float", ((_FLOAT, 64),), ("<f8",), ("float64",)),
    _narrow("f8e4m3fn", 8, 10, "float8_e4m3fn"),
    _narrow("f8e4m3fnuz", 8, 11, "float8_e4m3fnuz"),
    _narrow("f8e5m2", 8, 12, "float8_e5m2"),
    _narrow("f8e5m2fnuz", 8, 13, "float8_e5m2fnuz"),
    _narrow("f8e8m0fnu", 8, 14, "float8_e8m0fnu"),
    _narrow("f6e2m3fn", 6, 15),
    _narrow("f6e3m2fn", 6, 16),
    _narrow("f4e2m1fn", 4, 17, "float4_e2m1fn_x2"),
)

ELEMENT_TYPES: dict[str, ElementType] = {t.name: t for t in _ALL}

# What launcher scalars may be (a tensor's elements may be any of ELEMENT_TYPES but index).
SCALAR_TYPES: tuple[str, ...] = (
    *("i1", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "index"),
    *("f16", "bf16", "f32", "f64"),
)
