"""Machine code to instructions, by tinygrad's instruction tables (generated from AMD's ISA XML)."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tinygrad.renderer.amd.dsl import EnumBitField, FixedBitField, Inst, SrcField

from tests.hip_device.interpreter.errors import NotModelledError

LITERAL = 255
_SDWA, _DPP16, _DPP8 = 249, 250, (233, 234)
_VARIANTS = ("_LIT", "_DPP16", "_DPP8", "_SDWA_SDST", "_SDWA")
# VOP3PX2 puts V_MFMA_LD_SCALE_B32 before the MFMA that it scales; the table leaves it open.
_SCALE_PREFIX = 0xD3AC
# Memory encodings that RDNA4 renamed.
_RENAMED = {"VFLAT": "FLAT", "VGLOBAL": "GLOBAL", "VSCRATCH": "SCRATCH", "VBUFFER": "MUBUF"}


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
    text: str

    def __str__(self) -> str:
        return f"{self.text} at 0x{self.address:x}"

    def field(self, name: str) -> int:
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
        for _, field in self.cls._fields:
            if isinstance(field, EnumBitField):
                number = raw >> field.lo & field.mask
                if number not in field._enum._value2member_map_:
                    return False
                if field.allowed is not None and field._enum(number) not in field.allowed:
                    return False
        return self.cls.__name__ != "VOP3PX2" or raw >> 16 & 0xFFFF == _SCALE_PREFIX


def _base_name(cls: type[Inst]) -> tuple[str, str]:
    """A class's encoding and variant: VOP2_DPP16 is ("VOP2", "DPP16")."""
    name = cls.__name__
    for suffix in _VARIANTS:
        if name.endswith(suffix):
            return name.removesuffix(suffix), suffix[1:].removesuffix("_SDST")
    return name, ""


@functools.cache
def _formats(family: str) -> tuple[list[_Format], dict[str, type[Inst]]]:
    module = importlib.import_module(f"tinygrad.runtime.autogen.amd.{family}.ins")
    classes: dict[str, type[Inst]] = {
        name: cls
        for name, cls in vars(module).items()
        if isinstance(cls, type) and issubclass(cls, Inst) and cls is not Inst
    }
    formats = []
    for cls in classes.values():
        fixed = [f for _, f in cls._fields if isinstance(f, FixedBitField)]
        mask = sum(f.mask << f.lo for f in fixed)
        value = sum(f.default << f.lo for f in fixed)
        _, variant = _base_name(cls)
        if variant in ("", "LIT"):
            formats.append(_Format(cls, mask, value, cls._base_size * 8))
    # The most specific encoding first; forms with a literal only for opcodes that demand one.
    formats.sort(
        key=lambda f: (f.cls.__name__ != "VOP3PX2", _base_name(f.cls)[1], -f.mask.bit_count())
    )
    return formats, classes


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
    literal = LITERAL in sources and cls.__name__ not in ("DS", "FLAT", "GLOBAL", "SCRATCH")
    return "_LIT" if literal else ""


def decode(code: bytes, address: int, family: str) -> Instruction:
    """Decode the instruction at the start of `code`, which lies at `address`.

    Raises `NotModelledError` for what the tables do not hold.
    """
    window = code[:16]
    raw = int.from_bytes(window, "little")
    formats, classes = _formats(family)
    found = next((f.cls for f in formats if f.matches(raw, len(window) * 8)), None)
    if found is None:
        raise NotModelledError(f"no {family} instruction is encoded as {window[:8].hex()}")
    encoding, variant = _base_name(found)
    if not variant and (suffix := _variant(found, raw, family)):
        extended = classes.get(found.__name__ + suffix) or classes.get(
            f"{found.__name__}{suffix}_SDST"
        )
        if extended is None:
            raise NotModelledError(
                f"{window[:8].hex()} is {found.__name__}{suffix}, which {family} lacks"
            )
        found, variant = extended, suffix[1:]
    inst: Any = object.__new__(found)
    inst._raw = raw & ((1 << found._base_size * 8) - 1)
    fields = {name: raw >> f.lo & f.mask for name, f in found._fields}
    encoding = encoding.removesuffix("_SDST").removesuffix("_MFMA")
    return Instruction(
        address=address,
        size=found._base_size,
        name=_mnemonic(inst, encoding),
        encoding=_RENAMED.get(encoding, encoding),
        variant=variant,
        fields=fields,
        text=_text(inst),
    )


def _mnemonic(inst: Any, encoding: str) -> str:
    if encoding == "VOPD":
        return f"{inst.opx.name.lower()}::{inst.opy.name.lower()}"
    name: str = inst.op.name.lower()
    return name.removesuffix("_e32").removesuffix("_e64")


def _text(inst: Any) -> str:
    """The disassembly: the mnemonic and the operands in the order of the encoding."""
    try:
        text = repr(inst)
    except (RuntimeError, ValueError):
        return f"{type(inst).__name__} {inst._raw:#x}"
    if not hasattr(inst, "op"):
        text = f"{inst.opx.name.lower()} :: {inst.opy.name.lower()} {text}"
    return text.replace("(", " ", 1).removesuffix(")")
