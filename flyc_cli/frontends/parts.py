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
    labels = _labels(calls)
    names = [f"{kernel}.{label}" if len(set(labels)) > 1 else kernel for label in labels]
    found = [_with_values(params, call) for call in calls]
    for alike in _alike(names, found):
        closures = [calls[i].closed_over for i in alike]
        telling = [
            name
            for name in sorted({name for closure in closures for name in closure})
            if len({canonical_json([closure.get(name)]) for closure in closures}) > 1
        ]
        for i in alike:
            own = calls[i].closed_over
            found[i] = _added(found[i], {n: own[n] for n in telling if n in own}, calls[i])
    return list(zip(names, found, strict=True))


def _labels(calls: Sequence[Call]) -> list[str]:
    """A name for each launcher: its own, with more of where it is from if others have it too."""
    labels = [call.label for call in calls]
    for length in (1, None):
        origins: dict[str, set[str]] = {}
        for label, call in zip(labels, calls, strict=True):
            origins.setdefault(label, set()).add(call.origin)
        labels = [
            ".".join([*_outer(call.origin, length), call.label])
            if len(origins[label]) > 1
            else label
            for label, call in zip(labels, calls, strict=True)
        ]
    return labels


def _outer(origin: str, length: int | None) -> list[str]:
    """The last `length` names around a `module:qualified.name`, or all of them."""
    path = origin.replace(":", ".").replace(".<locals>", "").split(".")[:-1]
    return path if length is None else path[len(path) - length :]


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
