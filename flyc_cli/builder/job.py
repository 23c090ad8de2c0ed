"""One specialisation in one process: import, trace, lower, and leave the results in files.

A request may turn out to stand for several specialisations (a captured call that reaches several
launchers, a tuned kernel with several configurations). Then each is a job of its own: the first
builds part 0 and says how many parts there are.

Files of a job's directory: `stderr` (what was printed), `stage` (the last stage entered, padded),
`places.json` (what an error of LLVM can be about), then `outcome.json` and, after a success,
`code_object`, `specialisation.json` and `stages.json`. They are complete once `outcome.json`
exists, which is written last.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flyc_cli.frontends.errors import InputError, TraceError
from flyc_cli.manifest.model import Request
from flyc_cli.store.files import Storage
from flyc_cli.store.recorder import Recorder, looked_to_json
from mlir_passes.places import Places
from mlir_passes.toolkit import LLD_VERSION, Toolkit
from runtime_loader.checked import canonical_json
from runtime_loader.errors import BundleError
from runtime_loader.specialisation import Specialisation, check_specialisation

if TYPE_CHECKING:
    from flyc_cli.frontends.reach import Part


# The exit status of a worker that could not write into its directory (EX_IOERR of sysexits.h).
CANNOT_WRITE = 74


@dataclass(frozen=True)
class Job:
    """A request, where to leave its results, and what to keep of the way there.

    `part` says which of the request's specialisations this job builds. `memory_limit` is in bytes.
    A module that `storage` has the lowering of is not lowered again; `toolchain` is its part of
    the key.
    """

    request: Request
    directory: Path
    toolkit: Toolkit
    capture: bool = False
    keep_host: bool = False
    part: int = 0
    memory_limit: int | None = None
    storage: Storage | None = None
    toolchain: bytes = b""


@dataclass
class _Reuse:
    """The key of what was traced, and whether its lowering was there already."""

    lowering: str | None = None
    reused: bool = False


def run_job(job: Job, recorder: Recorder) -> None:
    """Build `job` in this process, which must not build anything else afterwards.

    `recorder` is installed, and records what the code of the kernel's author looks at.
    Every failure ends in `outcome.json`; only a crash of native code leaves none.
    """
    from flyc_cli.frontends.reach import Part
    from flyc_cli.frontends.torch_standin import TorchRequested, torch_was_requested
    from mlir_passes.errors import LoweringError
    from mlir_passes.stderr_log import StderrLog

    outcome: dict[str, Any]
    part = Part(job.part, job.request.kernel, job.request.params)
    reuse = _Reuse()
    with StderrLog(job.directory / "stderr") as log:
        try:
            seconds = _build(job, part, log, recorder, reuse)
            looked = looked_to_json(recorder.looked()) if job.storage else None
            outcome = {"kind": "built", "seconds": seconds, "looked": looked, **vars(reuse)}
        except TorchRequested:
            outcome = {"kind": "torch"}
        except InputError as error:
            outcome = {"kind": "input", "stage": "import", "message": str(error), "source": []}
        except TraceError as error:
            outcome = _failure(error.stage, error.message, list(error.source))
        except LoweringError as error:
            places = [(line.file, line.line) for line in error.source]
            outcome = _failure(error.stage, error.message, places)
    if torch_was_requested():
        # Whatever came after: the module may have caught the request, and gone on without torch.
        outcome = {"kind": "torch"}
    _write(job.directory / "outcome.json", json.dumps({**_named(part), **outcome}))


def _named(part: Part) -> dict[str, Any]:
    return {
        "kernel": part.kernel,
        "params": part.params,
        "parts": part.parts,
        "optional": part.optional,
    }


def _failure(stage: str, message: str, source: list[tuple[str, int]]) -> dict[str, Any]:
    return {"kind": "failed", "stage": stage, "message": message, "source": source}


def _build(job: Job, part: Part, log: Any, recorder: Recorder, reuse: _Reuse) -> dict[str, float]:
    from flyc_cli.builder.early_cutoff import files_beside
    from flyc_cli.frontends import flydsl_adapter as adapter
    from flyc_cli.frontends.raw_sources import describe_code_object, trace_mlir
    from flyc_cli.frontends.reach import trace_part
    from mlir_passes.lowering import Artifact, lower

    request = job.request

    stage_file = os.open(job.directory / "stage", os.O_WRONLY | os.O_CREAT)

    def enter(stage: str) -> None:
        os.pwrite(stage_file, f"{stage:80}".encode(), 0)

    def note_places(places: Places) -> None:
        _write(job.directory / "places.json", json.dumps(places.to_json()))

    with recorder.paused():
        os.environ["LLD_VERSION"] = LLD_VERSION
        adapter.set_environment(request.target.processor, request.env)
    _import_from_sources(job)
    recorder.start(request.python_path, [str(job.directory), str(job.toolkit.directory)])

    artifacts: list[Artifact] = []

    def lower_traced(traced: adapter.Traced) -> None:
        part.post_load = traced.post_load
        beside = files_beside(traced.module, traced.fragments)
        for path in beside:
            recorder.note_file(path)
        with recorder.paused():
            before = _lowered_before(job, traced, beside, reuse)
            artifacts.append(before or lower_now(traced))

    def lower_now(traced: adapter.Traced) -> Artifact:
        return lower(
            traced.module,
            traced.fragments,
            target=request.target,
            toolkit=job.toolkit,
            log=log,
            llvm_options=traced.llvm_options,
            capture=job.capture,
            on_stage=enter,
            on_places=note_places,
        )

    if request.source.kind == "code_object":
        artifacts.append(describe_code_object(request, part, enter))
    elif request.source.kind == "mlir":
        trace_mlir(request, part, enter, lower_traced)
    else:
        trace_part(request, part, enter, lower_traced)
    (artifact,) = artifacts
    _write_artifact(job, part, artifact)
    return artifact.seconds


def _import_from_sources(job: Job) -> None:
    """Bytecode is believed for its source's second and size: an edit can have the same."""
    sys.dont_write_bytecode = True
    sys.pycache_prefix = str(job.directory / "bytecode")
    sys.path[:0] = job.request.python_path


