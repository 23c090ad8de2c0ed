"""Names for the specialisations that one request turned out to be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flyc_cli.frontends.flydsl_recorder import Call
from runtime_loader.checked import canonical_json


def name_parts(
    kernel: str, params: dict[str, Any], calls: Sequence[Call]
) -> list[tuple[str, dict[str, Any]]]:
    """The kernel name and the parameters of each call.

    The name is `kernel`, or `kernel.launcher` when several launchers are reached. The parameters
    are `params`, the configuration of a tuned kernel, and the launcher's compile-time values.
    Where that leaves two calls alike, the values of their factories in which they differ are
    added.
    """
    several = len({call.label for call in calls}) > 1
    names = [f"{kernel}.{call.label}" if several else kernel for call in calls]
    found = [_with_values(params, call) for call in calls]
    for alike in _alike(names, found):
        closures = [calls[i].closed_over for i in alike]
        shared = set.intersection(*(set(closure) for closure in closures))
        telling = sorted(
            name
            for name in shared
            if len({canonical_json({name: closure[name]}) for closure in closures}) > 1
        )
        for i in alike:
            found[i] = _added(found[i], {n: calls[i].closed_over[n] for n in telling}, calls[i])
    return list(zip(names, found, strict=True))


def _with_values(params: dict[str, Any], call: Call) -> dict[str, Any]:
    return _added(_added(params, dict(call.config or {}), call), dict(call.values), call)


def _added(params: dict[str, Any], more: dict[str, Any], call: Call) -> dict[str, Any]:
    """`params` with `more`; a value that contradicts one that is there is `launcher.name`."""
    added = dict(params)
    for name, value in more.items():
        if added.setdefault(name, value) != value:
            added[f"{call.name}.{name}"] = value
    return added


def _alike(names: Sequence[str], params: Sequence[dict[str, Any]]) -> list[list[int]]:
    groups: dict[tuple[str, bytes], list[int]] = {}
    for i, (name, values) in enumerate(zip(names, params, strict=True)):
        groups.setdefault((name, canonical_json(values)), []).append(i)
    return [group for group in groups.values() if len(group) > 1]
