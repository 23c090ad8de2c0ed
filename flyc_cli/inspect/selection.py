"""Choosing specialisations by the NAME=VALUE texts and the target of a command line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flyc_cli.text import assignments, first_few, shown_value
from runtime_loader.checked import canonical_json
from runtime_loader.errors import FlycError, MissError
from runtime_loader.nearest import did_you_mean
from runtime_loader.target import Target

_SHOWN = 12


class AmbiguousError(FlycError):
    """One specialisation is needed, and what was asked for fits several."""

    def __init__(self, labels: Sequence[str]) -> None:
        lines = [
            f"this needs one specialisation, and {len(labels):,} fit; add KERNEL, NAME=VALUE or "
            "--target to choose one of",
            *labels[:_SHOWN],
        ]
        if len(labels) > _SHOWN:
            lines.append(f"and {len(labels) - _SHOWN:,} more")
        super().__init__("\n  ".join(lines))


def is_value(text: str, value: Any) -> bool:
    """Whether `text` of a command line means the parameter value `value` (plain JSON)."""
    if isinstance(value, str):
        return text == value
    if isinstance(value, bool):
        return text.lower() == str(value).lower()
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if isinstance(value, float) and isinstance(read, int) and not isinstance(read, bool):
        return float(read) == value
    return canonical_json(read) == canonical_json(value)


def fits(given: Mapping[str, str], params: Mapping[str, Any]) -> bool:
    """Whether every given value is that of `params`."""
    return all(name in params and is_value(text, params[name]) for name, text in given.items())


def choose_targets(wanted: Target | None, targets: Iterable[str]) -> list[str]:
    """The target that is meant: exactly `wanted`, or else those with more features fixed."""
    names = list(targets)
    if wanted is None:
        return names
    if str(wanted) in names:
        return [str(wanted)]
    parsed = [(name, Target.parse(name)) for name in names]
    return [name for name, target in parsed if wanted.runs_on(target)]


def nothing_fits(
    where: str,
    kernel: str,
    given: Mapping[str, str],
    wanted: Target | None,
    variants: Sequence[tuple[Mapping[str, Any], Sequence[str]]],
) -> MissError:
    """The error for a selection that fits none of `variants` (parameters, targets)."""
    known = list(dict.fromkeys(name for params, _ in variants for name in params))
    for name in given:
        if name not in known:
            return MissError(
                f"{kernel} in {where} has no parameter {name!r}{did_you_mean(name, known)}; "
                f"it has {first_few(known) or 'none'}"
            )
    asked = f"{kernel} {assignments(given)}".strip()
    lines = [f"{where} has no {asked}" + (f" for {wanted}" if wanted else "")]
    fitting = [targets for params, targets in variants if fits(given, params)]
    if fitting:
        targets = dict.fromkeys(name for names in fitting for name in names)
        lines.append(f"it has {asked} for {first_few(targets)}")
    else:
        lines += [f"values of {name}: {_values(name, variants)}" for name in given]
        nearest = min(variants, key=lambda variant: _distance(given, variant[0]))
        lines.append(f"nearest: {kernel} {assignments(nearest[0])} for {first_few(nearest[1])}")
    return MissError("\n  ".join(lines))


def _distance(given: Mapping[str, str], params: Mapping[str, Any]) -> tuple[int, float]:
    """How many parameters differ, then by how much the numbers among them do."""
    differing = [name for name in given if not fits({name: given[name]}, params)]
    return len(differing), sum(_gap(given[name], params.get(name)) for name in differing)


def _gap(text: str, value: Any) -> float:
    """0 to 1 for two numbers, by their ratio; 1 for everything else."""
    try:
        a, b = float(text), float(value)
    except (TypeError, ValueError):
        return 1.0
    return abs(a - b) / (abs(a) + abs(b)) if a or b else 0.0


def _values(name: str, variants: Iterable[tuple[Mapping[str, Any], Sequence[str]]]) -> str:
    found = {shown_value(params[name]) for params, _ in variants if name in params}
    ordered = sorted(found, key=_order)
    return first_few(ordered)


def _order(text: str) -> tuple[float, str]:
    """Numbers by size, then everything else by its text."""
    try:
        return float(text), ""
    except ValueError:
        return math.inf, text
