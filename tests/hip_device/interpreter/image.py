"""A code object's loadable segments, placed as the loader places them.

Source: AMDGPUUsage, "ELF Code Object".
"""

from __future__ import annotations

import io
import struct

import numpy as np
from elftools.elf.elffile import ELFFile

from runtime_loader.code_object import read_code_object
from tests.hip_device.interpreter.errors import InterpreterError

_PF_X = 1


class Image:
    """Bytes by address from the load base; `kernels` is what the metadata tells."""

    def __init__(self, code_object: bytes) -> None:
        parsed = read_code_object(code_object)
        self.target, self.kernels = parsed.target, parsed.kernels
        elf = ELFFile(io.BytesIO(code_object))
        segments = [s for s in elf.iter_segments() if s["p_type"] == "PT_LOAD"]
        self.size = max(s["p_vaddr"] + s["p_memsz"] for s in segments)
        self.octets = np.zeros((self.size + 15) // 16 * 16, np.uint8)
        self._code: list[tuple[int, int]] = []
        for segment in segments:
            start, data = segment["p_vaddr"], segment.data()
            self.octets[start : start + len(data)] = np.frombuffer(data, np.uint8)
            if segment["p_flags"] & _PF_X:
                self._code.append((start, start + len(data)))
        self._raw = self.octets.tobytes()
        symbols = elf.get_section_by_name(".symtab") or elf.get_section_by_name(".dynsym")
        self._symbols = {s.name: (s["st_value"], s["st_size"]) for s in symbols.iter_symbols()}

    def code(self, address: int, size: int) -> bytes:
        """Up to `size` bytes of code at an address; none outside executable segments."""
        for start, end in self._code:
            if start <= address < end:
                return self._raw[address : min(address + size, end)]
        return b""

    def entry(self, symbol: str) -> int:
        """Where a kernel's code begins: its descriptor's address plus the offset in it."""
        kernel = self.kernels[symbol]
        name = str(kernel.metadata[".symbol"])
        if name not in self._symbols:
            raise InterpreterError(f"the descriptor {name} is not in the symbol table")
        (offset,) = struct.unpack_from("<q", kernel.descriptor, 16)
        return int(self._symbols[name][0]) + int(offset)

    def extent(self, symbol: str) -> tuple[int, int]:
        """Where a kernel's code begins and ends."""
        start, size = self._symbols[symbol]
        return start, start + size
