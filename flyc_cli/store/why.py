"""Why an artifact is not taken from the store: what differs from the nearest earlier build."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from flyc_cli.manifest.model import Request
from flyc_cli.store.artifacts import Artifacts, Earlier
from flyc_cli.store.dependencies import ABSENT, ALL_VARIABLES, Dependency
from flyc_cli.store.identity import canonical_json, key_of, request_text
from flyc_cli.store.paths import Roots


@dataclass(frozen=True)
class Answer:
    """Whether the store has the artifact; if not, a line for each difference."""

    request: Request
    found: bool
    differences: tuple[str, ...]


def why(artifacts: Artifacts, request: Request) -> Answer:
    """Compare what `request` would be built from with what the store knows of."""
    if artifacts.find(request, 0, stages=False) is not None:
        return Answer(request, True, ())
    roots = Roots(request.python_path)
    earlier = [_changes(artifacts, past, roots) for past in artifacts.earlier(request)]
    if earlier:
        nearest = min(earlier, key=len)
        return Answer(request, False, nearest or ("its artifact is gone from the store",))
    return Answer(request, False, tuple(_toolchain_changes(artifacts, request)))


def _changes(artifacts: Artifacts, earlier: Earlier, roots: Roots) -> tuple[str, ...]:
    now = artifacts.states.of_all(earlier.dependencies, roots)
    return tuple(
        _difference(dependency, before, after, roots)
        for dependency, before, after in zip(earlier.dependencies, earlier.states, now, strict=True)
        if before != after
    )


def _difference(dependency: Dependency, before: str, after: str, roots: Roots) -> str:
    kind, name = dependency
    if kind == "environment":
        if name == ALL_VARIABLES:
            return "the environment changed, and the kernel's code read all of it"
        change = "was unset" if before == "unset" else "is unset now" if after == "unset" else ""
        return f"environment variable {name} {change or 'changed'}"
    if kind == "import":
        directory, _, module = name.rpartition(":")
        return f"import {module} in {roots.path(directory)}: {before} before, {after} now"
    if kind == "distribution":
        return f"package {name}: {before.split()[0]} before, {after.split()[0]} now"
    if kind == "directory":
        return f"the working directory is {after}, was {before}, and relative paths were read"
    path = roots.path(name)
    if before == ABSENT:
        return f"{path} did not exist"
    if after == ABSENT:
        return f"{path} is gone"
    return f"{path} has other names in it" if kind == "list" else f"{path} changed"


def keep_toolchain(artifacts: Artifacts, request: Request) -> None:
    """Keep which toolchain `request` was built with last. Raises `OSError`."""
    value = {**artifacts.toolchain.tracing, **artifacts.toolchain.lowering}
    artifacts.storage.put_record(_key(request), canonical_json(value))


def _toolchain_changes(artifacts: Artifacts, request: Request) -> list[str]:
    value = artifacts.storage.record(_key(request))
    if value is None:
        return [
            "the store has no build of this request: it is new, its manifest entry changed, or it "
            "was pruned, or what its code did could not be followed"
        ]
    before: Mapping[str, str] = json.loads(value)
    now = {**artifacts.toolchain.tracing, **artifacts.toolchain.lowering}
    changed = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    if not changed:
        return ["what its code does cannot be followed (it runs a program or uses the network)"]
    return [_toolchain_change(name, before.get(name, ""), now.get(name, "")) for name in changed]


def _toolchain_change(name: str, before: str, after: str) -> str:
    readable = all(len(text) < 100 and "\n" not in text for text in (before, after))
    if readable and before and after and len(before) != 64:
        return f"{name}: {before} before, {after} now"
    return f"{name} changed"


def _key(request: Request) -> str:
    return key_of("toolchain of", request_text(request))
