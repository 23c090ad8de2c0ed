"""What a manifest lets kernels take of the hardware."""

from __future__ import annotations

from flyc_cli.manifest.cursor import Cursor
from flyc_cli.manifest.model import Budget, Budgets
from flyc_cli.manifest.parse_settings import checked_target
from flyc_cli.text import parse_byte_size
from runtime_loader.target import Target

_COUNTS = ("vgprs", "agprs", "sgprs", "spills", "waves")
_SIZES = ("lds", "scratch", "code_size")


def read_budgets(cursor: Cursor, among: tuple[Target, ...]) -> Budgets:
    """Bounds, and under `targets` those of single targets, which cover one of `among`."""
    fields = cursor.fields("budgets", (*_COUNTS, *_SIZES, "targets"))
    by_target: dict[Target, Budget] = {}
    if "targets" in fields:
        for name, entry in fields["targets"].entries("budgets by target"):
            by_target[checked_target(name, among, entry.spot.fail_at_key)] = _budget(entry)
    return Budgets(_budget(cursor, "targets"), by_target)


def _budget(cursor: Cursor, *others: str) -> Budget:
    fields = cursor.fields("a budget", (*_COUNTS, *_SIZES, *others))
    return Budget(
        **{name: fields.get(name, _count, None) for name in _COUNTS},
        **{name: fields.get(name, _size, None) for name in _SIZES},
    )


def _count(cursor: Cursor) -> int:
    value = cursor.value
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        cursor.expected("a number from 0")
    return int(value)


def _size(cursor: Cursor) -> int:
    value = cursor.value
    size = parse_byte_size(value) if isinstance(value, str) else None
    if size is None:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            cursor.expected("a number of bytes, or a size such as 64KiB")
        size = int(value)
    return size
