"""Turns docs/examples/device_library.mlir into the bitcode file that externs.py links with.

Run as `python -m tests.compile.device_library TARGET FILE`: MLIR in a process of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

from flydsl._mlir import ir
from flydsl._mlir.dialects import gpu
from flydsl._mlir.passmanager import PassManager

SOURCE = Path(__file__).parents[2] / "docs" / "examples" / "device_library.mlir"


def main() -> None:
    """Write the bitcode of the library for a processor."""
    processor, file = sys.argv[1:]
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(SOURCE.read_text())
        passes = (
            f"rocdl-attach-target{{chip={processor} O=2 abi=600}}",
            "gpu-module-to-binary{format=llvm}",
        )
        PassManager.parse(f"builtin.module({','.join(passes)})").run(module.operation)
        (binary,) = module.body.operations
        (item,) = ir.ArrayAttr(binary.operation.attributes["objects"])
        Path(file).write_bytes(bytes(gpu.ObjectAttr(item).object))


if __name__ == "__main__":
    main()
