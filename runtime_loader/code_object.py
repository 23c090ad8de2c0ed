"""Reads what a code object says of itself: target, kernels, kernarg layouts, descriptors.

Sources: AMDGPUUsage, "ELF Code Object", "Code Object V5 Metadata" and "Kernel Descriptor".
"""

from __future__ import annotations

import struct

from runtime_loader.errors import FlycError
from runtime_loader.messagepack import unpack
from runtime_loader.records import dataclass
from runtime_loader.specialisation import KernargLayout, KernelParam
from runtime_loader.target import Target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

EM_AMDGPU = 224
_NT_AMDGPU_METADATA = 32
_PT_NOTE = 4
_SHT_SYMTAB, _SHT_DYNSYM = 2, 11
_SHN_UNDEF = 0
_DESCRIPTOR_SIZE = 64

_EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
_PHDR = struct.Struct("<IIQQQQQQ")
_SHDR = struct.Struct("<IIQQQQIIQQ")
_SYM = struct.Struct("<IBBHQQ")

# Hidden arguments are the runtime's to fill; everything else is an explicit kernel parameter.
_HIDDEN = "hidden_"


class CodeObjectError(FlycError):
    """The bytes are not an AMDGPU code object, or contradict themselves."""


@dataclass(frozen=True)
class KernelMetadata:
    """One kernel of a code object.

    `symbol` is the name to ask `hipModuleGetFunction` for, `kernarg` the explicit layout,
    `metadata` the kernel's map in the note as it stands (keys such as `.vgpr_count`), and
    `descriptor` the 64-byte kernel descriptor.
    """

    symbol: str
    kernarg: KernargLayout
    metadata: dict[str, Any]
    descriptor: bytes


@dataclass(frozen=True)
class CodeObject:
    """A parsed code object. `undefined` lists symbols that nothing in it defines."""

    target: Target
    kernels: dict[str, KernelMetadata]
    undefined: tuple[str, ...]


def read_code_object(data: bytes | memoryview) -> CodeObject:
    """Parse a code object (an ELF file). Raises `CodeObjectError`."""
    try:
        elf = _Elf(data)
        note = _metadata_note(elf)
        # arch-vendor-os-environment-target, where the target may hold hyphens itself.
        target = Target.parse(str(note["amdhsa.target"]).split("-", 4)[4])
        kernels = [_kernel(elf, entry) for entry in note["amdhsa.kernels"]]
        undefined = tuple(sorted({s.name for s in elf.symbols if s.undefined and s.name}))
    except CodeObjectError:
        raise
    except (struct.error, ValueError, LookupError, TypeError, FlycError) as error:
        raise CodeObjectError(f"not a well-formed AMDGPU code object: {error}") from None
    return CodeObject(target, {kernel.symbol: kernel for kernel in kernels}, undefined)


def machine_code(data: bytes | memoryview) -> dict[str, bytes]:
    """The instructions of each kernel of a code object, by symbol. Raises `CodeObjectError`."""
    elf = _Elf(data)
    places = {symbol.name: symbol for symbol in elf.symbols if not symbol.undefined}
    found = {}
    for name in read_code_object(data).kernels:
        if name not in places:
            raise CodeObjectError(f"the code of kernel {name} is missing")
        found[name] = elf.at_address(places[name].address, places[name].size)
    return found


@dataclass(frozen=True)
class _Symbol:
    name: str
    undefined: bool
    address: int
    size: int


class _Elf:
    def __init__(self, data: bytes | memoryview) -> None:
        if len(data) < _EHDR.size or data[:6] != b"\x7fELF\x02\x01":
            raise CodeObjectError("not a code object: no 64-bit little-endian ELF header")
        header = _EHDR.unpack_from(data)
        if header[2] != EM_AMDGPU:
            raise CodeObjectError(
                f"not a code object: ELF machine {header[2]}, AMDGPU is {EM_AMDGPU}"
            )
        self._data = data
        self._segments = self._table(_PHDR, offset=header[5], count=header[10])
        self._sections = self._table(_SHDR, offset=header[6], count=header[12])
        self.symbols = [symbol for section in self._sections for symbol in self._symbols(section)]

    def read(self, offset: int, size: int) -> bytes:
        if offset + size > len(self._data):
            raise CodeObjectError("the code object is cut short")
        return bytes(self._data[offset : offset + size])

    def at_address(self, address: int, size: int) -> bytes:
        for _, _, offset, start, _, file_size, _, _ in self._segments:
            if start <= address and address + size <= start + file_size:
                return self.read(offset + address - start, size)
        raise CodeObjectError(f"nothing is loaded at address 0x{address:x}")

    def notes(self) -> Iterator[tuple[bytes, int, bytes]]:
        for type_, _, offset, _, _, size, _, _ in self._segments:
            if type_ != _PT_NOTE:
                continue
            data, at = self.read(offset, size), 0
            while at + 12 <= len(data):
                name_size, desc_size, note_type = struct.unpack_from("<III", data, at)
                name_at = at + 12
                desc_at = name_at + (name_size + 3) // 4 * 4
                at = desc_at + (desc_size + 3) // 4 * 4
                name = data[name_at : name_at + name_size].rstrip(b"\0")
                yield name, note_type, data[desc_at : desc_at + desc_size]

    def _table(self, entry: struct.Struct, offset: int, count: int) -> list[tuple[int, ...]]:
        return list(entry.iter_unpack(self.read(offset, entry.size * count)))

    def _symbols(self, section: tuple[int, ...]) -> Iterator[_Symbol]:
        _, type_, _, _, offset, size, link, *_ = section
        if type_ not in (_SHT_SYMTAB, _SHT_DYNSYM):
            return
        strings = self._sections[link]
        names = self.read(strings[4], strings[5])
        table = self.read(offset, size // _SYM.size * _SYM.size)
        for name, _, _, index, address, length in _SYM.iter_unpack(table):
            text = names[name : names.index(b"\0", name)].decode()
            yield _Symbol(text, index == _SHN_UNDEF, address, length)


def _metadata_note(elf: _Elf) -> dict[str, Any]:
    for name, type_, content in elf.notes():
        if name == b"AMDGPU" and type_ == _NT_AMDGPU_METADATA:
            note = unpack(content)
            if isinstance(note, dict):
                return note
    raise CodeObjectError("not a code object: it has no AMDGPU metadata note")


def _kernel(elf: _Elf, entry: dict[str, Any]) -> KernelMetadata:
    descriptor_name = str(entry[".symbol"])
    descriptor = next((s for s in elf.symbols if s.name == descriptor_name), None)
    if descriptor is None:
        raise CodeObjectError(f"the kernel descriptor {descriptor_name} is missing")
    params = tuple(
        KernelParam(int(arg[".offset"]), int(arg[".size"]), str(arg[".value_kind"]))
        for arg in entry.get(".args", [])
        if not str(arg[".value_kind"]).startswith(_HIDDEN)
    )
    size = max((param.offset + param.size for param in params), default=0)
    layout = KernargLayout(params, size, int(entry[".kernarg_segment_size"]))
    return KernelMetadata(
        symbol=str(entry[".name"]),
        kernarg=layout,
        metadata=entry,
        descriptor=elf.at_address(descriptor.address, _DESCRIPTOR_SIZE),
    )
