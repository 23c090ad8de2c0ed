"""How the difference of two bundles looks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flyc_cli.output import Column, Table
from flyc_cli.text import assignments

if TYPE_CHECKING:
    from flyc_cli.inspect.diff import BundleDiff, Difference


def diff_parts(diff: BundleDiff) -> Iterator[str | Table]:
    """A table of what is not identical, and a line that counts."""
    rows = [row for d in diff.differences if d.change != "identical" for row in _rows(d)]
    if rows:
        names = ("kernel", "parameters", "target", "change", "resources")
        yield Table(tuple(map(Column, names)), rows)
    counts = ", ".join(f"{number:,} {change}" for change, number in diff.counts().items())
    yield f"{diff.old_id[:16]} → {diff.new_id[:16]}   {counts or 'nothing in either'}"


def diff_json(diff: BundleDiff) -> dict[str, Any]:
    """The difference as `--json` reports it."""
    return {
        "old": {"path": str(diff.old), "id": diff.old_id},
        "new": {"path": str(diff.new), "id": diff.new_id},
        "counts": diff.counts(),
        "specialisations": [
            {**vars(difference), "params": dict(difference.params)}
            for difference in diff.differences
        ],
    }


def _rows(difference: Difference) -> Iterator[tuple[str, ...]]:
    """One row for each kernel that is launched, with what it takes now and took before."""
    head = [
        difference.kernel,
        assignments(difference.params),
        difference.target,
        difference.change,
    ]
    symbols = dict.fromkeys((*difference.old, *difference.new))
    several = len(symbols) > 1
    for symbol in symbols or [""]:
        text = _resources(difference, symbol)
        yield (*head, f"{symbol}: {text}" if several else text)
        head = [""] * len(head)


def _resources(difference: Difference, symbol: str) -> str:
    old, new = difference.old.get(symbol, {}), difference.new.get(symbol, {})
    if difference.change in ("added", "removed"):
        return " ".join(f"{name} {value:,}" for name, value in (new or old).items() if value)
    changed = [
        f"{name} {old.get(name, 0):,}→{new.get(name, 0):,}"
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    ]
    return " ".join(changed) or "as before"
