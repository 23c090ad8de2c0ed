"""Gathers and scatters of little-endian words in byte arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.hip_device.interpreter.values import Array


def gather(octets: Array, index: Array, width: int, count: int) -> list[Array]:
    """`count` words of `width` bytes at each byte position, as uint32 in the shape of `index`."""
    words = _words(octets, index, width)
    if words is not None:
        first = index // width
        return [words.take(first + k).astype(np.uint32, copy=False) for k in range(count)]
    result = []
    for k in range(count):
        word = np.zeros(index.shape, np.uint32)
        for b in range(width):
            word |= octets.take(index + (k * width + b)).astype(np.uint32) << np.uint32(8 * b)
        result.append(word)
    return result


def scatter(octets: Array, index: Array, width: int, words: Sequence[Array]) -> None:
    """Store the low `width` bytes of each of `words` one after another at each position."""
    target = _words(octets, index, width)
    if target is not None:
        first = index // width
        for k, word in enumerate(words):
            target[first + k] = word
        return
    for k, word in enumerate(words):
        for b in range(width):
            octets[index + (k * width + b)] = word >> np.uint32(8 * b)


def _words(octets: Array, index: Array, width: int) -> Array | None:
    """The bytes as words; None if a position is not aligned to them."""
    if width == 1:
        return octets
    if octets.ctypes.data % width:
        return None
    if int(np.bitwise_or.reduce(index, axis=None, initial=0)) & (width - 1):
        return None
    return octets[: octets.size // width * width].view(f"u{width}")
