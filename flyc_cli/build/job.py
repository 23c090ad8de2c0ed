"""One specialisation in one process: import, trace, lower, and leave the results in files.

A request may turn out to stand for several specialisations (a captured call that reaches several
launchers, a tuned kernel with several configurations). Then each is a job of its own: the first
builds part 0 and says how many parts there are.

Files of a job's directory: `stderr` (what native code printed), `stage` (the last stage entered),
then `outcome.json` and, after a success, `code_object`, `specialisation.json` and `stages.json`.
They are complete once `outcome.json` exists, which is written last.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyc_cli.frontends.errors import InputError, TraceError
from flyc_cli.manifest.model import (
    EnumValue,
    ListValue,
    ObjectValue,
    Request,
    TupleValue,
    TypeValue,
    Value,
)
from mlir_passes.toolkit import LLD_VERSION, Toolkit
from runtime_loader.signature import Form
from runtime_loader.specialisation import Specialisation


@dataclass(frozen=True)
class Job:
    """A request, where to leave its results, and what to keep of the way there.

    `part` says which of the request's specialisations this job builds.
    """

    request: Request
    directory: Path
    toolkit: Toolkit
    capture: bool = False
    keep_host: bool = False
    part: int = 0


def run_job(job: Job) -> None:
    """Build `job` in this process, which must not build anything else afterwards.

    Every failure ends in `outcome.json`; only a crash of native code leaves none.
    """
    from flyc_cli.frontends.torch_standin import TorchRequested
    from mlir_passes.errors import LoweringError
    from mlir_passes.stderr_log import StderrLog

    outcome: dict[str, Any]
    part = _Part(job.request.kernel, job.request.params)
    with StderrLog(job.directory / "stderr") as log:
        try:
            outcome = {"kind": "built", "seconds": _build(job, part, log)}
        except TorchRequested:
            outcome = {"kind": "torch"}
        except InputError as error:
            outcome = {"kind": "input", "stage": "import", "message": str(error), "source": []}
        except TraceError as error:
            outcome = _failure(error.stage, error.message, list(error.source))
        except LoweringError as error:
            places = [(line.file, line.line) for line in error.source]
            outcome = _failure(error.stage, error.message, places)
    _write(job.directory / "outcome.json", json.dumps({**vars(part), **outcome}))


@dataclass
class _Part:
    """Which of the request's specialisations this is, and of how many: filled in as it turns out.

    `optional`: it is one configuration of a tuned kernel.
    """

    kernel: str
    params: dict[str, Any]
    parts: int = 1
    optional: bool = False


def _failure(stage: str, message: str, source: list[tuple[str, int]]) -> dict[str, Any]:
    return {"kind": "failed", "stage": stage, "message": message, "source": source}


def _build(job: Job, part: _Part, log: Any) -> dict[str, float]:
    from flyc_cli.frontends import flydsl_adapter as adapter
    from mlir_passes.lowering import Artifact, lower

    request = job.request

    def enter(stage: str) -> None:
        _write(job.directory / "stage", stage)

    enter("import")
    sys.dont_write_bytecode = True
    sys.path[:0] = request.python_path
    os.environ["LLD_VERSION"] = LLD_VERSION
    adapter.set_environment(request.target.processor, request.env)
    launcher = _user_code("import", lambda: _launcher(request))
    constexpr = _user_code("import", lambda: _python_values(request.constexpr))
    forms, call = adapter.order_arguments(launcher, request.args, constexpr)

    artifacts: list[Artifact] = []

    def lower_traced(traced: adapter.Traced) -> None:
        artifacts.append(
            lower(
                traced.module,
                traced.fragments,
                target=request.target,
                toolkit=job.toolkit,
                log=log,
                capture=job.capture,
                on_stage=enter,
            )
        )

    enter("trace")
    _user_code("trace", lambda: adapter.trace(launcher, call, request.hints, lower_traced))
    (artifact,) = artifacts
    _write_artifact(job, part, forms, artifact)
    return artifact.seconds


def _write_artifact(job: Job, part: _Part, forms: tuple[Form, ...], artifact: Any) -> None:
    import hashlib

    specialisation = Specialisation(
        kernel=part.kernel,
        target=job.request.target,
        params=part.params,
        signature=forms,
        plan=artifact.plan,
        kernels=artifact.kernels,
        code_object=hashlib.sha256(artifact.code_object).hexdigest(),
        launcher=str(job.request.source),
        hints=job.request.hints,
    )
    (job.directory / "code_object").write_bytes(artifact.code_object)
    _write(job.directory / "stages.json", json.dumps(artifact.stages))
    if job.keep_host:
        _write(job.directory / "host.mlir", artifact.host)
    _write(job.directory / "specialisation.json", json.dumps(specialisation.to_json()))


def _launcher(request: Request) -> Any:
    from flyc_cli.frontends import flydsl_adapter as adapter

    source = request.source
    value = adapter.import_object(source.module, source.qualname)
    if source.kind == "factory":
        if not callable(value) or adapter.is_launcher(value):
            raise InputError(f"{source} is not a factory function; list it as a launcher")
        value = value(**_python_values(source.kwargs))
        if source.select is not None:
            value = _select(value, source)
    if adapter.is_launcher(value):
        return value
    raise InputError(f"{source}{_not_a_launcher(value, source.kind)}")


def _select(value: Any, source: Any) -> Any:
    try:
        return value[source.select]
    except (LookupError, TypeError):
        raise InputError(
            f"{source} returned {_shape(value)}; it has no {source.select!r}"
        ) from None


def _not_a_launcher(value: Any, kind: str) -> str:
    if kind == "launcher":
        hint = "; a function that returns a launcher is a factory" if callable(value) else ""
        return f" is {type(value).__name__}, not a @flyc.jit launcher{hint}"
    return f" returned {_shape(value)}, not a @flyc.jit launcher: pick one with select"


def _shape(value: Any) -> str:
    if isinstance(value, dict):
        return f"a mapping with {', '.join(map(repr, value))}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return type(value).__name__


def _python_values(values: dict[str, Value]) -> dict[str, Any]:
    return {name: _python_value(value) for name, value in values.items()}


def _python_value(value: Value) -> Any:
    from flyc_cli.frontends import flydsl_adapter as adapter

    if isinstance(value, TypeValue):
        return adapter.numeric_type(value.name)
    if isinstance(value, ObjectValue | EnumValue):
        return adapter.import_object(value.module, value.qualname)
    if isinstance(value, TupleValue):
        return tuple(_python_value(item) for item in value.items)
    if isinstance(value, ListValue):
        return [_python_value(item) for item in value.items]
    return value


def _user_code(stage: str, run: Any) -> Any:
    """Run code of the kernel's author; what it raises becomes a `TraceError` with its place."""
    from mlir_passes.errors import LoweringError

    try:
        return run()
    except (InputError, TraceError, LoweringError):
        raise
    except ModuleNotFoundError as error:
        raise _import_error(error) from None
    except Exception as error:
        raise TraceError(stage, _describe(error), _user_frames(error)) from None


def _import_error(error: ModuleNotFoundError) -> Exception:
    frames = _user_frames(error)
    if not frames:
        return InputError(f"no module named {error.name}: is its directory in python_path?")
    hint = f"no module named {error.name}: install it, or add its directory to python_path"
    return TraceError("import", hint, frames)


def _describe(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _user_frames(error: BaseException) -> tuple[tuple[str, int], ...]:
    """The frames of the author's own files, innermost first."""
    if isinstance(error, SyntaxError) and error.filename:
        return ((error.filename, error.lineno or 1),)
    import flydsl

    import mlir_passes
    import runtime_loader

    ours = (flydsl, mlir_passes, runtime_loader)
    hidden = [str(Path(str(module.__file__)).parent) for module in ours]
    hidden += [str(Path(__file__).parents[1]), str(Path(os.__file__).parent), "<"]
    frames = [
        (frame.filename, frame.lineno or 0)
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(tuple(hidden))
    ]
    return tuple(reversed(frames))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
