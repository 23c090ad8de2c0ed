"""The pipeline as data: named stages in order, run one by one, any of them capturable."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from flydsl._mlir import ir
from flydsl._mlir.passmanager import PassManager

from mlir_passes.errors import LoweringError

TRACED = "traced"
LLVM_IR = "llvm-ir"
ISA = "isa"
_TO_BINARY = "gpu-module-to-binary"
_ON_GPU_MODULE = re.compile(r"gpu\.module\((.*)\)", re.DOTALL)
_TOP_LEVEL_COMMA = re.compile(r",(?![^{(]*[})])")


@dataclass(frozen=True)
class Stage:
    """One pass (with its options) and the name that people use for the module after it."""

    name: str
    passes: str


@dataclass(frozen=True)
class Pipeline:
    """Stages from the traced module to LLVM dialect, then one that emits the code object.

    Every stage is a pass manager of its own, captured or not, so capturing changes no byte.
    """

    stages: tuple[Stage, ...]

    @classmethod
    def from_fragments(cls, fragments: Iterable[str], chipset: str) -> Pipeline:
        """Split FlyDSL's pass list (`RocmBackend.pipeline_fragments`) into named stages.

        `convert-math-to-rocdl` is put before `convert-gpu-to-rocdl`: without it FlyDSL 0.5.0
        lowers tan, asin, acos, atan, sinh, cosh, tanh and atan2 to nothing at all.
        """
        passes: list[str] = []
        for fragment in fragments:
            nested = _ON_GPU_MODULE.fullmatch(fragment.strip())
            if fragment.startswith(_TO_BINARY):
                continue
            if nested is None:
                passes.append(fragment)
                continue
            for inner in _TOP_LEVEL_COMMA.split(nested[1]):
                if inner.startswith("convert-gpu-to-rocdl"):
                    passes.append(f"convert-math-to-rocdl{{chipset={chipset}}}")
                passes.append(f"gpu.module({inner})")
        return cls(tuple(_named(passes)))

    def run(
        self,
        module: Any,
        *,
        on_stage: Callable[[str], None],
        capture: Callable[[str, str], None] | None,
    ) -> None:
        """Run every stage on `module` in place.

        `on_stage` is told a stage's name before it runs; `capture` gets each name with the
        module's text after it, the traced module first. Raises `LoweringError`.
        """
        if capture is not None:
            capture(TRACED, str(module))
        for stage in self.stages:
            on_stage(stage.name)
            run_passes(module, stage)
            if capture is not None:
                capture(stage.name, str(module))


def run_passes(module: Any, stage: Stage) -> None:
    """Run one stage on `module`. Raises `LoweringError` with the compiler's message and place."""
    try:
        manager = PassManager.parse(f"builtin.module({stage.passes})", context=module.context)
        manager.run(module.operation)
    except ir.MLIRError as error:
        raise LoweringError.from_mlir(stage.name, error) from None
    except ValueError as error:
        raise LoweringError(stage.name, f"this MLIR has no such pass: {error}") from None


def parse_nothing() -> None:
    """Make a context with all its dialects, and let it go."""
    with ir.Context(), ir.Location.unknown():
        ir.Module.parse("module {}")


def binary_stage(name: str, format_: str, toolkit: str) -> Stage:
    """The final stage: `format_` is `fatbin` for a code object, `isa` for assembly text."""
    return Stage(name, f'{_TO_BINARY}{{format={format_} opts="" toolkit="{toolkit}"}}')


def _named(passes: list[str]) -> Iterable[Stage]:
    seen: dict[str, int] = {}
    for text in passes:
        bare = _ON_GPU_MODULE.sub(r"\1", text)
        name = bare.split("{", 1)[0].strip()
        seen[name] = seen.get(name, 0) + 1
        yield Stage(name if seen[name] == 1 else f"{name}-{seen[name]}", text)
