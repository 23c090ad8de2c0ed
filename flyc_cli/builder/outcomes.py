"""What became of a specialisation, read from the files that its worker left."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flyc_cli.builder.job import Job
from flyc_cli.manifest.model import Request
from flyc_cli.store.artifacts import Artifact
from flyc_cli.store.recorder import Looked, looked_from_json
from flyc_cli.text import byte_size
from mlir_passes.places import Places
from runtime_loader.checked import Fields
from runtime_loader.specialisation import Specialisation

_STDERR_TAIL = 2000

# Where a built specialisation comes from: this build, or an earlier one with the same input (here,
# or on a machine that shares a cache), or one that lowered the same module.
COMPILED, SAME_INPUT, SHARED, SAME_MODULE = "compiled", "same input", "remote cache", "same module"


@dataclass(frozen=True)
class Built:
    """A specialisation that was built. `seconds` per stage and `memory` (KiB) are for reports.

    `request` has the kernel name and the parameters of the specialisation; `entry` is the kernel
    of the manifest that asked for it. `origin` is COMPILED, SAME_INPUT, SHARED or SAME_MODULE; if
    no worker ran (SAME_INPUT, SHARED), `seconds` and `memory` are those of the build that made it.
    `interval` is when its worker ran, in seconds since the build began; None if none did.
    """

    request: Request
    specialisation: Specialisation
    code_object: bytes
    stages: tuple[tuple[str, str], ...]
    host: str
    seconds: dict[str, float]
    memory: int
    entry: str
    origin: str = COMPILED
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Failed:
    """A specialisation that was not built.

    `kind` is `failed` (a clean compile error), `input` (the manifest and the module disagree),
    `died` (the worker did not survive), `timeout` or `memory` (it was stopped at its limit).
    `source` is (file, line), innermost first. `optional`: it is one configuration of a tuned
    kernel, which may be missing from the bundle.
    """

    request: Request
    kind: str
    stage: str
    message: str
    entry: str
    source: tuple[tuple[str, int], ...] = ()
    optional: bool = False
    interval: tuple[float, float] | None = None


Outcome = Built | Failed


@dataclass(frozen=True)
class Finished:
    """What one run of a job came to. No `outcome`: it must run again with the real torch.

    `parts` is how many specialisations its request has. After a success, `looked` is what the
    code looked at, and `lowering` the key of what it traced, if these were recorded.
    """

    outcome: Outcome | None
    parts: int = 1
    optional: bool = False
    looked: Looked | None = None
    lowering: str | None = None


def read_finished(job: Job, status: int, memory: int) -> Finished:
    """Read what `job`, whose process ended with wait status `status`, left in its directory."""
    try:
        outcome: dict[str, Any] = json.loads((job.directory / "outcome.json").read_text())
    except (OSError, ValueError):
        return Finished(died(job, exit_text(os.waitstatus_to_exitcode(status))))
    if outcome["kind"] == "torch":
        return Finished(None)
    request = replace(job.request, kernel=outcome["kernel"], params=outcome["params"])
    if outcome["kind"] != "built":
        failed = Failed(
            request=request,
            kind=outcome["kind"],
            stage=outcome["stage"],
            message=outcome["message"],
            entry=job.request.kernel,
            source=tuple((file, line) for file, line in outcome["source"]),
            optional=outcome["optional"],
        )
        return Finished(_of_memory(failed, job.memory_limit), outcome["parts"])
    record = json.loads((job.directory / "specialisation.json").read_text())
    stages = json.loads((job.directory / "stages.json").read_text())
    host = job.directory / "host.mlir"
    looked = outcome["looked"]
    built = Built(
        request=request,
        specialisation=Specialisation.read(Fields(record, request.label())),
        code_object=(job.directory / "code_object").read_bytes(),
        stages=tuple((name, text) for name, text in stages),
        host=host.read_text() if host.exists() else "",
        seconds=outcome["seconds"],
        memory=memory,
        entry=job.request.kernel,
        origin=SAME_MODULE if outcome["reused"] else COMPILED,
    )
    return Finished(
        built,
        outcome["parts"],
        outcome["optional"],
        None if looked is None else looked_from_json(looked),
        outcome["lowering"],
    )


def found_again(request: Request, artifact: Artifact, *, fetched: bool) -> Built:
    """What an earlier build made of `request`. Raises `BundleError` if it is not a sound one."""
    named = replace(request, kernel=artifact.kernel, params=artifact.params)
    return Built(
        request=named,
        specialisation=Specialisation.read(Fields(artifact.specialisation, named.label())),
        code_object=artifact.code_object,
        stages=artifact.stages or (),
        host="",
        seconds=artifact.seconds,
        memory=artifact.memory,
        entry=request.kernel,
        origin=SHARED if fetched else SAME_INPUT,
    )


def to_keep(built: Built, parts: int, *, optional: bool, stages: bool) -> Artifact:
    """`built` as the store keeps it."""
    return Artifact(
        kernel=built.request.kernel,
        params=built.request.params,
        parts=parts,
        optional=optional,
        specialisation=built.specialisation.to_json(),
        code_object=built.code_object,
        stages=built.stages if stages else None,
        seconds=built.seconds,
        memory=built.memory,
    )


def died(job: Job, how: str) -> Failed:
    """The failure of a job whose process did not survive; `how` is how it ended."""
    tail = _last_words(_text(job.directory / "stderr"))
    message = f"the worker died ({how})"
    return _of_memory(
        _stopped(job, "died", f"{message}: {tail}" if tail else message, tail), job.memory_limit
    )


def _last_words(printed: str) -> str:
    """The end of what a dead worker printed; of an abort of LLVM, its reason without the dump."""
    _, error, reason = printed.rpartition("LLVM ERROR:")
    if error:
        lines = [line for line in reason.splitlines() if not line.startswith("  ")]
        printed = "\n".join([f"{error}{lines[0]}", *lines[1:]])
    return printed[-_STDERR_TAIL:].strip()


def out_of_time(job: Job, seconds: float) -> Failed:
    """The failure of a job that was stopped after `seconds`."""
    message = f"it was stopped after {seconds:g} s, its timeout; --timeout or limits changes it"
    return _stopped(job, "timeout", message, "")


def out_of_memory(job: Job, limit: int) -> Failed:
    """The failure of a job that was stopped because it used more than `limit` bytes."""
    return _stopped(job, "memory", _memory_text(limit), "")


def exit_text(code: int) -> str:
    """How a process ended: its exit status, or the signal's name."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _stopped(job: Job, kind: str, message: str, tail: str) -> Failed:
    stage = _text(job.directory / "stage").strip() or "start"
    places = _text(job.directory / "places.json")
    trail = Places.from_json(json.loads(places)).of(tail) if places and tail else ()
    return Failed(
        job.request,
        kind,
        stage,
        message,
        entry=job.request.kernel,
        source=tuple((line.file, line.line) for line in trail),
    )


def _of_memory(failed: Failed, limit: int | None) -> Failed:
    """The limit also makes allocations fail, which ends in an error of its own."""
    signs = ("MemoryError", "out of memory", "bad_alloc", "Cannot allocate memory")
    if limit is None or not any(sign in failed.message for sign in signs):
        return failed
    return replace(failed, kind="memory", message=f"{_memory_text(limit)}: {failed.message}")


def _memory_text(limit: int) -> str:
    return (
        f"it used more than {byte_size(limit)} of memory, its limit; --memory-limit or limits "
        "changes it"
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
