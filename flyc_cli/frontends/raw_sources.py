"""Kernels that come as files: MLIR of the `gpu` dialect, and code objects."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from flyc_cli.frontends import flydsl_adapter as adapter
from flyc_cli.frontends.described_plan import describe_plan
from flyc_cli.frontends.errors import InputError
from flyc_cli.frontends.reach import Lower, Part
from flyc_cli.manifest.model import Request
from mlir_passes.lowering import CODE_OBJECT, Artifact, checked_code_object, kernel_entry
from mlir_passes.places import Places
from mlir_passes.source_module import read_module
from runtime_loader.nearest import did_you_mean
from runtime_loader.signature import Form, StreamForm

_OFFLOAD_BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"


def trace_mlir(request: Request, part: Part, enter: Callable[[str], None], lower: Lower) -> None:
    """Read the module of a request and call `lower` with it and FlyDSL's passes."""
    enter("parse")
    _describe(request, part)
    text = _read(request)
    module = read_module(text, request.source.module, request.source.file)
    adapter.lower_module(module, request.target.processor, request.hints, lower)


def describe_code_object(request: Request, part: Part, enter: Callable[[str], None]) -> Artifact:
    """The artifact of a code object, with the plan that the manifest describes."""
    enter(CODE_OBJECT)
    _describe(request, part)
    data = _read(request)
    if data.startswith(_OFFLOAD_BUNDLE):
        raise InputError(
            f"{request.source} is an offload bundle, not a code object: take the entry for "
            f"{request.target.processor} out with clang-offload-bundler -unbundle"
        )
    parsed = checked_code_object(data, request.target, Places())
    symbols = dict.fromkeys(launch.symbol for launch in request.source.launches)
    for symbol in symbols:
        if symbol not in parsed.kernels:
            have = ", ".join(sorted(parsed.kernels)[:8]) or "none"
            raise InputError(
                f"{request.source} has no kernel {symbol}{did_you_mean(symbol, parsed.kernels)}; "
                f"its kernels are {have}"
            )
    kernels = {symbol: kernel_entry(parsed, symbol, Places()) for symbol in symbols}
    plan = describe_plan(request.source.launches, part.forms, request.params, kernels)
    return Artifact(data, plan, tuple(kernels.values()), (), "", {})


def _describe(request: Request, part: Part) -> None:
    part.launcher = str(request.source)
    part.hints = request.hints
    part.forms = _with_stream(request.args)


def _with_stream(forms: tuple[Form, ...]) -> tuple[Form, ...]:
    if any(isinstance(form, StreamForm) for form in forms):
        return forms
    return (*forms, StreamForm("stream", implicit=True))


def _read(request: Request) -> bytes:
    data = Path(request.source.file).read_bytes()
    if hashlib.sha256(data).hexdigest() != request.source.file_sha256:
        raise InputError(f"{request.source} changed during the build; build again")
    return data
