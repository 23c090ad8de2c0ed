"""From a traced module to an artifact: run the pipeline, take the results, cross-check them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flydsl._mlir import ir
from flydsl._mlir._mlir_libs._mlirDialectsLLVM import translate_module_to_llvmir
from flydsl._mlir.dialects import gpu

from mlir_passes.errors import LoweringError
from mlir_passes.launch_plan import extract_launch_plan, launched_symbols
from mlir_passes.pipeline import ISA, LLVM_IR, Pipeline, binary_stage, run_passes
from mlir_passes.resources import kernel_resources
from mlir_passes.stderr_log import StderrLog
from mlir_passes.toolkit import Toolkit
from runtime_loader.code_object import CodeObject, CodeObjectError, read_code_object
from runtime_loader.plan import TYPE_BITS, LaunchPlan
from runtime_loader.specialisation import KernelEntry
from runtime_loader.target import Target

CODE_OBJECT = "code-object"
_KERNARG = "kernarg"


@dataclass(frozen=True)
class Artifact:
    """What one traced module became.

    `stages` are (name, text) pairs in order, empty unless captured; `host` is the lowered host
    module with the code object embedded, as FlyDSL's own launcher would run it; `seconds` per
    stage is for reports only.
    """

    code_object: bytes
    plan: LaunchPlan
    kernels: tuple[KernelEntry, ...]
    stages: tuple[tuple[str, str], ...]
    host: str
    seconds: dict[str, float]


def lower(
    module: Any,
    fragments: Sequence[str],
    *,
    target: Target,
    toolkit: Toolkit,
    log: StderrLog,
    capture: bool = False,
    on_stage: Callable[[str], None] = lambda name: None,
) -> Artifact:
    """Lower `module` (in place) through FlyDSL's pass list `fragments`.

    Raises `LoweringError` naming the stage for anything that does not end in a code object that
    matches its launch plan: a failing pass, an error on stderr, an undefined symbol, a kernarg
    layout that contradicts the metadata note.
    """
    stages: list[tuple[str, str]] = []
    clock = _Clock(on_stage)
    _drop_bare_targets(module)
    Pipeline.from_fragments(fragments, chipset=target.processor.split("-", 1)[0]).run(
        module,
        on_stage=clock.start,
        capture=(lambda name, text: stages.append((name, text))) if capture else None,
    )
    _fix_target_features(module, target)
    symbols = launched_symbols(module)
    if not symbols:
        raise LoweringError("launch-plan", "the launcher launches no kernel")
    plan = extract_launch_plan(module, symbols)

    directory = str(toolkit.directory)
    if capture:
        clock.start(LLVM_IR)
        stages.append((LLVM_IR, _llvm_ir(module)))
        clock.start(ISA)
        stages.append((ISA, _isa(module, directory)))
    clock.start(CODE_OBJECT)
    run_passes(module, binary_stage(CODE_OBJECT, "fatbin", directory))
    _check_log(log)
    code_object = _only_object(module)
    parsed = _parse(code_object, target)
    kernels = tuple(_kernel_entry(parsed, symbol) for symbol in symbols)
    _check_kernarg(plan, kernels)
    clock.stop()
    return Artifact(code_object, plan, kernels, tuple(stages), str(module), clock.seconds)


class _Clock:
    def __init__(self, on_stage: Callable[[str], None]) -> None:
        self.seconds: dict[str, float] = {}
        self._on_stage = on_stage
        self._running: tuple[str, float] | None = None

    def start(self, name: str) -> None:
        self.stop()
        self._on_stage(name)
        self._running = (name, time.perf_counter())

    def stop(self) -> None:
        if self._running is not None:
            name, began = self._running
            self.seconds[name] = time.perf_counter() - began


def _gpu_modules(module: Any) -> list[Any]:
    return [op.operation for op in module.body.operations if op.operation.name == "gpu.module"]


def _drop_bare_targets(module: Any) -> None:
    """FlyDSL 0.3 attaches a target without options beside the pipeline's, and both get compiled."""
    for gpu_module in _gpu_modules(module):
        if "targets" in gpu_module.attributes:
            del gpu_module.attributes["targets"]


