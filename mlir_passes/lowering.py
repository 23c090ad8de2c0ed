"""From a traced module to an artifact: run the pipeline, take the results, cross-check them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from flydsl._mlir import ir
from flydsl._mlir._mlir_libs._mlirDialectsLLVM import translate_module_to_llvmir
from flydsl._mlir.dialects import gpu

from mlir_passes.device_code import gpu_modules, survey
from mlir_passes.errors import LoweringError, source_lines
from mlir_passes.external_llvm import ExternalLlvm, ExternalLlvmError, run_external
from mlir_passes.kernarg import check_kernarg
from mlir_passes.launch_plan import STAGE as LAUNCH_PLAN
from mlir_passes.launch_plan import (
    extract_launch_plan,
    host_launches,
    launched_symbols,
    numbered_ops,
)
from mlir_passes.pipeline import ISA, LLVM_IR, Pipeline, Stage, binary_stage, run_passes
from mlir_passes.places import Places
from mlir_passes.resources import kernel_resources
from mlir_passes.stderr_log import StderrLog
from mlir_passes.toolkit import Toolkit
from runtime_loader.code_object import CodeObject, CodeObjectError, read_code_object
from runtime_loader.plan import LaunchPlan
from runtime_loader.specialisation import KernelEntry
from runtime_loader.target import Target

CODE_OBJECT = "code-object"

# The largest flat workgroup of every processor (AMDGPUUsage, "amdgpu-flat-work-group-size"); LLVM
# takes a larger one without a word.
MAX_WORKGROUP = 1024


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
    llvm_options: Mapping[str, bool | int | str] = MappingProxyType({}),
    capture: bool = False,
    on_stage: Callable[[str], None] = lambda name: None,
    on_places: Callable[[Places], None] = lambda places: None,
) -> Artifact:
    """Lower `module` (in place) through FlyDSL's pass list `fragments`.

    Raises `LoweringError` naming the stage for anything that does not end in a code object that
    matches its launch plan: a failing pass, an operation that no pass lowers, an error on stderr,
    an undefined symbol, a launch that the target cannot do, a kernarg layout that contradicts the
    metadata note. When the toolkit has another LLVM, that one emits the code object, under
    `llvm_options` (FlyDSL's own has them set already). `on_places` is given what places an error of
    LLVM, before LLVM runs: LLVM may end the process.
    """
    stages: list[tuple[str, str]] = []
    clock = _Clock(on_stage)
    log.forget()
    _drop_bare_targets(module)
    Pipeline.from_fragments(fragments, chipset=target.processor.split("-", 1)[0]).run(
        module,
        on_stage=clock.start,
        capture=(lambda name, text: stages.append((name, text))) if capture else None,
    )
    places = survey(module)
    on_places(places)
    _fix_target_features(module, target)
    symbols = launched_symbols(module)
    if not symbols:
        raise LoweringError(LAUNCH_PLAN, "the launcher launches no kernel")
    plan = extract_launch_plan(module, symbols)
    _check_clusters(plan, module, target)

    def emit(stage: Stage, on: Any) -> None:
        if toolkit.llvm is None:
            run_passes(on, stage)
        else:
            _run_outside(on, stage, toolkit.llvm, llvm_options)

    directory = str(toolkit.directory)
    if capture:
        clock.start(LLVM_IR)
        stages.append((LLVM_IR, _llvm_ir(module)))
        clock.start(ISA)
        stages.append((ISA, _isa(module, directory, emit)))
    clock.start(CODE_OBJECT)
    emit(binary_stage(CODE_OBJECT, "fatbin", directory), module)
    _check_log(log, places)
    code_object = _only_object(module)
    parsed = checked_code_object(code_object, target, places)
    kernels = {symbol: kernel_entry(parsed, symbol, places) for symbol in symbols}
    check_kernarg(module, kernels)
    clock.stop()
    return Artifact(
        code_object, plan, tuple(kernels.values()), tuple(stages), str(module), clock.seconds
    )


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


def _drop_bare_targets(module: Any) -> None:
    """FlyDSL 0.3 attaches a target without options beside the pipeline's, and both get compiled."""
    for gpu_module in gpu_modules(module):
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
        for gpu_module in gpu_modules(module):
            block = gpu_module.regions[0].blocks[0]
            parsed.body.operations[0].operation.clone(ip=ir.InsertionPoint.at_block_begin(block))


def _llvm_ir(module: Any) -> str:
    return "\n".join(translate_module_to_llvmir(op) for op in gpu_modules(module))


def _run_outside(
    module: Any, stage: Stage, llvm: ExternalLlvm, options: Mapping[str, bool | int | str]
) -> None:
    """Replace each `gpu.module` by the `gpu.binary` that another LLVM makes of it."""
    for gpu_module in gpu_modules(module):
        if "offloadingHandler" in gpu_module.attributes:
            raise LoweringError(
                stage.name,
                "a kernel that is linked with external device code is compiled by FlyDSL's own "
                "LLVM only: its bitcode is for that one. Leave out llvm (toolchain, --llvm)",
            )
        text = f"module attributes {{gpu.container_module}} {{\n{gpu_module}\n}}\n"
        try:
            after = run_external(llvm, text, f"builtin.module({stage.passes})", options)
        except ExternalLlvmError as error:
            raise LoweringError(stage.name, str(error)) from None
        with module.context, ir.Location.unknown():
            (binary,) = ir.Module.parse(after).body.operations
            binary.operation.clone(ip=ir.InsertionPoint(gpu_module))
        gpu_module.erase()


def _isa(module: Any, toolkit: str, emit: Callable[[Stage, Any], None]) -> str:
    """The compiler's own final assembly, from a copy so that the module stays as it is."""
    copy = ir.Module.parse(module.operation.get_asm(enable_debug_info=True), module.context)
    emit(binary_stage(ISA, "isa", toolkit), copy)
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


def _check_clusters(plan: LaunchPlan, module: Any, target: Target) -> None:
    """Clusters of more than one workgroup exist on gfx1250 only; FlyDSL compiles them anyway."""
    if target.processor == "gfx1250":
        return
    ones = {
        number
        for number, op in numbered_ops(plan).items()
        if op.name == "const" and op.constant == 1
    }
    for launch, op in zip(plan.launches(), host_launches(module), strict=True):
        if launch.cluster is not None and not ones.issuperset(launch.cluster):
            raise LoweringError(
                LAUNCH_PLAN,
                f"the launcher launches clusters of workgroups, which {target} does not have",
                source_lines(op.operation.location),
            )


def _check_log(log: StderrLog, places: Places) -> None:
    errors = "; ".join(dict.fromkeys(log.errors()))
    if errors:
        raise LoweringError(CODE_OBJECT, f"LLVM reported: {errors}", places.of(errors))


def checked_code_object(code_object: bytes, target: Target, places: Places) -> CodeObject:
    try:
        parsed = read_code_object(code_object)
    except CodeObjectError as error:
        raise LoweringError(CODE_OBJECT, str(error)) from None
    if parsed.undefined:
        names = ", ".join(parsed.undefined)
        raise LoweringError(
            CODE_OBJECT,
            f"nothing defines {names}: it is called, and the device libraries do not have it",
            places.of(names),
        )
    if parsed.target != target:
        raise LoweringError(
            CODE_OBJECT, f"built for {parsed.target} although {target} was asked for"
        )
    return parsed


def kernel_entry(code_object: CodeObject, symbol: str, places: Places) -> KernelEntry:
    kernel = code_object.kernels.get(symbol)
    if kernel is None:
        raise LoweringError(CODE_OBJECT, f"the launcher launches {symbol}, which was not emitted")
    resources = kernel_resources(kernel, code_object.target.processor)
    workitems = math.prod(resources.workgroup)
    if workitems > MAX_WORKGROUP:
        raise LoweringError(
            CODE_OBJECT,
            f"{symbol} is launched with {workitems} workitems in a workgroup; the hardware has at "
            f"most {MAX_WORKGROUP}",
            places.of(symbol),
        )
    return KernelEntry(symbol, kernel.kernarg, resources)
