"""Runs code of the kernel's author; what it raises becomes an error with the author's own lines."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import flydsl
from flydsl.compiler.diagnostics import DSLCompileError

import flyc_cli
import mlir_passes
import runtime_loader
from flyc_cli.frontends.errors import InputError, TraceError
from flyc_cli.frontends.torch_standin import TorchRequested
from mlir_passes.errors import LoweringError

Result = TypeVar("Result")
Frames = tuple[tuple[str, int], ...]

# Enough to see where a recursion went round.
_MOST_FRAMES = 16

_FRAMEWORK = tuple(
    f"{Path(str(package.__file__)).parent}{os.sep}"
    for package in (flydsl, flyc_cli, mlir_passes, runtime_loader)
)
_STANDARD_LIBRARY = f"{Path(os.__file__).parent}{os.sep}"


def run_user_code(stage: str, run: Callable[[], Result]) -> Result:
    """Return what `run` returns; raise `TraceError` of `stage` for whatever else it does."""
    try:
        return run()
    except (InputError, TraceError, LoweringError, TorchRequested):
        raise
    except ModuleNotFoundError as error:
        raise _import_error(stage, error) from None
    except DSLCompileError as error:
        raise _refused_by_mlir(stage, error) from None
    except BaseException as error:
        # SystemExit too: a module that ends the process is as wrong as one that raises.
        raise TraceError(stage, _describe(error), _author_frames(error)) from None


def _import_error(stage: str, error: ModuleNotFoundError) -> Exception:
    frames = _author_frames(error)
    if not frames:
        return InputError(f"no module named {error.name}: is its directory in python_path?")
    hint = f"no module named {error.name}: install it, or add its directory to python_path"
    return TraceError(stage, hint, frames)


def _refused_by_mlir(stage: str, error: DSLCompileError) -> TraceError:
    """FlyDSL's text repeats notes and source lines; its records hold what MLIR said and where."""
    for record in error.diagnostics:
        frames = tuple((frame.filename, frame.line) for frame in record.chain)
        return TraceError(stage, record.message, frames or _author_frames(error))
    return TraceError(stage, _describe(error), _author_frames(error))


def _describe(error: BaseException) -> str:
    text = str(error).strip()
    first = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return "\n".join([first, *getattr(error, "__notes__", ())])


def _author_frames(error: BaseException) -> Frames:
    """The frames of the author's own files, innermost first, each line once."""
    if isinstance(error, SyntaxError) and error.filename:
        return ((error.filename, error.lineno or 1),)
    frames = [
        (frame.filename, frame.lineno or 0)
        for frame in reversed(traceback.extract_tb(error.__traceback__))
        if not _is_hidden(frame.filename)
    ]
    return tuple(dict.fromkeys(frames))[:_MOST_FRAMES]


def _is_hidden(filename: str) -> bool:
    if filename.startswith(("<", *_FRAMEWORK)):
        return True
    # Installed packages can live below the standard library, and kernels in them.
    return filename.startswith(_STANDARD_LIBRARY) and "-packages" not in filename
