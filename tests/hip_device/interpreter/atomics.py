"""Atomic read-modify-write operations, one lane after another."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.hip_device.interpreter.arithmetic import maximum, minimum
from tests.hip_device.interpreter.values import (
    Array,
    decode_bf16,
    decode_f16,
    encode_bf16,
    encode_f16,
)

Update = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True)
class Atomic:
    """Memory becomes `update(old, data, compare)`; `compares` says that the last one is used."""

    dtype: Any
    update: Update
    compares: bool = False


def _increment(old: Any, data: Any, _: Any) -> Any:
    return old.dtype.type(0) if old >= data else old + old.dtype.type(1)


def _decrement(old: Any, data: Any, _: Any) -> Any:
    return data if old == 0 or old > data else old - old.dtype.type(1)


def _packed(decode: Callable[[Array], Array], encode: Callable[[Array], Array]) -> Update:
    def add(old: Any, data: Any, _: Any) -> Any:
        pairs = [np.array([v & 0xFFFF, v >> 16], np.uint32) for v in (old, data)]
        low, high = encode(decode(pairs[0]) + decode(pairs[1]))
        return np.uint32(low) | np.uint32(high) << np.uint32(16)

    return add


_INTEGER: dict[str, Update] = {
    "add": lambda o, d, _: o + d,
    "sub": lambda o, d, _: o - d,
    "rsub": lambda o, d, _: d - o,
    "min": lambda o, d, _: min(o, d),
    "max": lambda o, d, _: max(o, d),
    "and": lambda o, d, _: o & d,
    "or": lambda o, d, _: o | d,
    "xor": lambda o, d, _: o ^ d,
    "inc": _increment,
    "dec": _decrement,
    "swap": lambda o, d, _: d,
    "cmpswap": lambda o, d, c: d if o == c else o,
}
_FLOAT: dict[str, Update] = {
    "add": lambda o, d, _: o + d,
    "min": lambda o, d, _: minimum(np.asarray(o), np.asarray(d))[()],
    "max": lambda o, d, _: maximum(np.asarray(o), np.asarray(d))[()],
    "cmpswap": lambda o, d, c: d if o == c else o,
}
_WORDS = {"wrxchg": "swap", "storexchg": "swap", "cmpst": "cmpswap", "cmpstore": "cmpswap"}
_DTYPES = {
    "u32": np.uint32, "i32": np.int32, "b32": np.uint32, "f32": np.float32,
    "u64": np.uint64, "i64": np.int64, "b64": np.uint64, "f64": np.float64,
}  # fmt: skip


def parse_atomic(name: str) -> Atomic | None:
    """The atomic that a mnemonic without its memory prefix names: "add_x2", "min_rtn_u32"..."""
    name = name.replace("_rtn", "").replace("_num", "")
    if name in ("pk_add_f16", "pk_add_bf16"):
        half = (decode_f16, encode_f16) if name.endswith("_f16") else (decode_bf16, encode_bf16)
        return Atomic(np.uint32, _packed(*half))
    wide = name.endswith("_x2")
    match = re.fullmatch(r"([su]?)([a-z]+)(?:_([uibf](?:32|64)))?", name.removesuffix("_x2"))
    if match is None:
        return None
    sign, verb, suffix = match.groups()
    if sign and verb not in ("min", "max"):
        sign, verb = "", sign + verb
    verb = _WORDS.get(verb, verb)
    if suffix is None:
        suffix = ("i" if sign == "s" else "u") + ("64" if wide else "32")
    table = _FLOAT if suffix[0] == "f" else _INTEGER
    if verb not in table:
        return None
    return Atomic(_DTYPES[suffix], table[verb], compares=verb == "cmpswap")


def apply(
    atomic: Atomic, octets: Array, index: Array, mask: Array, data: Array, compare: Array | None
) -> Array:
    """Run the atomic at each active lane's byte position; gives what memory held before.

    `data` and `compare` have the atomic's width (as uint32 or uint64 bits).
    """
    bits = np.uint64 if np.dtype(atomic.dtype).itemsize == 8 else np.uint32
    size = np.dtype(bits).itemsize
    before = np.zeros(index.shape, bits)
    operands = data.view(atomic.dtype)
    expected = operands if compare is None else compare.view(atomic.dtype)
    for lane in map(tuple, np.argwhere(mask)):
        at = int(index[lane])
        cell = octets[at : at + size]
        old = np.frombuffer(cell.tobytes(), atomic.dtype)
        before[lane] = old.view(bits)[0]
        new = np.asarray(atomic.update(old[0], operands[lane], expected[lane]), atomic.dtype)
        cell[:] = np.frombuffer(new.tobytes(), np.uint8)
    return before
