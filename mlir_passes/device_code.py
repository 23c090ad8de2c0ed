"""The device code that the pipeline leaves: all of it lowered, and where each part comes from."""

from __future__ import annotations

from typing import Any

from flydsl._mlir import ir

from mlir_passes.errors import LoweringError, source_lines
from mlir_passes.pipeline import LLVM_IR
from mlir_passes.places import Places, Trail

# The dialects that translate to LLVM IR; the translator crashes on an operation of another.
_TRANSLATED = ("llvm", "rocdl")


def gpu_modules(module: Any) -> list[Any]:
    """The `gpu.module` operations of a module."""
    return [op.operation for op in module.body.operations if op.operation.name == "gpu.module"]


def survey(module: Any) -> Places:
    """Where kernels, calls and intrinsics of a lowered module come from.

    Raises `LoweringError`, with the source line, for an operation that is still unlowered.
    """
    kernels: dict[str, Trail] = {}
    uses: dict[str, Trail] = {}
    unlowered: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name.split(".", 1)[0] not in _TRANSLATED and op.name != "gpu.module":
            unlowered.append(op)
            return ir.WalkResult.INTERRUPT
        if op.name == "llvm.func":
            if "rocdl.kernel" in op.attributes:
                kernels[ir.StringAttr(op.attributes["sym_name"]).value] = source_lines(op.location)
        else:
            name = _llvm_name(op)
            if name is not None and name not in uses:
                uses[name] = source_lines(op.location)
        return ir.WalkResult.ADVANCE

    for gpu_module in gpu_modules(module):
        gpu_module.walk(visit)
    for op in unlowered:
        raise LoweringError(
            LLVM_IR,
            f"no pass lowers {op.name} here: neither LLVM nor the device libraries have it. "
            "Write it with other operations",
            source_lines(op.location),
        )
    return Places(kernels, uses)


def _llvm_name(op: Any) -> str | None:
    """What LLVM calls what `op` becomes, if its messages could name it."""
    if op.name == "llvm.call":
        if "callee" not in op.attributes:
            return None
        return str(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)
    if op.name == "llvm.call_intrinsic":
        return str(ir.StringAttr(op.attributes["intrin"]).value)
    if op.name.startswith("llvm.intr."):
        return f"llvm.{op.name.removeprefix('llvm.intr.')}"
    if op.name.startswith("rocdl."):
        return f"llvm.amdgcn.{op.name.removeprefix('rocdl.')}"
    return None