def _lowered_before(job: Job, traced: Any, beside: Sequence[str], reuse: _Reuse) -> Any:
    """What the store has for a traced module, if it may be used."""
    from flyc_cli.builder.early_cutoff import key_of_module, lowered_before

    if job.storage is None:
        return None
    reuse.lowering = key_of_module(
        traced.module,
        traced.fragments,
        job.request.target,
        job.toolchain + canonical_json(dict(traced.llvm_options)),
        beside,
    )
    found = lowered_before(job.storage, reuse.lowering, stages=job.capture)
    reuse.reused = found is not None
    return found


def _write_artifact(job: Job, part: Part, artifact: Any) -> None:
    import hashlib

    from mlir_passes.errors import LoweringError

    specialisation = Specialisation(
        kernel=part.kernel,
        target=job.request.target,
        params=part.params,
        signature=part.forms,
        plan=artifact.plan,
        kernels=artifact.kernels,
        code_object=hashlib.sha256(artifact.code_object).hexdigest(),
        launcher=part.launcher,
        hints=part.hints,
        post_load=part.post_load,
    )
    try:
        check_specialisation(specialisation, "the launcher's signature")
    except BundleError as error:
        raise LoweringError("launch-plan", str(error)) from None
    (job.directory / "code_object").write_bytes(artifact.code_object)
    _write(job.directory / "stages.json", json.dumps(artifact.stages))
    if job.keep_host:
        _write(job.directory / "host.mlir", artifact.host)
    _write(job.directory / "specialisation.json", json.dumps(specialisation.to_json()))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
