"""Outcomes that a caller could not tell apart: alike is one, different is an error."""

from __future__ import annotations

from collections.abc import Sequence

from flyc_cli.builder.supervisor import Built, Failed, Outcome


def merge_outcomes(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Keep the first of equal specialisations; one with the same key and other content fails."""
    first: dict[bytes, Built] = {}
    merged: list[Outcome] = []
    for outcome in outcomes:
        if isinstance(outcome, Failed):
            merged.append(outcome)
            continue
        other = first.setdefault(outcome.specialisation.key(), outcome)
        if other is outcome:
            merged.append(outcome)
        elif _content(other) != _content(outcome):
            merged.append(_ambiguous(outcome, other))
    return merged


def _content(built: Built) -> tuple[object, ...]:
    spec = built.specialisation
    return spec.code_object, spec.signature, spec.plan.to_json(), spec.kernels


def _ambiguous(built: Built, other: Built) -> Failed:
    return Failed(
        request=built.request,
        kind="input",
        stage="trace",
        message=(
            f"{built.specialisation.launcher} and {other.specialisation.launcher} (from "
            f"{other.request.where}) both make {built.request.label()}, with different code or "
            "arguments, and a caller could not tell them apart: give them different params, or "
            "list them as kernels of their own"
        ),
        entry=built.entry,
    )
