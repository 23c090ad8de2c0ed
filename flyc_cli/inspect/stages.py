"""The stages of one specialisation: their names and texts, differences, and files."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flyc_cli.inspect.plan_text import plan_text
from flyc_cli.text import assignments, first_few
from runtime_loader.bundle_file import BundleFile
from runtime_loader.errors import FlycError, MissError
from runtime_loader.nearest import did_you_mean
from runtime_loader.specialisation import Specialisation

_SUFFIXES = {"llvm-ir": ".ll", "isa": ".s"}
_NOT_A_FILE_NAME = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True)
class Stage:
    """One snapshot of the lowering."""

    name: str
    text: str


@dataclass(frozen=True)
class StageDiff:
    """What a stage changed: `diff` is unified, against `before`; empty when nothing changed."""

    name: str
    before: str
    diff: str


def stage_names(file: BundleFile, spec: Specialisation) -> list[str]:
    """The stages that a bundle has of a specialisation, in order; none if built without."""
    return file.stage_names(spec.key())


def bundle_stage(file: BundleFile, spec: Specialisation, name: str) -> Stage:
    """One stage out of a bundle. Raises `MissError`."""
    names = _require_stages(file, spec)
    text = file.stage(spec.key(), name)
    if text is None:
        raise _no_stage(spec, name, names)
    return Stage(name, text)


def bundle_stages(file: BundleFile, spec: Specialisation) -> tuple[Stage, ...]:
    """Every stage of a specialisation out of a bundle. Raises `MissError` if there are none."""
    names = _require_stages(file, spec)
    return tuple(bundle_stage(file, spec, name) for name in names)


def find_stage(spec: Specialisation, stages: Sequence[Stage], name: str) -> Stage:
    """The stage of that name. Raises `MissError`."""
    for stage in stages:
        if stage.name == name:
            return stage
    raise _no_stage(spec, name, [stage.name for stage in stages])


def stage_diffs(stages: Sequence[Stage]) -> tuple[StageDiff, ...]:
    """Each stage but the first against the one before it."""
    return tuple(
        StageDiff(after.name, before.name, _unified(before, after))
        for before, after in itertools.pairwise(stages)
    )


def write_stages(
    directory: Path, spec: Specialisation, stages: Sequence[Stage], code_object: bytes
) -> tuple[Path, ...]:
    """Write each stage, the launch plan and the code object as files; returns their paths."""
    contents = {
        f"{number:02}-{_file_name(stage.name)}": stage.text.encode()
        for number, stage in enumerate(stages)
    }
    contents["launch-plan.txt"] = plan_text(spec).encode() + b"\n"
    contents["code-object.hsaco"] = code_object
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (directory / name).write_bytes(content)
    except OSError as error:
        raise FlycError(f"cannot write into {directory}: {error.strerror}") from error
    return tuple(directory / name for name in contents)


def _require_stages(file: BundleFile, spec: Specialisation) -> list[str]:
    names = stage_names(file, spec)
    if names:
        return names
    selection = f"{spec.kernel} {assignments(spec.params)} --target {spec.target}"
    raise MissError(
        f"{file.path} has no stages of {spec.label()}: it was built without them. Build it with "
        f"`flyc build --stages`, or compile this one with `flyc inspect MANIFEST {selection}`"
    )


def _no_stage(spec: Specialisation, name: str, names: Sequence[str]) -> MissError:
    return MissError(
        f"{spec.label()} has no stage {name!r}{did_you_mean(name, names)}; "
        f"it has {first_few(names, 100)}"
    )


def _unified(before: Stage, after: Stage) -> str:
    lines = difflib.unified_diff(
        before.text.splitlines(), after.text.splitlines(), before.name, after.name, lineterm=""
    )
    return "\n".join(lines)


def _file_name(stage: str) -> str:
    return _NOT_A_FILE_NAME.sub("_", stage) + _SUFFIXES.get(stage, ".mlir")
