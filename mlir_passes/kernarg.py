"""The kernarg layout that launch operands imply, checked against the code object's own note.

A kernel takes the operands of `gpu.launch_func` in order. Sizes and alignments are those of LLVM's
AMDGPU data layout: natural for scalars, 1 for packed structs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlir_passes.errors import LoweringError, source_lines
from mlir_passes.launch_plan import host_launches, kernel_symbol, scalars_of, struct_fields
from runtime_loader.plan import TYPE_BITS
from runtime_loader.specialisation import KernelEntry

STAGE = "kernarg"


def check_kernarg(module: Any, kernels: Mapping[str, KernelEntry]) -> None:
    """Raise `LoweringError` unless every launch passes what its kernel's metadata note declares."""
    for launch in host_launches(module):
        kernel = kernels[kernel_symbol(launch)]
        found = [(param.offset, param.size) for param in kernel.kernarg.params]
        wanted = _layout(launch)
        if wanted != found:
            raise LoweringError(
                STAGE,
                f"{kernel.symbol} takes (offset, size) {found} by its metadata, but the launcher "
                f"passes {wanted}",
                source_lines(launch.operation.location),
            )


def _layout(launch: Any) -> list[tuple[int, int]]:
    """Offset and size of each operand of a launch, in bytes."""
    layout = []
    end = 0
    for operand in launch.opview.kernelOperands:
        size, alignment = _size_and_alignment(operand.type, launch)
        start = _align(end, alignment)
        end = start + size
        layout.append((start, size))
    return layout


def _size_and_alignment(type_: Any, launch: Any) -> tuple[int, int]:
    """Of one operand; the scalars in a struct must lie back to back, as plans pack them."""
    fields = struct_fields(type_)
    if fields is None:
        (scalar,) = scalars_of(type_, launch)
        size = max(TYPE_BITS[scalar], 8) // 8
        return size, size
    size, alignment = 0, 1
    for field_size, field_alignment in (_size_and_alignment(field, launch) for field in fields):
        if not type_.packed:
            alignment = max(alignment, field_alignment)
            if size % field_alignment:
                raise _padded(type_, launch)
        size += field_size
    if size % alignment:
        raise _padded(type_, launch)
    return size, alignment


def _padded(type_: Any, launch: Any) -> LoweringError:
    return LoweringError(
        STAGE,
        f"a kernel argument of type {type_} has padding inside, which launch plans do not place: "
        "pass its members as arguments of their own",
        source_lines(launch.operation.location),
    )


def _align(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
