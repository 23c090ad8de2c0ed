"""What may watch a build while it goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from flyc_cli.builder.outcomes import Failed, Outcome
from flyc_cli.manifest.model import Request


class Watcher(Protocol):
    """Is told what will be built, then of every start and every outcome."""

    def begin(self, requests: Sequence[Request]) -> None:
        """All that is asked for."""

    def expect(self, seconds: Mapping[int, float | None], jobs: int) -> None:
        """What is not in the store, `jobs` at a time: by number in `begin`'s order, what it took
        the last time."""

    def parts(self, request: Request, parts: int) -> None:
        """A request turns out to stand for several specialisations; told before their outcomes."""

    def started(self, number: int, request: Request) -> None:
        """A worker begins. The same number again: a part, or another try."""

    def outcome(self, outcome: Outcome) -> None:
        """One specialisation is done."""

    def over_budget(self, failures: Sequence[Failed]) -> None:
        """These were told of as built, and take more than their budgets."""

    def unchanged(self, specialisations: int) -> None:
        """Nothing has changed since the bundle that is there was written; told instead of all."""


class Silent:
    """A `Watcher` that does nothing; the others are made of it."""

    def begin(self, requests: Sequence[Request]) -> None:
        pass

    def expect(self, seconds: Mapping[int, float | None], jobs: int) -> None:
        pass

    def parts(self, request: Request, parts: int) -> None:
        pass

    def started(self, number: int, request: Request) -> None:
        pass

    def outcome(self, outcome: Outcome) -> None:
        pass

    def over_budget(self, failures: Sequence[Failed]) -> None:
        pass

    def unchanged(self, specialisations: int) -> None:
        pass


SILENT = Silent()


class Several(Silent):
    """Passes everything on to several watchers, in order."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = watchers

    def begin(self, requests: Sequence[Request]) -> None:
        for watcher in self._watchers:
            watcher.begin(requests)

    def expect(self, seconds: Mapping[int, float | None], jobs: int) -> None:
        for watcher in self._watchers:
            watcher.expect(seconds, jobs)

    def parts(self, request: Request, parts: int) -> None:
        for watcher in self._watchers:
            watcher.parts(request, parts)

    def started(self, number: int, request: Request) -> None:
        for watcher in self._watchers:
            watcher.started(number, request)

    def outcome(self, outcome: Outcome) -> None:
        for watcher in self._watchers:
            watcher.outcome(outcome)

    def over_budget(self, failures: Sequence[Failed]) -> None:
        for watcher in self._watchers:
            watcher.over_budget(failures)

    def unchanged(self, specialisations: int) -> None:
        for watcher in self._watchers:
            watcher.unchanged(specialisations)
