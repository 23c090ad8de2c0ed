"""Machine code to instructions, by tinygrad's instruction tables (generated from AMD's ISA XML)."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tinygrad.renderer.amd.dsl import EnumBitField, FixedBitField, Inst, SrcField

from tests.hip_device.interpreter.errors import NotModelledError
from tests.hip_device.interpreter.targets import Processor

LITERAL = 255
_SDWA, _DPP16, _DPP8 = 249, 250, (233, 234)
_VARIANTS = ("_LIT", "_DPP16", "_DPP8", "_SDWA_SDST", "_SDWA")
# VOP3PX2 puts V_MFMA_LD_SCALE_B32 before the MFMA that it scales; the table leaves it open.
_SCALE_PREFIX = 0xD3AC
# Memory encodings that RDNA4 renamed.
_RENAMED = {"VFLAT": "FLAT", "VGLOBAL": "GLOBAL", "VSCRATCH": "SCRATCH", "VBUFFER": "MUBUF"}


# MFMA opcodes of gfx90a that the tables, made for later CDNA processors, lack or call otherwise
# (MI200 ISA document, VOP3P-MAI).
_GFX90A_MFMA = {
    0x54: "v_mfma_i32_32x32x8_i8",
    0x55: "v_mfma_i32_16x16x16_i8",
    0x63: "v_mfma_f32_32x32x4_2b_bf16",
    0x64: "v_mfma_f32_16x16x4_4b_bf16",
    0x65: "v_mfma_f32_4x4x4_16b_bf16",
    0x66: "v_mfma_f32_32x32x8_bf16",
    0x67: "v_mfma_f32_16x16x16_bf16",
    0x68: "v_mfma_f32_32x32x2_2b_bf16",
    0x69: "v_mfma_f32_16x16x2_4b_bf16",
    0x6B: "v_mfma_f32_4x4x2_16b_bf16",
    0x6C: "v_mfma_f32_32x32x4_bf16",
    0x6D: "v_mfma_f32_16x16x8_bf16",
}
_MFMA_BITS, _MFMA_OP = 0b110100111 << 7, 16


@dataclass(frozen=True)
class Instruction:
    """One decoded instruction.

    `address` is relative to the code object's load base. `name` is the mnemonic without encoding
    suffix, `encoding` the base encoding (VOP2, SOPP...), `variant` how it is extended: "", "LIT",
    "DPP16", "DPP8" or "SDWA". `fields` are raw bit fields; VGPR fields count from v0.
    """

    address: int
    size: int
    name: str
    encoding: str
    variant: str
    fields: Mapping[str, int]
    table: type[Inst] = field(repr=False)
    raw: int = field(repr=False)

    @property
    def text(self) -> str:
        """The disassembly: the mnemonic and the operands in the order of the encoding."""
        inst: Any = object.__new__(self.table)
        inst._raw = self.raw
        try:
            operands = repr(inst).partition("(")[2].removesuffix(")")
        except (RuntimeError, ValueError):
            operands = f"{self.raw:#x}"
        return f"{self.name} {operands}".rstrip()

    def __str__(self) -> str:
        return f"{self.text} at 0x{self.address:x}"

    def get(self, name: str) -> int:
        """A bit field; 0 if the encoding has none of that name."""
        return self.fields.get(name, 0)


@dataclass(frozen=True)
class _Format:
    cls: type[Inst]
    mask: int
    value: int
    width: int

    def matches(self, raw: int, available: int) -> bool:
        if self.width > available or raw & self.mask != self.value:
            return False
        for _, bits in self.cls._fields:
            if isinstance(bits, EnumBitField):
                number = raw >> bits.lo & bits.mask
                if number not in bits._enum._value2member_map_:
                    return False
                if bits.allowed is not None and bits._enum(number) not in bits.allowed:
                    return False
        return self.cls.__name__ != "VOP3PX2" or raw >> 16 & 0xFFFF == _SCALE_PREFIX


def _base_name(cls: type[Inst]) -> tuple[str, str]:
    """A class's encoding and variant: VOP2_DPP16 is ("VOP2", "DPP16")."""
    name = cls.__name__
    for suffix in _VARIANTS:
        if name.endswith(suffix):
            return name.removesuffix(suffix), suffix[1:].removesuffix("_SDST")
    return name, ""


_BUCKET_LOW = 23  # Bits 31:23 tell most encodings apart.


