"""What `flyc inspect` is asked and what it answers: one question, one answer, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from flyc_cli.inspect.bundle import (
    Entry,
    Summary,
    code_object,
    looks_like_bundle,
    open_bundle,
    select,
    summarise,
    table_rows,
)
from flyc_cli.inspect.selection import AmbiguousError
from flyc_cli.inspect.stages import (
    Stage,
    StageDiff,
    bundle_stage,
    bundle_stages,
    find_stage,
    stage_diffs,
    stage_names,
    write_stages,
)
from runtime_loader.bundle_file import BundleFile
from runtime_loader.catalogue import Catalogue, KernelRecord
from runtime_loader.errors import FlycError
from runtime_loader.specialisation import Specialisation
from runtime_loader.table import Table, TableRow
from runtime_loader.target import Target

if TYPE_CHECKING:
    from flyc_cli.builder.build import Planned
    from flyc_cli.store.files import Store

Wish: TypeAlias = Literal["all", "plan", "stage", "stages", "files", "diff", "table"]


@dataclass(frozen=True)
class Question:
    """Which specialisations of the bundle or manifest at `path`, and what of them.

    `wish` is `all`, the tuned `table` of a kernel, or one thing of one specialisation: its `plan`,
    one `stage`, the names of all `stages`, all of them as `files` in `directory`, or what each of
    them changed (`diff`). `storage` has what earlier builds made of a manifest.
    """

    path: Path
    kernel: str | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    target: Target | None = None
    wish: Wish = "all"
    stage: str = ""
    directory: Path = Path()
    rocm: Path | None = None
    llvm: Path | None = None
    storage: Store | None = None


@dataclass(frozen=True)
class Listing:
    """Several specialisations of one kernel."""

    record: KernelRecord
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Detail:
    """One specialisation; `stages` are the names of those that can be shown."""

    entry: Entry
    stages: tuple[str, ...]


@dataclass(frozen=True)
class TableAnswer:
    """Rows of a kernel's tuned table."""

    table: Table
    rows: tuple[TableRow, ...]


@dataclass(frozen=True)
class PlanAnswer:
    """The launch plan of one specialisation."""

    spec: Specialisation


@dataclass(frozen=True)
class StageAnswer:
    """The text of one stage."""

    spec: Specialisation
    stage: Stage


@dataclass(frozen=True)
class StagesAnswer:
    """The stages of one specialisation."""

    spec: Specialisation
    stages: tuple[Stage, ...]


@dataclass(frozen=True)
class FilesAnswer:
    """The files that were written."""

    spec: Specialisation
    paths: tuple[Path, ...]


@dataclass(frozen=True)
class DiffAnswer:
    """What each stage changed."""

    spec: Specialisation
    diffs: tuple[StageDiff, ...]


Answer: TypeAlias = (
    "Summary | Listing | Planned | Detail | TableAnswer | PlanAnswer | StageAnswer | StagesAnswer "
    "| FilesAnswer | DiffAnswer"
)


def answer(question: Question) -> Answer:
    """Look into the bundle, or compile the one specialisation of the manifest that is meant.

    Raises `MissError` when nothing fits, `AmbiguousError` when one is needed and several fit, and
    what opening a bundle, or planning and compiling a manifest, raise.
    """
    if not looks_like_bundle(question.path):
        return _of_manifest(question)
    with open_bundle(question.path) as file:
        return _of_bundle(file, question)


def _of_bundle(file: BundleFile, question: Question) -> Answer:
    kernel = question.kernel
    if kernel is None:
        if question.wish == "all":
            return summarise(file, question.target)
        names = Catalogue(file).kernels()
        if len(names) != 1:
            raise AmbiguousError([f"kernel {name}" for name in names])
        (kernel,) = names
    if question.wish == "table":
        return TableAnswer(*table_rows(file, kernel, question.given, question.target))
    entries = select(file, kernel, question.given, question.target)
    if len(entries) > 1:
        if question.wish == "all":
            return Listing(Catalogue(file).kernel_record(kernel), entries)
        raise AmbiguousError([entry.spec.label() for entry in entries])
    (entry,) = entries
    spec = entry.spec
    if question.wish == "all":
        return Detail(entry, tuple(stage_names(file, spec)))
    if question.wish == "plan":
        return PlanAnswer(spec)
    if question.wish == "stage":
        return StageAnswer(spec, bundle_stage(file, spec, question.stage))
    stages = bundle_stages(file, spec)
    image = code_object(file, spec) if question.wish == "files" else b""
    return _of_stages(question, spec, stages, image)


def _of_manifest(question: Question) -> Answer:
    from flyc_cli.inspect import manifest

    if question.wish == "table":
        raise FlycError(f"{question.path} is a manifest; --table shows that of a bundle")

    planned = manifest.select(question.path, question.kernel, question.given, question.target)
    if len(planned.requests) > 1:
        if question.wish == "all":
            return planned
        raise AmbiguousError([request.label() for request in planned.requests])
    compiled = manifest.compile_one(planned, question.rocm, question.llvm, question.storage)
    spec = compiled.entry.spec
    if question.wish == "all":
        return Detail(compiled.entry, tuple(stage.name for stage in compiled.stages))
    if question.wish == "plan":
        return PlanAnswer(spec)
    if question.wish == "stage":
        return StageAnswer(spec, find_stage(spec, compiled.stages, question.stage))
    return _of_stages(question, spec, compiled.stages, compiled.code_object)


def _of_stages(
    question: Question, spec: Specialisation, stages: tuple[Stage, ...], image: bytes
) -> Answer:
    if question.wish == "files":
        return FilesAnswer(spec, write_stages(question.directory, spec, stages, image))
    if question.wish == "diff":
        return DiffAnswer(spec, stage_diffs(stages))
    return StagesAnswer(spec, stages)
