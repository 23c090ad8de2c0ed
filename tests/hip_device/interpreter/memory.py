"""Global memory: tracked allocations at their real addresses, vectorised loads and stores."""

from __future__ import annotations

import bisect
import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from tests.hip_device.interpreter.errors import MemoryFaultError
from tests.hip_device.interpreter.octets import gather, scatter
from tests.hip_device.interpreter.values import Array


@dataclass(eq=False)
class Allocation:
    """`size` bytes at `base`; `keep` is what must stay alive with them."""

    base: int
    size: int
    name: str
    keep: object = None

    @functools.cached_property
    def octets(self) -> Array:
        """The allocation's bytes, shared with whoever made it."""
        return np.ctypeslib.as_array((ctypes.c_uint8 * self.size).from_address(self.base))

    def __contains__(self, address: int) -> bool:
        return self.base <= address < self.base + self.size


class GlobalMemory:
    """The allocations that kernels may touch.

    `lookup` finds allocations that were made elsewhere: it returns (base, size) or None.
    """

    def __init__(self, lookup: Callable[[int], tuple[int, int] | None] | None = None) -> None:
        self._lookup = lookup
        self._bases: list[int] = []
        self._allocations: list[Allocation] = []
        self._recent: Allocation | None = None
        self.bytes_loaded = 0
        self.bytes_stored = 0

    def add(self, base: int, size: int, name: str, keep: object = None) -> Allocation:
        """Track memory that exists already; `keep` is what must stay alive with it."""
        allocation = Allocation(base, size, name, keep)
        at = bisect.bisect(self._bases, base)
        self._bases.insert(at, base)
        self._allocations.insert(at, allocation)
        return allocation

    def add_array(self, array: Array, name: str) -> Allocation:
        """Track a contiguous numpy array."""
        if not array.flags.c_contiguous:
            raise ValueError(f"{name} is not contiguous")
        return self.add(array.ctypes.data, array.nbytes, name, array)

    def remove(self, allocation: Allocation) -> None:
        at = self._allocations.index(allocation)
        del self._bases[at], self._allocations[at]
        if self._recent is allocation:
            self._recent = None

    def find(self, address: int) -> Allocation | None:
        at = bisect.bisect(self._bases, address) - 1
        if at >= 0 and address in self._allocations[at]:
            return self._allocations[at]
        if self._lookup is not None:
            found = self._lookup(address)
            if found is not None:
                return self.add(*found, name=f"allocation of {found[1]} bytes")
        return None

    def load(self, address: Array, mask: Array | None, width: int, count: int) -> list[Array]:
        """Load `count` words of `width` bytes from each address where `mask` holds.

        Gives `count` arrays of uint32 in the shape of `address`, zero where masked off.
        """
        size = width * count
        self.bytes_loaded += (address.size if mask is None else int(np.count_nonzero(mask))) * size
        found = self._locate(address, mask, size)
        if found is None:
            return self._load_scattered(address, mask, width, count)
        octets, index = found
        result = gather(octets, index, width, count)
        if mask is not None:
            for word in result:
                word[~mask] = 0
        return result

    def store(self, address: Array, mask: Array | None, width: int, words: Sequence[Array]) -> None:
        """Store the low `width` bytes of each of `words` one after another at each address."""
        size = width * len(words)
        self.bytes_stored += (address.size if mask is None else int(np.count_nonzero(mask))) * size
        found = self._locate(address, mask, size)
        if found is None:
            self._store_scattered(address, mask, width, words)
            return
        octets, index = found
        words = [np.broadcast_to(word, address.shape) for word in words]
        if mask is not None:
            index = index[mask]
            words = [word[mask] for word in words]
        scatter(octets, index, width, words)

    def _locate(self, address: Array, mask: Array | None, size: int) -> tuple[Array, Array] | None:
        """The bytes of the one allocation that all active addresses lie in, and where in it.

        None if there are several (or no lane is active): the slow way checks each address.
        """
        active = address if mask is None else address[mask]
        if active.size == 0:
            return None
        low, high = int(active.min()), int(active.max())
        allocation = self._recent
        if allocation is None or low not in allocation:
            allocation = self.find(low)
            if allocation is None:
                self._fault(address, mask, low, size)
            self._recent = allocation
        end = allocation.base + allocation.size
        if high + size > end:
            beyond = int(active[active > np.uint64(max(end - size, 0))].min())
            if beyond in allocation or self.find(beyond) is None:
                self._fault(address, mask, beyond, size)
            return None
        offset = (address - np.uint64(allocation.base)).view(np.int64)
        if mask is not None:
            offset = np.where(mask, offset, 0)
        return allocation.octets, offset

    def _fault(self, address: Array, mask: Array | None, at: int, size: int) -> NoReturn:
        hits = address == np.uint64(at)
        if mask is not None:
            hits &= mask
        where = tuple(int(i) for i in np.argwhere(hits)[0])
        raise AddressError(at, size, where, self.describe(at))

    def describe(self, address: int) -> str:
        """Where an address lies relative to the nearest allocation below it."""
        at = bisect.bisect(self._bases, address) - 1
        if at < 0:
            return "below every allocation"
        near = self._allocations[at]
        past = address - near.base - near.size
        return (
            f"{past} bytes past the end of {near.name}"
            if past >= 0
            else f"at the end of {near.name}"
        )

    def cells(self, address: Array, mask: Array, size: int) -> Iterator[tuple[Array, Array, Array]]:
        """For each allocation touched: its bytes, the positions in it, and which lanes they are."""
        for allocation, here in self._each(address, mask, size):
            lanes = np.zeros(address.size, bool)
            lanes[here] = True
            index = (address - np.uint64(allocation.base)).view(np.int64)
            yield allocation.octets, index, lanes.reshape(address.shape)

    def _each(
        self, address: Array, mask: Array | None, size: int
    ) -> list[tuple[Allocation, Array]]:
        """The active positions (flat indices) by allocation."""
        flat = address.ravel()
        left = np.arange(flat.size) if mask is None else np.flatnonzero(mask)
        parts = []
        while left.size:
            first = int(flat[left[0]])
            allocation = self.find(first)
            if allocation is None:
                self._fault(address, mask, first, size)
            inside = (flat[left] >= allocation.base) & (
                flat[left] < allocation.base + allocation.size
            )
            here = left[inside]
            last = int(flat[here].max())
            if last + size > allocation.base + allocation.size:
                self._fault(address, mask, last, size)
            parts.append((allocation, here))
            left = left[~inside]
        return parts

    def _load_scattered(
        self, address: Array, mask: Array | None, width: int, count: int
    ) -> list[Array]:
        result = [np.zeros(address.shape, np.uint32) for _ in range(count)]
        for allocation, here in self._each(address, mask, width * count):
            index = (address.ravel()[here] - np.uint64(allocation.base)).view(np.int64)
            for word, part in zip(
                result, gather(allocation.octets, index, width, count), strict=True
            ):
                word.reshape(-1)[here] = part
        return result

    def _store_scattered(
        self, address: Array, mask: Array | None, width: int, words: Sequence[Array]
    ) -> None:
        for allocation, here in self._each(address, mask, width * len(words)):
            index = (address.ravel()[here] - np.uint64(allocation.base)).view(np.int64)
            parts_of_words = [np.broadcast_to(word, address.shape).ravel()[here] for word in words]
            scatter(allocation.octets, index, width, parts_of_words)


class AddressError(Exception):
    """An access to memory that no allocation holds; the program adds where it happened."""

    def __init__(self, address: int, size: int, where: tuple[int, ...], near: str) -> None:
        super().__init__(f"{size} bytes at 0x{address:x}, {near}")
        self.address, self.size, self.where = address, size, where

    def as_fault(self, place: str) -> MemoryFaultError:
        return MemoryFaultError(f"{place}: access to {self}")