@functools.cache
def _classes(family: str) -> dict[str, type[Inst]]:
    module = importlib.import_module(f"tinygrad.runtime.autogen.amd.{family}.ins")
    return {
        name: cls
        for name, cls in vars(module).items()
        if isinstance(cls, type) and issubclass(cls, Inst) and cls is not Inst
    }


@functools.cache
def _formats(family: str, bucket: int) -> list[_Format]:
    """The formats that a first word with `bucket` in its bits 31:23 can have, best first."""
    formats = []
    for cls in _classes(family).values():
        fixed = [f for _, f in cls._fields if isinstance(f, FixedBitField)]
        mask = sum(f.mask << f.lo for f in fixed)
        value = sum(f.default << f.lo for f in fixed)
        low = mask & (0x1FF << _BUCKET_LOW)
        if _base_name(cls)[1] in ("", "LIT") and (bucket << _BUCKET_LOW ^ value) & low == 0:
            formats.append(_Format(cls, mask, value, cls._base_size * 8))
    # The most specific encoding first; forms with a literal only for opcodes that demand one.
    formats.sort(
        key=lambda f: (f.cls.__name__ != "VOP3PX2", _base_name(f.cls)[1], -f.mask.bit_count())
    )
    return formats


def _variant(cls: type[Inst], raw: int, family: str) -> str:
    sources = [raw >> f.lo & f.mask for _, f in cls._fields if isinstance(f, SrcField)]
    nine_bit = [raw >> f.lo & f.mask for _, f in cls._fields if type(f) is SrcField]
    src0 = nine_bit[0] if nine_bit else None
    if src0 == _DPP16:
        return "_DPP16"
    if family == "cdna" and src0 == _SDWA:
        return "_SDWA"
    if family != "cdna" and src0 in _DPP8:
        return "_DPP8"
    if hasattr(cls, "opx") and any(k in _mnemonic(cls, raw) for k in ("fmaak", "fmamk")):
        return "_LIT"
    literal = LITERAL in sources and cls.__name__ not in ("DS", "FLAT", "GLOBAL", "SCRATCH")
    return "_LIT" if literal else ""


def decode(code: bytes, address: int, processor: Processor) -> Instruction:
    """Decode the instruction at the start of `code`, which lies at `address`.

    Raises `NotModelledError` for what the tables do not hold.
    """
    window, family = code[:16], processor.family
    raw = int.from_bytes(window, "little")
    if processor.name == "gfx90a" and raw >> 16 & 0xFF80 == _MFMA_BITS:
        name = _GFX90A_MFMA.get(raw >> _MFMA_OP & 0x7F)
        if name is not None:
            return _instruction(_classes(family)["VOP3P_MFMA"], raw, address, "", name)
    classes = _classes(family)
    formats = _formats(family, raw >> _BUCKET_LOW & 0x1FF)
    found = next((f.cls for f in formats if f.matches(raw, len(window) * 8)), None)
    if found is None:
        raise NotModelledError(f"no {family} instruction is encoded as {window[:8].hex()}")
    _, variant = _base_name(found)
    if not variant and (suffix := _variant(found, raw, family)):
        extended = classes.get(found.__name__ + suffix) or classes.get(
            f"{found.__name__}{suffix}_SDST"
        )
        if extended is None:
            raise NotModelledError(
                f"{window[:8].hex()} is {found.__name__}{suffix}, which {family} lacks"
            )
        found, variant = extended, suffix[1:]
    return _instruction(found, raw, address, variant)


def _instruction(
    cls: type[Inst], raw: int, address: int, variant: str, name: str | None = None
) -> Instruction:
    raw &= (1 << cls._base_size * 8) - 1
    encoding = _base_name(cls)[0].removesuffix("_SDST").removesuffix("_MFMA")
    return Instruction(
        address=address,
        size=cls._base_size,
        name=name or _mnemonic(cls, raw),
        encoding=_RENAMED.get(encoding, encoding),
        variant=variant,
        fields={key: raw >> f.lo & f.mask for key, f in cls._fields},
        table=cls,
        raw=raw,
    )


def _mnemonic(cls: type[Inst], raw: int) -> str:
    inst: Any = object.__new__(cls)
    inst._raw = raw
    if hasattr(cls, "opx"):
        return f"{inst.opx.name.lower()}::{inst.opy.name.lower()}"
    name: str = inst.op.name.lower()
    name = name.removesuffix("_e32").removesuffix("_e64")
    # The CDNA tables keep Vega's name for what has been fused since gfx906.
    return name.replace("v_mad_mix", "v_fma_mix")
