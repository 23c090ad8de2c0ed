"""Requests for the kernels of this folder, and one call that builds many of them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from flyc_cli.builder.supervisor import Built, Failed, Outcome, compile_all
from flyc_cli.manifest.model import Request, Source, json_value
from flyc_cli.manifest.source import Place
from mlir_passes.toolkit import assemble_toolkit
from runtime_loader.evaluate import ConcreteLaunch, Evaluator
from runtime_loader.signature import Form, PointerForm, ScalarForm, TensorForm
from runtime_loader.target import SUPPORTED, Target

Key = TypeVar("Key", bound=Hashable)

KERNELS = Path(__file__).parent / "kernels"
TARGETS = tuple(SUPPORTED)


def request(
    launcher: str,
    *args: Form,
    target: str = "gfx942",
    constexpr: Mapping[str, Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    select: str | int | None = None,
    env: Mapping[str, str] | None = None,
    kernels: Path = KERNELS,
) -> Request:
    """A request for `module:launcher` below `kernels`; with `kwargs` it is a factory."""
    module, _, qualname = launcher.partition(":")
    constexpr = dict(constexpr or {})
    kind = "launcher" if kwargs is None else "factory"
    return Request(
        kernel=qualname,
        target=Target.parse(target),
        params={name: json_value(value) for name, value in {**(kwargs or {}), **constexpr}.items()},
        source=Source(kind, module, qualname, dict(kwargs or {}), select),
        constexpr=constexpr,
        args=args,
        hints={},
        env=dict(env or {}),
        python_path=(str(kernels),),
        where=Place("manifest.yaml", 1, 1),
    )


def pointer(name: str, dtype: str = "f32", align: int = 4) -> PointerForm:
    return PointerForm(name, dtype, align)


def scalar(name: str, type_: str = "i32") -> ScalarForm:
    return ScalarForm(name, type_)


def tensor(
    name: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: str = "f32",
    stride_bits: int = 64,
) -> TensorForm:
    return TensorForm(name, dtype, shape, strides, 16, stride_bits)


def build(requests: Mapping[Key, Request], *, capture: bool = False, jobs: int = 2) -> Outcomes:
    """Build all `requests` in one run."""
    with tempfile.TemporaryDirectory() as scratch:
        toolkit = assemble_toolkit(Path(scratch))
        outcomes = compile_all(list(requests.values()), toolkit=toolkit, jobs=jobs, capture=capture)
    return Outcomes(dict(zip(requests, outcomes, strict=True)))


class Outcomes:
    """What each request became, by its key."""

    def __init__(self, outcomes: Mapping[Any, Outcome]) -> None:
        self._outcomes = outcomes

    def built(self, key: Hashable) -> Built:
        outcome = self._outcomes[key]
        assert isinstance(outcome, Built), f"{key}: {outcome.stage}: {outcome.message}"
        return outcome

    def failed(self, key: Hashable) -> Failed:
        outcome = self._outcomes[key]
        assert isinstance(outcome, Failed), f"{key} was built"
        return outcome


def launches(built: Built, *slots: int) -> list[ConcreteLaunch]:
    """What the plan launches for these host slots; a stream is appended."""
    spec = built.specialisation
    masks = {"i8": 0xFF, "i16": 0xFFFF, "i32": 0xFFFFFFFF}
    bits = [
        slot & masks.get(type_, 2**64 - 1)
        for slot, type_ in zip((*slots, 7), spec.plan.inputs, strict=True)
    ]
    return Evaluator(spec.plan, [kernel.kernarg for kernel in spec.kernels])(bits)


def line_of(module: str, text: str, kernels: Path = KERNELS) -> tuple[str, int]:
    """File and line of the one line of a kernel module that has `text` in it."""
    path = kernels / f"{module}.py"
    lines = path.read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, start=1) if text in line]
    return str(path), number


def instructions(isa: str) -> list[str]:
    """The instructions of an assembly text, without padding."""
    lines = re.findall(r"^\t([a-z]\w+)", isa, re.MULTILINE)
    return [line for line in lines if line not in ("s_nop", "s_code_end")]
