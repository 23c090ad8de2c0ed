"""What a build tells machines: a report, a timeline, and a line for each event."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flyc_cli.builder.failures import failure_json
from flyc_cli.builder.outcomes import COMPILED, Built, Failed, Outcome
from flyc_cli.builder.watch import Silent
from flyc_cli.manifest.model import Request

_MICROSECONDS = 1e6


class Tracker(Silent):
    """Keeps every outcome of a build."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.outcomes: list[Outcome] = []
        self.found = 0

    def unchanged(self, specialisations: int) -> None:
        self.found = specialisations

    def outcome(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def seconds(self) -> float:
        """Since it was made."""
        return time.monotonic() - self.began

    def over_budget(self, failures: Sequence[Failed]) -> None:
        exceeding = {(f.request.key(), f.request.target) for f in failures}
        kept = [o for o in self.outcomes if (o.request.key(), o.request.target) not in exceeding]
        self.outcomes = [*kept, *failures]

    def last_line(self, how: str) -> str:
        """What a script can look for: `flyc build: ok, 56 built (12 compiled, 44 from the store),
        0 failed, 8.1 s`. `how` is `ok`, `failed` or `interrupted`."""
        origins = [one.origin for one in self.outcomes if isinstance(one, Built)]
        compiled = origins.count(COMPILED)
        known = len(origins) - compiled + self.found
        return (
            f"flyc build: {how}, {compiled + known:,} built ({compiled:,} compiled, {known:,} from "
            f"the store), {len(self.outcomes) - len(origins):,} failed, {self.seconds():.1f} s"
            f"{'; the next build goes on from there' if how == 'interrupted' else ''}"
        )

    def report(self, bundle: Mapping[str, Any] | None) -> dict[str, Any]:
        """The build as `--report` writes it; `bundle` is what was written, if anything was."""
        origins = Counter(one.origin for one in self.outcomes if isinstance(one, Built))
        return {
            "bundle": bundle,
            "seconds": round(self.seconds(), 3),
            "counts": {
                "asked": len(self.outcomes),
                "failed": sum(isinstance(one, Failed) for one in self.outcomes),
                **origins,
            },
            "specialisations": [_reported(outcome) for outcome in self.outcomes],
        }

    def timeline(self) -> dict[str, Any]:
        """The build as a trace in Chrome's format (opens in Perfetto): a row for each worker that
        was busy at a time, a slice for each specialisation, and in it one for each stage."""
        events: list[dict[str, Any]] = []
        free: list[float] = []
        ran = [one for one in self.outcomes if one.interval is not None]
        for outcome in sorted(ran, key=lambda one: one.interval or (0, 0)):
            assert outcome.interval is not None
            start, end = outcome.interval
            row = next((n for n, at in enumerate(free) if at <= start), len(free))
            free[row : row + 1] = [end]
            events += _slices(outcome, row, start, end)
        names = [_event("M", "thread_name", row, args={"name": f"worker {row}"}) for row in
                 range(len(free))]  # fmt: skip
        return {"displayTimeUnit": "ms", "traceEvents": [*names, *events]}


class Events(Silent):
    """Writes a line of JSON for each thing that happens."""

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        self._write = write
        self._began = time.monotonic()

    def begin(self, requests: Sequence[Request]) -> None:
        self._say("begin", specialisations=len(requests))

    def expect(self, seconds: Mapping[int, float | None], jobs: int) -> None:
        self._say("expect", missing=len(seconds), jobs=jobs)

    def started(self, number: int, request: Request) -> None:
        self._say("start", **_named(request))

    def outcome(self, outcome: Outcome) -> None:
        if isinstance(outcome, Built):
            self._say("built", **_named(outcome.request), origin=outcome.origin)
        else:
            self._say("failed", **failure_json(outcome))

    def over_budget(self, failures: Sequence[Failed]) -> None:
        for failed in failures:
            self.outcome(failed)

    def unchanged(self, specialisations: int) -> None:
        self._say("unchanged", specialisations=specialisations)

    def _say(self, event: str, **more: Any) -> None:
        at = round(time.monotonic() - self._began, 3)
        self._write({"event": event, "at": at, **more})


def write_json(path: Path, value: Any) -> None:
    """Write a file of JSON. Raises `OSError`."""
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _named(request: Request) -> dict[str, Any]:
    return {"kernel": request.kernel, "params": request.params, "target": str(request.target)}


def _reported(outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, Failed):
        return {"origin": None, "failure": failure_json(outcome), **_named(outcome.request)}
    spec = outcome.specialisation
    return {
        **_named(outcome.request),
        "key": spec.key().hex(),
        "origin": outcome.origin,
        "seconds": {stage: round(seconds, 4) for stage, seconds in outcome.seconds.items()},
        "memory_kib": outcome.memory,
        "code_object": {"sha256": spec.code_object, "size": len(outcome.code_object)},
        "kernels": {k.symbol: k.resources.to_json() for k in spec.kernels},
        "warnings": [
            f"{kernel.symbol} spills {count} {kind}"
            for kernel in spec.kernels
            for kind, count in (
                ("VGPRs", kernel.resources.vgpr_spills),
                ("SGPRs", kernel.resources.sgpr_spills),
            )
            if count
        ],
    }


def _slices(outcome: Outcome, row: int, start: float, end: float) -> list[dict[str, Any]]:
    label = outcome.request.label()
    if isinstance(outcome, Failed):
        args = {"kind": outcome.kind, "stage": outcome.stage}
        return [_event("X", label, row, start, end - start, args)]
    args = {"origin": outcome.origin, "memory_kib": str(outcome.memory)}
    events = [_event("X", label, row, start, end - start, args)]
    # Stages are timed by their lengths alone; the worker began before the first and ended last.
    at = max(start, end - sum(outcome.seconds.values()))
    for stage, seconds in outcome.seconds.items():
        events.append(_event("X", stage, row, at, seconds))
        at += seconds
    return events


def _event(
    phase: str,
    name: str,
    row: int,
    start: float = 0.0,
    seconds: float = 0.0,
    args: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    event = {"ph": phase, "name": name, "pid": 1, "tid": row, "args": dict(args or {})}
    if phase == "X":
        event |= {"ts": round(start * _MICROSECONDS), "dur": round(seconds * _MICROSECONDS)}
    return event
