"""Reads a module that is written as MLIR, and checks that it has what lowering needs."""

from __future__ import annotations

from typing import Any

from flydsl._mlir import ir

from mlir_passes.errors import LoweringError
from mlir_passes.places import SourceLine

STAGE = "parse"
_CONTAINER = "gpu.container_module"


def read_module(data: bytes, name: str, file: str) -> Any:
    """Parse the text (or bytecode) of a module; `name` is what messages call `file`.

    The module has one host function that launches kernels of its `gpu.module`s; the attribute
    `gpu.container_module` is added if it is missing. Raises `LoweringError` with the line.
    """
    with ir.Context(), ir.Location.unknown():
        try:
            module = ir.Module.parse(data if data.startswith(b"ML\xefR") else data.decode())
        except UnicodeDecodeError:
            raise LoweringError(STAGE, f"{name} is neither MLIR text nor bytecode") from None
        except ir.MLIRError as error:
            raise _refused(error, name, file) from None
        module.operation.attributes[_CONTAINER] = ir.UnitAttr.get()
    names = [op.operation.name for op in module.body.operations]
    hosts = sum(
        name in ("func.func", "llvm.func") and bool(len(op.operation.regions[0].blocks))
        for name, op in zip(names, module.body.operations, strict=True)
    )
    if "gpu.module" not in names or hosts != 1:
        raise LoweringError(
            STAGE,
            f"{name} has {names.count('gpu.module')} gpu.module and {hosts} host functions; "
            "a module has kernels in gpu.module, and one host function that launches them",
        )
    return module


def _refused(error: ir.MLIRError, name: str, file: str) -> LoweringError:
    for diagnostic in error.error_diagnostics:
        location = diagnostic.location
        text = str(location)
        line = text.rpartition(":")[0].rpartition(":")[2]
        where = (SourceLine(file, int(line)),) if line.isdigit() else ()
        return LoweringError(STAGE, f"{name}: {diagnostic.message}", where)
    return LoweringError(STAGE, f"{name}: {error}")
