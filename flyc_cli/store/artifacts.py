"""Finds what earlier builds made of a request, by its input and by what it traced, and keeps more.

Four kinds of records, each under a key that is a SHA-256:

- **input**: request, part and toolchain lead to the lists of what such a build looked at, newest
  first, each with the states that it saw then (for `why`) and its result;
- **result**: request, part, toolchain, a list of dependencies and the state of each now lead to
  the artifact. Equal states, equal artifact;
- **lowering**: the traced module, the passes and what lowers lead to code object and launch plan;
- **cost**: a request leads to the seconds and memory that building it took, for scheduling.

Code objects, stages and lists are blobs. A record that names a blob that is gone counts as absent.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import zstandard

from flyc_cli.manifest.model import Request
from flyc_cli.store.dependencies import Dependency, States
from flyc_cli.store.files import Storage
from flyc_cli.store.identity import canonical_json, key_of, request_text
from flyc_cli.store.paths import Roots
from flyc_cli.store.recorder import Looked
from flyc_cli.store.toolchain import ToolchainIdentity

Stages = tuple[tuple[str, str], ...]

# Branches that are built in turn each keep their list; more than these are forgotten.
_LISTS = 8
_MAX_STAGES = 1 << 30


@dataclass(frozen=True)
class Artifact:
    """One specialisation as it was built: `specialisation` is its JSON; `stages` is None when they
    were not kept. `seconds` (by stage) and `memory` (KiB) are of the build that made it."""

    kernel: str
    params: dict[str, Any]
    parts: int
    optional: bool
    specialisation: dict[str, Any]
    code_object: bytes
    stages: Stages | None
    seconds: dict[str, float]
    memory: int


@dataclass(frozen=True)
class Lowered:
    """What lowering gave: launch plan and kernels as JSON."""

    plan: dict[str, Any]
    kernels: list[dict[str, Any]]
    code_object: bytes
    stages: Stages | None


@dataclass(frozen=True)
class Cost:
    """What building a request took: wall-clock seconds, and peak memory in KiB."""

    seconds: float
    memory: int


@dataclass(frozen=True)
class Earlier:
    """What an earlier build of the same request and toolchain looked at, and what it saw."""

    dependencies: tuple[Dependency, ...]
    states: tuple[str, ...]


class Artifacts:
    """The artifacts in `storage` that this toolchain makes. Reads give None for what is not there;
    writes raise `OSError`. `fetched` are the SHA-256 of blobs that came from another machine."""

    def __init__(
        self,
        storage: Storage,
        toolchain: ToolchainIdentity,
        environment: Mapping[str, str],
        shared: Storage | None = None,
        fetched: Set[str] = frozenset(),
    ) -> None:
        self.storage = storage
        self.shared = shared
        self.fetched = fetched
        self.toolchain = toolchain
        self.states = States(environment)
        self._lists: dict[str, tuple[Dependency, ...] | None] = {}
        self._known_roots: dict[tuple[str, ...], Roots] = {}
        self._now: dict[tuple[str, tuple[str, ...]], bytes] = {}
        self._used: dict[tuple[str, tuple[str, ...]], str] = {}
        self._untracked = False
        self._toolchain_key = toolchain.tracing_key()

    def find(self, request: Request, part: int, *, stages: bool) -> Artifact | None:
        """The artifact of `request`, if everything it was made from is as it was."""
        text = request_text(request)
        roots = self._roots(request)
        key = self._input_key(text, part)
        known = self._entries(self.storage, key)
        found, _ = self._among(known, text, part, roots, stages)
        if found is None and self.shared is not None:
            # What others built since, of which the list here does not tell.
            shared = [entry for entry in self._entries(self.shared, key) if entry not in known]
            found, by = self._among(shared, text, part, roots, stages)
            if by is not None:
                merged = [by, *(entry for entry in (*shared, *known) if entry != by)]
                with contextlib.suppress(OSError):
                    self.storage.put_record(key, canonical_json(merged[:_LISTS]))
        return found

    def _among(
        self, entries: Sequence[dict[str, str]], text: bytes, part: int, roots: Roots, stages: bool
    ) -> tuple[Artifact | None, dict[str, str] | None]:
        """The artifact of the first entry whose states are those of now, and that entry."""
        for entry in entries:
            now = self._states_now(entry["list"], roots)
            if now is not None:
                found = self._result(self._result_key(text, part, entry["list"], now), stages)
                if found is not None:
                    self._use(entry["list"], roots, now)
                    return found, entry
        return None, None

    def _use(self, listed: str, roots: Roots, states: bytes) -> None:
        digest = hashlib.sha256(states).hexdigest()
        if self._used.setdefault((listed, roots.key), digest) != digest:
            self.untrack()  # edited meanwhile: what was built is of before and of after

    def untrack(self) -> None:
        """From now on, what all together was made from is not known."""
        self._untracked = True

    def used(self) -> list[list[Any]] | None:
        """What everything that was found or kept here was made from: lists of dependencies, the
        folders that they are below, and the hash of their states. None if that is not known."""
        if self._untracked:
            return None
        return [[listed, list(roots), now] for (listed, roots), now in sorted(self._used.items())]

    def unchanged(self, listed: str, python_path: Sequence[str], states: str) -> bool:
        """Whether the dependencies of a list of `used` are as they were."""
        now = self._states_now(listed, Roots(tuple(python_path)))
        return now is not None and hashlib.sha256(now).hexdigest() == states

    def keep(self, request: Request, part: int, artifact: Artifact, looked: Looked) -> None:
        """Keep what `request` became, to be found while what it `looked` at stays as it was."""
        if looked.untracked is not None:
            self.untrack()
            return
        text = request_text(request)
        names = canonical_json([list(dependency) for dependency in looked.dependencies])
        states = canonical_json(list(looked.states))
        listed = self.storage.put_blob(names)
        self._use(listed, self._roots(request), states)
        self._put_result(self._result_key(text, part, listed, states), artifact)
        key = self._input_key(text, part)
        entry = {"list": listed, "states": self.storage.put_blob(states)}
        others = [e for e in self._entries(self.shared or self.storage, key) if e["list"] != listed]
        self.storage.put_record(key, canonical_json([entry, *others][:_LISTS]))

    def earlier(self, request: Request, part: int = 0) -> list[Earlier]:
        """What earlier builds of `request` looked at, newest first."""
        found = []
        for entry in self._entries(self.storage, self._input_key(request_text(request), part)):
            dependencies = self._list(entry["list"])
            states = self.storage.blob(entry["states"])
            if dependencies is not None and states is not None:
                found.append(Earlier(dependencies, tuple(json.loads(states))))
        return found

    def cost(self, request: Request) -> Cost | None:
        """What building `request` took the last time, with any toolchain."""
        value = self.storage.record(_cost_key(request))
        return None if value is None else Cost(**json.loads(value))

    def keep_cost(self, request: Request, cost: Cost) -> None:
        """Keep what building `request` took."""
        self.storage.put_record(_cost_key(request), canonical_json(vars(cost)))

    def _roots(self, request: Request) -> Roots:
        if request.python_path not in self._known_roots:
            self._known_roots[request.python_path] = Roots(request.python_path)
        return self._known_roots[request.python_path]

    def _input_key(self, request: bytes, part: int) -> str:
        return key_of("input", request, str(part), self._toolchain_key)

    def _result_key(self, request: bytes, part: int, listed: str, states: bytes) -> str:
        return key_of("result", request, str(part), self._toolchain_key, listed, states)

    def _entries(self, storage: Storage, key: str) -> list[dict[str, str]]:
        value = storage.record(key)
        return [] if value is None else list(json.loads(value))

    def _list(self, sha256: str) -> tuple[Dependency, ...] | None:
        if sha256 not in self._lists:
            data = self.storage.blob(sha256)
            self._lists[sha256] = (
                None
                if data is None
                else tuple(Dependency(kind, name) for kind, name in json.loads(data))
            )
        return self._lists[sha256]

    def _states_now(self, listed: str, roots: Roots) -> bytes | None:
        key = (listed, roots.key)
        if key not in self._now:
            dependencies = self._list(listed)
            if dependencies is None:
                return None
            self._now[key] = canonical_json(self.states.of_all(dependencies, roots))
        return self._now[key]

    def _result(self, key: str, stages: bool) -> Artifact | None:
        value = self.storage.record(key)
        if value is None:
            return None
        held = json.loads(value)
        kept = _read_stages(self.storage, held.pop("stages"))
        code_object = self.storage.blob(held["specialisation"]["code_object"])
        if code_object is None or (stages and kept is None):
            return None
        return Artifact(**held, code_object=code_object, stages=kept)

    def _put_result(self, key: str, artifact: Artifact) -> None:
        held = dict(vars(artifact))
        self.storage.put_blob(held.pop("code_object"))
        held["stages"] = put_stages(self.storage, artifact.stages)
        self.storage.put_record(key, canonical_json(held))


def lowering_key(module: str, passes: Sequence[str], target: str, toolchain: bytes) -> str:
    """The key of what `module` (text without locations, unless they are compiled in) lowers to.

    `toolchain` is `ToolchainIdentity.lowering_key()`, and whatever the module names beside itself.
    """
    return key_of("lowering", module, canonical_json(list(passes)), target, toolchain)


def find_lowered(storage: Storage, key: str, *, stages: bool) -> Lowered | None:
    """What a lowering gave, if it was kept (with stages, if they are wanted)."""
    value = storage.record(key)
    if value is None:
        return None
    held = json.loads(value)
    kept = _read_stages(storage, held["stages"])
    code_object = storage.blob(held["code_object"])
    if code_object is None or (stages and kept is None):
        return None
    return Lowered(held["plan"], held["kernels"], code_object, kept)


def keep_lowered(storage: Storage, key: str, lowered: Lowered) -> None:
    """Keep what a lowering gave. Raises `OSError`."""
    held = {
        "plan": lowered.plan,
        "kernels": lowered.kernels,
        "code_object": storage.put_blob(lowered.code_object),
        "stages": put_stages(storage, lowered.stages),
    }
    storage.put_record(key, canonical_json(held))


def put_stages(storage: Storage, stages: Stages | None) -> str | None:
    """Keep the texts of stages; returns their blob."""
    if stages is None:
        return None
    return storage.put_blob(zstandard.compress(canonical_json(stages), 3))


def _read_stages(storage: Storage, sha256: str | None) -> Stages | None:
    data = None if sha256 is None else storage.blob(sha256)
    if data is None:
        return None
    text = zstandard.decompress(data, max_output_size=_MAX_STAGES)
    return tuple((name, stage) for name, stage in json.loads(text))


def _cost_key(request: Request) -> str:
    return key_of("cost", request_text(request))
