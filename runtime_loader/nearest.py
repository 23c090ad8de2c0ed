"""Nearest names, for errors about names that do not exist."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def nearest_names(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Up to `count` known names that look like `name`, best first."""
    # difflib is only worth importing once something has gone wrong.
    import difflib

    return difflib.get_close_matches(name, list(known), count, 0.5)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'rmsnorm'?`, or nothing when no known name is near."""
    found = nearest_names(name, known, 1)
    return f"; did you mean {found[0]!r}?" if found else ""
