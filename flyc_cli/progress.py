"""Build progress, a line per kernel: live bars on a terminal, one plain line each elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flyc_cli.builder.outcomes import COMPILED, Built, Failed
from flyc_cli.builder.watch import SILENT, Silent
from flyc_cli.output import is_terminal, show
from flyc_cli.text import counted

if TYPE_CHECKING:
    from flyc_cli.builder.outcomes import Outcome
    from flyc_cli.builder.watch import Watcher
    from flyc_cli.manifest import Request

# Kernels with a bar at the same time; the others wait above the bottom of the screen.
_BARS = 8
_BAR_WIDTH = 8


@contextmanager
def build_progress(quiet: bool) -> Iterator[Watcher]:
    """Whatever suits where stdout goes; nothing when `quiet`."""
    if quiet:
        yield SILENT
    elif not is_terminal():
        yield PlainProgress()
    else:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        title = TextColumn("{task.description}", markup=False)
        state = TextColumn("{task.fields[state]}", markup=False)
        with Bars(title, BarColumn(_BAR_WIDTH), state, transient=True) as bars:
            yield TerminalProgress(bars)


class PlainProgress(Silent):
    """Prints a kernel's line when the last of its specialisations is there."""

    def __init__(self) -> None:
        self._tally = _Tally(())

    def begin(self, requests: Sequence[Request]) -> None:
        self._tally = _Tally(requests)

    def parts(self, request: Request, parts: int) -> None:
        self._tally.parts(request, parts)

    def outcome(self, outcome: Outcome) -> None:
        kernel = outcome.entry
        if self._tally.add(outcome):
            show(f"  {self._tally.titles[kernel]}  {self._tally.state(kernel)}")

    def unchanged(self, specialisations: int) -> None:
        _show_unchanged(specialisations)


def _show_unchanged(specialisations: int) -> None:
    show(f"  {counted(specialisations, 'specialisation')}, unchanged since the bundle was written")


class TerminalProgress(Silent):
    """Bars of the kernels that are being built, and below them what is left of the whole; finished
    kernels scroll away above them."""

    def __init__(self, bars: Any) -> None:
        self._bars = bars
        self._tally = _Tally(())
        self._left = _TimeLeft()
        self._tasks: dict[str, Any] = {}
        self._started: set[int] = set()
        self._whole: Any = None

    def begin(self, requests: Sequence[Request]) -> None:
        self._tally = _Tally(requests)
        for kernel, title in self._tally.titles.items():
            self._tasks[kernel] = self._bars.add_task(
                f"  {title}",
                total=self._tally.asked[kernel],
                visible=len(self._tasks) < _BARS,
                state="",
            )
        self._whole = self._bars.add_task("  all", total=len(requests), state="")

    def expect(self, seconds: Mapping[int, float | None], jobs: int) -> None:
        self._left.expect(seconds, jobs)

    def parts(self, request: Request, parts: int) -> None:
        self._tally.parts(request, parts)
        total = self._tally.asked[request.kernel]
        self._bars.update(self._tasks[request.kernel], total=total)
        self._bars.update(self._whole, total=self._tally.asked.total())

    def started(self, number: int, request: Request) -> None:
        if number in self._started:
            return  # another try
        self._started.add(number)
        self._left.started(number)
        self._tally.running[request.kernel] += 1
        self._show(request.kernel)

    def outcome(self, outcome: Outcome) -> None:
        from rich.text import Text

        kernel = outcome.entry
        if outcome.interval is not None:
            self._left.ended(outcome.interval)
            self._tally.running[kernel] -= 1
        finished = self._tally.add(outcome)
        self._bars.advance(self._tasks[kernel])
        self._bars.advance(self._whole)
        self._show(kernel)
        if not finished:
            return
        self._bars.remove_task(self._tasks.pop(kernel))
        style = "red" if self._tally.failed[kernel] else "green"
        line = Text(f"  {self._tally.titles[kernel]}  ")
        line.append("█" * _BAR_WIDTH, style).append(f" {self._tally.state(kernel)}")
        self._bars.console.print(line)
        for task in list(self._tasks.values())[:_BARS]:
            self._bars.update(task, visible=True)

    def unchanged(self, specialisations: int) -> None:
        _show_unchanged(specialisations)

    def _show(self, kernel: str) -> None:
        self._bars.update(self._tasks[kernel], state=self._tally.state(kernel))
        self._bars.update(self._whole, state=self._left.text())


