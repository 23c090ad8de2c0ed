"""Compiles modules of MLIR, in a process of its own: one code object for each target.

    python -m tests.hip_device.compile_mlir FILE DIRECTORY TARGET...

FILE has the operations of a `gpu.module`; DIRECTORY/TARGET.hsaco is written.
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
    llvm.module_flags [{flags}]
{body}
  }}
}}
"""


def compile_mlir(body: str, targets: Sequence[str], directory: Path) -> dict[str, bytes]:
    """The code object for each target, such as "gfx942:xnack-"."""
    source = directory / "body.mlir"
    source.write_text(body)
    command = [sys.executable, "-m", "tests.hip_device.compile_mlir", source, directory]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    subprocess.run([*command, *targets], check=True, env=environment, cwd=_ROOT)
    return {name: (directory / f"{name}.hsaco").read_bytes() for name in targets}


def main(source: Path, directory: Path, targets: list[str]) -> None:
    from flydsl._mlir import ir
    from flydsl._mlir.dialects import gpu
    from flydsl._mlir.passmanager import PassManager

    from mlir_passes.toolkit import assemble_toolkit

    toolkit = assemble_toolkit(directory / "toolkit").directory
    passes = f'builtin.module(gpu-module-to-binary{{format=fatbin toolkit="{toolkit}"}})'
    body = source.read_text()
    for target in targets:
        processor, *features = target.split(":")
        flags = ", ".join(
            f'#llvm.mlir.module_flag<error, "amdgpu.{feature[:-1]}", {value} : i32>'
            for feature in features
            for value in [int(feature.endswith("+"))]
        )
        with ir.Context():
            text = _MODULE.format(processor=processor, flags=flags, body=body)
            module = ir.Module.parse(text)
            PassManager.parse(passes).run(module.operation)
            (binary,) = (op for op in module.body if op.operation.name == "gpu.binary")
            objects = binary.operation.attributes["objects"]
            (directory / f"{target}.hsaco").write_bytes(gpu.ObjectAttr(objects[0]).object)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
