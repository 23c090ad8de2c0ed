"""Remembers the most recent results of a function of one argument."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    Argument = TypeVar("Argument")
    Result = TypeVar("Result")


def recent(
    function: Callable[[Argument], Result], kept: int
) -> tuple[Callable[[Argument], Result], Callable[[], None]]:
    """`function`, which remembers its last `kept` results, and a way to forget them.

    Safe to call from several threads. `functools.lru_cache` does this too, but its module takes
    long to import.
    """
    results: dict[Argument, Result] = {}

    def call(argument: Argument) -> Result:
        try:
            result = results.pop(argument)
        except KeyError:
            result = function(argument)
        results[argument] = result  # the newest is last
        while len(results) > kept:
            results.pop(list(results)[0], None)  # noqa: RUF015 - one step, so threads may race
        return result

    return call, results.clear