def _fix_target_features(module: Any, target: Target) -> None:
    """Fix xnack and sramecc through module flags, the only way that LLVM 24 accepts."""
    if not target.features:
        return
    flags = ", ".join(
        f'#llvm.mlir.module_flag<error, "amdgpu.{name}", {int(on)} : i32>'
        for name, on in target.features
    )
    with module.context, ir.Location.unknown():
        parsed = ir.Module.parse(f"llvm.module_flags [{flags}]")
        for gpu_module in _gpu_modules(module):
            block = gpu_module.regions[0].blocks[0]
            parsed.body.operations[0].operation.clone(ip=ir.InsertionPoint.at_block_begin(block))


def _llvm_ir(module: Any) -> str:
    return "\n".join(translate_module_to_llvmir(op) for op in _gpu_modules(module))


def _isa(module: Any, toolkit: str) -> str:
    """The compiler's own final assembly, from a copy so that the module stays as it is."""
    copy = ir.Module.parse(module.operation.get_asm(enable_debug_info=True), module.context)
    run_passes(copy, binary_stage(ISA, "isa", toolkit))
    return "\n".join(data.decode() for data in _objects(copy))


def _objects(module: Any) -> list[bytes]:
    return [
        bytes(gpu.ObjectAttr(item).object)
        for op in module.body.operations
        if op.operation.name == "gpu.binary"
        for item in ir.ArrayAttr(op.attributes["objects"])
    ]


def _only_object(module: Any) -> bytes:
    objects = _objects(module)
    if len(objects) != 1:
        raise LoweringError(CODE_OBJECT, f"the pipeline emitted {len(objects)} objects, not one")
    return objects[0]


def _check_log(log: StderrLog) -> None:
    errors = log.errors()
    if errors:
        raise LoweringError(CODE_OBJECT, f"LLVM reported: {'; '.join(dict.fromkeys(errors))}")


def _parse(code_object: bytes, target: Target) -> CodeObject:
    try:
        parsed = read_code_object(code_object)
    except CodeObjectError as error:
        raise LoweringError(CODE_OBJECT, str(error)) from None
    if parsed.undefined:
        raise LoweringError(
            CODE_OBJECT,
            f"nothing defines {', '.join(parsed.undefined)}: an operation was lowered to a call "
            "that the device libraries do not have",
        )
    if parsed.target != target:
        raise LoweringError(
            CODE_OBJECT, f"built for {parsed.target} although {target} was asked for"
        )
    return parsed


def _kernel_entry(code_object: CodeObject, symbol: str) -> KernelEntry:
    kernel = code_object.kernels.get(symbol)
    if kernel is None:
        raise LoweringError(CODE_OBJECT, f"the launcher launches {symbol}, which was not emitted")
    resources = kernel_resources(kernel, code_object.target.processor)
    return KernelEntry(symbol, kernel.kernarg, resources)


def _check_kernarg(plan: LaunchPlan, kernels: tuple[KernelEntry, ...]) -> None:
    """The launch operands, laid out in order at natural alignment, must be the note's layout."""
    types = plan.value_types()
    for launch in plan.launches():
        kernel = kernels[launch.kernel]
        sizes = [[max(TYPE_BITS[types[v]], 8) // 8 for v in leaves] for leaves in launch.args]
        found = [(param.offset, param.size) for param in kernel.kernarg.params]
        wanted = []
        end = 0
        for leaves in sizes:
            # An aggregate is packed, so it may start anywhere.
            alignment = leaves[0] if len(leaves) == 1 else 1
            start = -(-end // alignment) * alignment
            end = start + sum(leaves)
            wanted.append((start, sum(leaves)))
        if wanted != found:
            raise LoweringError(
                _KERNARG,
                f"{kernel.symbol} takes (offset, size) {found} by its metadata, "
                f"but the launcher passes {wanted}",
            )
