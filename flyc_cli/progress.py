"""Build progress, a line per kernel: live bars on a terminal, one plain line each elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flyc_cli.output import is_terminal, show
from flyc_cli.text import counted

if TYPE_CHECKING:
    from flyc_cli.build.build import Progress
    from flyc_cli.build.supervisor import Outcome
    from flyc_cli.manifest import Request

# Kernels with a bar at the same time; the others wait above the bottom of the screen.
_BARS = 8
_BAR_WIDTH = 8


@contextmanager
def build_progress(quiet: bool) -> Iterator[Progress | None]:
    """Whatever suits where stdout goes; nothing when `quiet`."""
    if quiet:
        yield None
    elif not is_terminal():
        yield PlainProgress()
    else:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        title = TextColumn("{task.description}", markup=False)
        state = TextColumn("{task.fields[state]}", markup=False)
        with Bars(title, BarColumn(_BAR_WIDTH), state, transient=True) as bars:
            yield TerminalProgress(bars)


class PlainProgress:
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


class TerminalProgress:
    """Bars of the kernels that are being built; finished kernels scroll away above them."""

    def __init__(self, bars: Any) -> None:
        self._bars = bars
        self._tally = _Tally(())
        self._tasks: dict[str, Any] = {}

    def begin(self, requests: Sequence[Request]) -> None:
        self._tally = _Tally(requests)
        for kernel, title in self._tally.titles.items():
            self._tasks[kernel] = self._bars.add_task(
                f"  {title}",
                total=self._tally.asked[kernel],
                visible=len(self._tasks) < _BARS,
                state="",
            )

    def parts(self, request: Request, parts: int) -> None:
        self._tally.parts(request, parts)
        total = self._tally.asked[request.kernel]
        self._bars.update(self._tasks[request.kernel], total=total)

    def outcome(self, outcome: Outcome) -> None:
        from rich.text import Text

        kernel = outcome.entry
        finished = self._tally.add(outcome)
        state = self._tally.state(kernel)
        self._bars.update(self._tasks[kernel], advance=1, state=state)
        if not finished:
            return
        self._bars.remove_task(self._tasks.pop(kernel))
        style = "red" if self._tally.failed[kernel] else "green"
        line = Text(f"  {self._tally.titles[kernel]}  ")
        line.append("█" * _BAR_WIDTH, style).append(f" {state}")
        self._bars.console.print(line)
        for task in list(self._tasks.values())[:_BARS]:
            self._bars.update(task, visible=True)


class _Tally:
    """How far each kernel is, and the title of its line."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.asked = Counter(request.kernel for request in requests)
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.titles = _titles(requests, self.asked)
        self._requests = requests

    def parts(self, request: Request, parts: int) -> None:
        """Expect `parts` specialisations of a request instead of one."""
        self.asked[request.kernel] += parts - 1
        self.titles = _titles(self._requests, self.asked)

    def add(self, outcome: Outcome) -> bool:
        """Count an outcome; whether its kernel is finished with it."""
        from flyc_cli.build.supervisor import Failed

        kernel = outcome.entry
        self.done[kernel] += 1
        self.failed[kernel] += isinstance(outcome, Failed)
        return self.done[kernel] == self.asked[kernel]

    def state(self, kernel: str) -> str:
        failed = f"{self.failed[kernel]} failed"
        if self.done[kernel] < self.asked[kernel]:
            counts = f"{self.done[kernel]}/{self.asked[kernel]}"
            return f"{counts}, {failed}" if self.failed[kernel] else counts
        return failed if self.failed[kernel] else "done"


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
