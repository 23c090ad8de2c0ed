"""What load and store mnemonics say of the data: width, sign, halves of registers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.hip_device.interpreter.operands import Form, store_half, store_register
from tests.hip_device.interpreter.state import Waves
from tests.hip_device.interpreter.values import Array


@dataclass(frozen=True)
class Access:
    """`count` words of `width` bytes; a D16 form keeps the half of the register it does not use."""

    width: int
    count: int
    signed: bool = False
    d16: bool = False
    high: bool = False

    @property
    def size(self) -> int:
        return self.width * self.count


_WIDTHS = {
    "byte": (1, 1), "ubyte": (1, 1), "sbyte": (1, 1), "u8": (1, 1), "i8": (1, 1), "b8": (1, 1),
    "short": (2, 1), "ushort": (2, 1), "sshort": (2, 1), "u16": (2, 1), "i16": (2, 1),
    "b16": (2, 1),
    "dword": (4, 1), "dwordx2": (4, 2), "dwordx3": (4, 3), "dwordx4": (4, 4), "dwordx8": (4, 8),
    "dwordx16": (4, 16),
    "b32": (4, 1), "b64": (4, 2), "b96": (4, 3), "b128": (4, 4), "b256": (4, 8), "b512": (4, 16),
}  # fmt: skip


def parse_access(suffix: str) -> Access | None:
    """The access that the end of a mnemonic names, such as "dwordx2" or "d16_hi_b16"."""
    high = bool(re.search(r"_hi|hi_", suffix))
    d16 = "d16" in suffix
    core = re.sub(r"_?d16_hi_?|_?d16_?", "", suffix)
    if core not in _WIDTHS:
        return None
    width, count = _WIDTHS[core]
    return Access(width, count, core in ("sbyte", "i8", "sshort", "i16"), d16, high)


def data_row(form: Form, register: int) -> Callable[[Waves], int]:
    """The row of a data register: in the accumulation registers if the instruction says so."""
    if form.inst.get("acc"):
        return lambda w: w.acc_base + register
    return lambda w: register


def extended(access: Access, word: Array) -> Array:
    """A sub-dword value as it lands in a register."""
    if not access.signed or access.width == 4:
        return word
    shift = np.int32(32 - 8 * access.width)
    wide = ((word.view(np.int32) << shift) >> shift).view(np.uint32)
    return wide & np.uint32(0xFFFF) if access.d16 else wide


def write_loaded(w: Waves, access: Access, row: int, words: list[Array]) -> None:
    """Put loaded words into registers from `row` on."""
    if access.d16:
        store_half(w, row, int(access.high), extended(access, words[0]))
        return
    for k, word in enumerate(words):
        store_register(w, row + k, extended(access, word))


def stored_words(w: Waves, access: Access, row: int) -> list[Array]:
    """The words that a store takes from registers from `row` on."""
    words = [w.vgpr[row + k] for k in range(access.count)]
    return [words[0] >> np.uint32(16)] if access.high else words