class _TimeLeft:
    """How long what is not done may take, from what it took before."""

    def __init__(self) -> None:
        self._expected: dict[int, float | None] = {}
        self._jobs = 1
        self._running = 0
        self._lengths: list[float] = []

    def expect(self, seconds: Mapping[int, float | None], jobs: int) -> None:
        self._expected = dict(seconds)
        self._jobs = jobs

    def started(self, number: int) -> None:
        self._expected.pop(number, None)
        self._running += 1

    def ended(self, interval: tuple[float, float]) -> None:
        self._running -= 1
        self._lengths.append(interval[1] - interval[0])

    def text(self) -> str:
        running = f"{self._running} running"
        known = [s for s in (*self._expected.values(), *self._lengths) if s is not None]
        if not self._expected or not known:
            return running
        usual = sum(known) / len(known)
        left = sum(usual if s is None else s for s in self._expected.values()) / self._jobs
        return f"{running}, about {time.strftime('%H:%M:%S', time.gmtime(left))} left"


class _Tally:
    """How far each kernel is, and the title of its line."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.asked = Counter(request.kernel for request in requests)
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.known: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        self.titles = _titles(requests, self.asked)
        self._requests = requests

    def parts(self, request: Request, parts: int) -> None:
        """Expect `parts` specialisations of a request instead of one."""
        self.asked[request.kernel] += parts - 1
        self.titles = _titles(self._requests, self.asked)

    def add(self, outcome: Outcome) -> bool:
        """Count an outcome; whether its kernel is finished with it."""
        kernel = outcome.entry
        self.done[kernel] += 1
        self.failed[kernel] += isinstance(outcome, Failed)
        self.known[kernel] += isinstance(outcome, Built) and outcome.origin != COMPILED
        return self.done[kernel] == self.asked[kernel]

    def state(self, kernel: str) -> str:
        """`3/12, 2 running, 1 failed`; when it is finished `done`, `1 failed`, or `done, 4 from the
        store`."""
        failed = [f"{self.failed[kernel]} failed"] if self.failed[kernel] else []
        if self.done[kernel] < self.asked[kernel]:
            running = [f"{self.running[kernel]} running"] if self.running[kernel] > 0 else []
            return ", ".join([f"{self.done[kernel]}/{self.asked[kernel]}", *running, *failed])
        stored = [f"{self.known[kernel]} from the store"] if self.known[kernel] else []
        return ", ".join([*(failed or ["done"]), *stored])


def _titles(requests: Sequence[Request], asked: Counter[str]) -> dict[str, str]:
    """`rmsnorm  gfx942 gfx950   6 specialisations`, padded to columns."""
    targets: dict[str, dict[str, None]] = {}
    for request in requests:
        targets.setdefault(request.kernel, {})[str(request.target)] = None
    lists = {kernel: " ".join(names) for kernel, names in targets.items()}
    counts = {kernel: counted(asked[kernel], "specialisation") for kernel in lists}
    name_width = max(map(len, lists), default=0)
    list_width = max(map(len, lists.values()), default=0)
    number_width = max((len(text.split()[0]) for text in counts.values()), default=0)
    titles = {}
    for kernel, text in lists.items():
        number, noun = counts[kernel].split()
        titles[kernel] = (
            f"{kernel:{name_width}}  {text:{list_width}}  {number:>{number_width}} {noun:15}"
        )
    return titles
