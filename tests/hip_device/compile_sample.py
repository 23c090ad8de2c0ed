"""Compiles a launcher of sample_kernels in a fresh process: its lowered module and code object.

    python -m tests.hip_device.compile_sample NAME DIRECTORY

writes DIRECTORY/lowered.mlir and DIRECTORY/kernel.hsaco for the target in FLYDSL_GPU_ARCH.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class CompiledSample:
    """A lowered launcher: the module's text, its host function and its code object."""

    mlir: str
    entry: str
    hsaco: bytes


def compile_sample(name: str, target: str, directory: Path) -> CompiledSample:
    """The launcher `name` of sample_kernels for a target such as "gfx942"."""
    environment = {
        **os.environ,
        "COMPILE_ONLY": "1",
        "FLYDSL_RUNTIME_ENABLE_CACHE": "0",
        "FLYDSL_GPU_ARCH": target,
        "ARCH": target,
        "PYTHONPATH": str(_ROOT),
    }
    command = [sys.executable, "-m", "tests.hip_device.compile_sample", name, str(directory)]
    subprocess.run(command, check=True, env=environment, cwd=_ROOT)
    return CompiledSample(
        mlir=(directory / "lowered.mlir").read_text(),
        entry=name,
        hsaco=(directory / "kernel.hsaco").read_bytes(),
    )


def _compile(name: str, directory: Path) -> None:
    import torch
    from flydsl._mlir.dialects import gpu
    from flydsl._mlir.passmanager import PassManager
    from flydsl.compiler import jit_function

    from mlir_passes.toolkit import assemble_toolkit
    from tests.hip_device import sample_kernels

    toolkit = assemble_toolkit(directory / "toolkit").directory
    to_binary = f'gpu-module-to-binary{{format=fatbin opts="" toolkit="{toolkit}"}}'

    def run_pipeline(module: Any, fragments: Any, **_options: Any) -> None:
        for fragment in fragments:
            text = to_binary if fragment.startswith("gpu-module-to-binary") else fragment
            PassManager.parse(f"builtin.module({text})").run(module.operation)
        (directory / "lowered.mlir").write_text(str(module))
        binary = next(op for op in module.body if op.operation.name == "gpu.binary")
        objects = binary.operation.attributes["objects"]
        (directory / "kernel.hsaco").write_bytes(gpu.ObjectAttr(objects[0]).object)

    jit_function._run_pipeline = run_pipeline
    launcher = getattr(sample_kernels, name)
    launcher(torch.zeros(8, 64), *sample_kernels.SAMPLE_SCALARS[name])


if __name__ == "__main__":
    _compile(sys.argv[1], Path(sys.argv[2]))
