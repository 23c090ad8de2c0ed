"""Inspecting a manifest: choose of what it asks for, and compile one with every stage kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from flyc_cli.builder.build import Planned, Workers, compile_planned, plan
from flyc_cli.inspect.bundle import Entry
from flyc_cli.inspect.selection import choose_targets, fits, nothing_fits
from flyc_cli.inspect.stages import Stage
from flyc_cli.store.files import Store
from runtime_loader.errors import FlycError
from runtime_loader.target import Target


@dataclass(frozen=True)
class Compilation:
    """One specialisation that was compiled to be looked at."""

    entry: Entry
    stages: tuple[Stage, ...]
    code_object: bytes


def select(
    manifest: Path, kernel: str | None, given: Mapping[str, str], target: Target | None
) -> Planned:
    """What a selection fits, at least one request. Raises `MissError`, or as `plan` does."""
    planned = plan(manifest, [kernel] if kernel else [])
    requests = planned.requests
    fitting = [request for request in requests if fits(given, request.params)]
    targets = choose_targets(target, dict.fromkeys(str(request.target) for request in fitting))
    fitting = [request for request in fitting if str(request.target) in targets]
    if not fitting:
        variants = [(request.params, (str(request.target),)) for request in requests]
        raise nothing_fits(str(manifest), kernel or "kernel", given, target, variants)
    return replace(planned, requests=tuple(fitting))


def compile_one(
    planned: Planned,
    rocm: Path | None = None,
    llvm: Path | None = None,
    storage: Store | None = None,
) -> Compilation:
    """Compile the only request of `planned` with its stages, or take both from `storage`.

    Raises as `compile_planned` does, and `FlycError` when the request stands for several.
    """
    workers = Workers(storage=storage)
    compiled = compile_planned(planned, jobs=1, stages=True, rocm=rocm, llvm=llvm, workers=workers)
    if len(compiled.built) > 1:
        (request,) = planned.requests
        raise FlycError(
            f"{request.label()} stands for {len(compiled.built)} specialisations: build it with "
            "`flyc build --stages`, and inspect the bundle"
        )
    (built,) = compiled.built
    size = len(built.code_object)
    return Compilation(
        entry=Entry(built.specialisation, built.request.params, size, size),
        stages=tuple(Stage(name, text) for name, text in built.stages),
        code_object=built.code_object,
    )
