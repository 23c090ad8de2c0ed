"""LDS of a group of workgroups, with the detection of races between waves.

Each granule remembers its last writer and last reader as a key: the number of barriers that wave
had signalled, then the wave. An access by another wave is ordered after it only if that wave has
since passed more barriers; otherwise the two race.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.hip_device.interpreter.errors import RaceError
from tests.hip_device.interpreter.octets import gather, scatter
from tests.hip_device.interpreter.state import POISON, Waves
from tests.hip_device.interpreter.values import Array

READ, WRITE, ATOMIC = "read", "write", "atomic"

_WAVE_BITS = 12
_MANY = (1 << _WAVE_BITS) - 1
_ATOMIC = 1 << _WAVE_BITS
_EPOCH = _WAVE_BITS + 1


class LdsRangeError(Exception):
    """An access outside the workgroup's LDS; the program adds where it happened."""

    def __init__(self, address: int, size: int, where: tuple[int, ...], limit: int) -> None:
        super().__init__(f"{size} bytes at LDS address {address} of {limit}")
        self.where = where


@dataclass(frozen=True)
class Race:
    """Two accesses of different waves to one LDS granule, the later one first."""

    address: int
    waves: tuple[int, int]
    kinds: tuple[str, str]
    places: tuple[int, int]


class WorkgroupMemory:
    """`size` bytes of LDS for each of `groups` workgroups.

    `granule` (1, 2 or 4 bytes) is the unit of race detection: no wider than the narrowest access
    that the kernel makes, so that neighbours do not count as conflicts. 0 turns detection off.
    """

    def __init__(self, groups: int, size: int, granule: int) -> None:
        self.size = size
        self._stride = (size + 15) // 16 * 16
        total = groups * self._stride
        self.octets = np.full(total // 4, POISON, np.uint32).view(np.uint8)
        self.granule = granule if size else 0
        if self.granule:
            count = total // granule
            self._writer = np.full(count, -1, np.int64)
            self._reader = np.full(count, -1, np.int64)
            self._writer_place = np.zeros(count, np.int32)
            self._reader_place = np.zeros(count, np.int32)

    def load(self, waves: Waves, address: Array, width: int, count: int, place: int) -> list[Array]:
        """`count` words of `width` bytes from each lane's address (W, L)."""
        index, mask = self._locate(waves, address, width * count)
        if self.granule:
            self._check(waves, index, mask, width * count, READ, place)
        return gather(self.octets, index, width, count)

    def store(
        self, waves: Waves, address: Array, width: int, words: Sequence[Array], place: int
    ) -> None:
        index, mask = self._locate(waves, address, width * len(words))
        if self.granule:
            self._check(waves, index, mask, width * len(words), WRITE, place)
        words = [np.broadcast_to(word, index.shape) for word in words]
        if mask is not None:
            index = index[mask]
            words = [word[mask] for word in words]
        scatter(self.octets, index, width, words)

    def atomic_index(self, waves: Waves, address: Array, size: int, place: int) -> Array:
        """Byte positions (W, L) for an atomic operation on `size` bytes."""
        index, mask = self._locate(waves, address, size)
        if self.granule:
            self._check(waves, index, mask, size, ATOMIC, place)
        return index

    def _locate(self, waves: Waves, address: Array, size: int) -> tuple[Array, Array | None]:
        mask = None if waves.exec_full else waves.exec
        address = np.broadcast_to(address, (waves.count, waves.lanes)).astype(np.int64)
        if mask is not None:
            address = np.where(mask, address, 0)
        highest = int(address.max(initial=0))
        if highest + size > self.size and (mask is None or bool(mask.any())):
            outside = address + size > self.size
            if mask is not None:
                outside &= mask
            if outside.any():
                where = tuple(int(i) for i in np.argwhere(outside)[0])
                raise LdsRangeError(int(address[where]), size, where, self.size)
        return address + (waves.workgroup * self._stride)[:, None], mask

    def _check(
        self, waves: Waves, index: Array, mask: Array | None, size: int, kind: str, place: int
    ) -> None:
        me = np.broadcast_to(waves.number[:, None], index.shape)
        epoch = np.broadcast_to(waves.signals[:, None], index.shape)
        passed = np.broadcast_to(waves.waits[:, None], index.shape)
        if mask is not None:
            index, me, epoch, passed = index[mask], me[mask], epoch[mask], passed[mask]
        span = np.arange(max(size // self.granule, 1))
        at = (index // self.granule)[..., None] + span
        floor = (passed << _EPOCH)[..., None]
        self._check_granules(at, me[..., None], epoch[..., None], floor, kind, place)

    def _check_granules(
        self, at: Array, me: Array, epoch: Array, floor: Array, kind: str, place: int
    ) -> None:
        """`at` are granules; accesses with a key below `floor` came before a barrier passed."""
        writer = self._writer[at]
        clash = (writer >= floor) & ((writer & _MANY) != me)
        if kind == ATOMIC:
            clash &= (writer & _ATOMIC) == 0
        if clash.any():
            self._report(at, clash, me, writer, (kind, WRITE), (place, self._writer_place))
        mine = epoch << _EPOCH | me
        if kind == READ:
            before = self._reader[at]
            shared = (before >> _EPOCH == epoch) & ((before & _MANY) != me)
            self._reader[at] = np.where(shared, mine | _MANY, mine)
            lost = self._reader[at] & _MANY != me
            if lost.any():
                self._reader[at[lost]] |= _MANY
            self._reader_place[at] = place
            return
        reader = self._reader[at]
        clash = (reader >= floor) & ((reader & _MANY) != me)
        if clash.any():
            self._report(at, clash, me, reader, (kind, READ), (place, self._reader_place))
        if kind == ATOMIC:
            mine = mine | _ATOMIC
        self._writer[at] = mine
        self._writer_place[at] = place
        if kind == WRITE:
            together = self._writer[at]
            clash = together != mine
            if clash.any():
                self._report(at, clash, me, together, (kind, WRITE), (place, self._writer_place))

    def _report(
        self,
        at: Array,
        clash: Array,
        me: Array,
        other: Array,
        kinds: tuple[str, str],
        places: tuple[int, Array],
    ) -> None:
        first = tuple(np.argwhere(clash)[0])
        granule = int(at[first])
        wave = int(other[first]) & _MANY
        raise LdsRaceError(
            Race(
                address=granule * self.granule % self._stride,
                waves=(int(np.broadcast_to(me, at.shape)[first]), -1 if wave == _MANY else wave),
                kinds=kinds,
                places=(places[0], int(places[1][granule])),
            )
        )


class LdsRaceError(Exception):
    """A race; the program turns the instruction numbers into text."""

    def __init__(self, race: Race) -> None:
        super().__init__(race)
        self.race = race

    def as_race(self, place: str, instructions: tuple[str, str]) -> RaceError:
        race = self.race
        other = "several waves" if race.waves[1] < 0 else f"wave {race.waves[1]}"
        return RaceError(
            f"{place}: LDS race at address {race.address}: {race.kinds[0]} by wave "
            f"{race.waves[0]} in [{instructions[0]}] and {race.kinds[1]} by {other} in "
            f"[{instructions[1]}], with no barrier between"
        )
