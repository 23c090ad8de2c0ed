"""How the store's state, upkeep and misses look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flyc_cli.text import byte_size, counted, first_few

if TYPE_CHECKING:
    from flyc_cli.store.upkeep import Pruned, Stats, Verified
    from flyc_cli.store.why import Answer


def stats_text(stats: Stats) -> str:
    """Three lines."""
    oldest = "" if stats.oldest is None else f"\n  oldest use {stats.oldest / 86400:.1f} days ago"
    return (
        f"  {stats.root}\n"
        f"  {counted(stats.records, 'record')} {byte_size(stats.record_bytes)}, "
        f"{counted(stats.blobs, 'blob')} {byte_size(stats.blob_bytes)}{oldest}"
    )


def verified_text(verified: Verified) -> str:
    """One line, and the damaged files."""
    checked = f"  {counted(verified.checked, 'file')} checked"
    if not verified.damaged:
        return f"{checked}, all sound"
    damaged = first_few(verified.damaged, 10)
    return f"{checked}, {len(verified.damaged):,} damaged and removed: {damaged}"


def pruned_text(pruned: Pruned) -> str:
    """One line."""
    removed = counted(pruned.removed, "file")
    return f"  {removed} removed, {byte_size(pruned.freed)}; {byte_size(pruned.left)} left"


def answer_text(answer: Answer) -> str:
    """One line if the store has it, and one for each difference if not."""
    label = answer.request.label()
    if answer.found:
        return f"  {label}: in the store"
    return "\n".join(
        [f"  {label}: would be built", *(f"    {line}" for line in answer.differences)]
    )


def answer_json(answer: Answer) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "kernel": answer.request.kernel,
        "params": answer.request.params,
        "target": str(answer.request.target),
        "found": answer.found,
        "differences": list(answer.differences),
    }
