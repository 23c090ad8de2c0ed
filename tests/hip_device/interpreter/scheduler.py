"""Runs batches of waves until all have ended, in an order that a schedule decides.

A batch is split when its waves take different branches, and joined with others of its kind that
reach the same place. Waves of one workgroup interleave as the schedule says; workgroups never wait
for one another, so those of a chunk always run together.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import numpy as np

from tests.hip_device.interpreter.control import BARRIER, DIVERGED, END
from tests.hip_device.interpreter.errors import HangError
from tests.hip_device.interpreter.program import Program
from tests.hip_device.interpreter.state import Waves

_ENDED = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Schedule:
    """How the waves of a workgroup interleave.

    `lockstep` runs them together; `serial` lets each go on until it waits or ends, lowest first;
    `reverse` the same, highest first; `random` changes waves after a random number of
    instructions drawn with `seed`.
    """

    kind: str = "lockstep"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("lockstep", "serial", "reverse", "random"):
            raise ValueError(f"{self.kind!r} is no schedule")

    def __str__(self) -> str:
        return f"random({self.seed})" if self.kind == "random" else self.kind


ALL_SCHEDULES = (
    Schedule("lockstep"),
    Schedule("serial"),
    Schedule("reverse"),
    Schedule("random", 1),
    Schedule("random", 2),
)

_LONGEST_TURN = 24


class Scheduler:
    """Runs the waves of one chunk of workgroups."""

    def __init__(
        self, program: Program, kernel: str, schedule: Schedule, groups: int, waves_a_group: int
    ) -> None:
        self._program, self._kernel, self._schedule = program, kernel, schedule
        self._random = random.Random(schedule.seed)
        # How many barriers each wave of each workgroup has signalled.
        self._signalled = np.zeros((groups, waves_a_group), np.int64)
        self.executed: Counter[int] = Counter()
        self.barriers = 0
        self._ready: list[Waves] = []
        self._waiting: list[Waves] = []

    def arrived(self, w: Waves) -> None:
        """The waves of a batch have signalled a barrier."""
        self._signalled[w.workgroup, w.number] = w.signals

    def run(self, waves: Waves, limit: int) -> None:
        """Run to the end. Raises `InterpreterError`; `limit` bounds the steps of all batches."""
        if self._schedule.kind == "lockstep":
            self._ready = [waves]
        else:
            numbers = np.unique(waves.number)
            self._ready = [waves.select(waves.number == number) for number in numbers]
        with np.errstate(all="ignore"):
            while self._ready or self._waiting:
                if not self._ready:
                    self._release()
                    continue
                self._join()
                batch, turn, stops = self._choose()
                limit -= self._advance(batch, min(turn, limit), stops)
                if limit <= 0:
                    raise HangError(f"{self._kernel}: no end in sight, stopped at 0x{batch.pc:x}")

    def _lane(self, batch: Waves) -> int:
        """Batches of different lanes are never joined, and take turns."""
        return 0 if self._schedule.kind == "lockstep" else int(batch.number[0])

    def _join(self) -> None:
        if len(self._ready) == 1:
            return
        places: dict[tuple[int, int, int], list[Waves]] = {}
        for batch in self._ready:
            key = (self._lane(batch), batch.pc, batch.mode.bits)
            places.setdefault(key, []).append(batch)
        self._ready = [b[0] if len(b) == 1 else Waves.join(b) for b in places.values()]

    def _choose(self) -> tuple[Waves, int, frozenset[int]]:
        """The batch to run next, for how many steps, and where it may meet another."""
        lanes = sorted({self._lane(batch) for batch in self._ready})
        kind, turn = self._schedule.kind, _ENDED
        if kind == "random":
            lane, turn = self._random.choice(lanes), self._random.randint(1, _LONGEST_TURN)
        else:
            lane = lanes[-1] if kind == "reverse" else lanes[0]
        group = [batch for batch in self._ready if self._lane(batch) == lane]
        batch = min(group, key=lambda b: b.pc)
        return batch, int(turn), frozenset(b.pc for b in group if b is not batch)

    def _advance(self, batch: Waves, turn: int, stops: frozenset[int]) -> int:
        """Run a batch until something happens; gives the number of steps."""
        step_at, executed = self._program.step, self.executed
        taken, count = 0, batch.count
        try:
            while taken < turn:
                step, following = step_at(batch.pc)
                result = step(batch)
                executed[batch.pc] += count
                taken += 1
                if result is None:
                    batch.pc = following
                elif result >= 0:
                    batch.pc = result
                else:
                    self._event(batch, result, following)
                    break
                if batch.pc in stops:
                    break
        except Exception as error:
            raise self._program.explain(self._kernel, batch, error) from error
        return taken

    def _event(self, batch: Waves, event: int, following: int) -> None:
        self._ready = [b for b in self._ready if b is not batch]
        if event == END:
            self._signalled[batch.workgroup, batch.number] = _ENDED
        elif event == BARRIER:
            batch.pc = following
            self.barriers += batch.count
            self.arrived(batch)
            self._waiting.append(batch)
        elif event == DIVERGED:
            taken = batch.taken
            target = batch.taken_target
            jumping, staying = batch.select(taken), batch.select(~taken)
            jumping.pc, staying.pc = target, following
            self._ready += [jumping, staying]

    def _release(self) -> None:
        """Let the waves go on whose barrier is complete."""
        complete = self._signalled.min(axis=1)
        released = []
        waiting = []
        for batch in self._waiting:
            free = complete[batch.workgroup] > batch.waits
            if free.all():
                released.append(batch)
            elif free.any():
                released.append(batch.select(free))
                waiting.append(batch.select(~free))
            else:
                waiting.append(batch)
        if not released:
            stuck = self._waiting[0]
            raise HangError(
                f"{self._kernel}: {stuck.wave_name(0)} waits at a barrier that other waves of its "
                "workgroup never reach"
            )
        for batch in released:
            batch.waits += 1
        self._ready, self._waiting = released, waiting
