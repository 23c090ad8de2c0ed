"""Compiles modules of MLIR, in a process of its own: one code object for each target.

    python -m tests.hip_device.compile_mlir FILE DIRECTORY PROCESSOR...

FILE has the operations of a `gpu.module`; DIRECTORY/PROCESSOR.hsaco is written.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_MODULE = """
module attributes {{gpu.container_module}} {{
  gpu.module @kernels [#rocdl.target<chip = "{processor}">] {{
{body}
  }}
}}
"""


def compile_mlir(body: str, processors: Sequence[str], directory: Path) -> dict[str, bytes]:
    """The code object of each processor."""
    source = directory / "body.mlir"
    source.write_text(body)
    command = [sys.executable, "-m", "tests.hip_device.compile_mlir", source, directory]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    subprocess.run([*command, *processors], check=True, env=environment, cwd=_ROOT)
    return {name: (directory / f"{name}.hsaco").read_bytes() for name in processors}


def main(source: Path, directory: Path, processors: list[str]) -> None:
    from flydsl._mlir import ir
    from flydsl._mlir.dialects import gpu
    from flydsl._mlir.passmanager import PassManager

    from mlir_passes.toolkit import assemble_toolkit

    toolkit = assemble_toolkit(directory / "toolkit").directory
    for processor in processors:
        with ir.Context():
            module = ir.Module.parse(_MODULE.format(processor=processor, body=source.read_text()))
            passes = f'gpu-module-to-binary{{format=fatbin toolkit="{toolkit}"}}'
            PassManager.parse(f"builtin.module({passes})").run(module.operation)
            (binary,) = (op for op in module.body if op.operation.name == "gpu.binary")
            objects = binary.operation.attributes["objects"]
            path = directory / f"{processor}.hsaco"
            path.write_bytes(gpu.ObjectAttr(objects[0]).object)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
