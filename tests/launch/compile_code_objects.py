"""Compiles the kernels of the launch tests, in a process of its own: one code object a target.

    python -m tests.launch.compile_code_objects DIRECTORY TARGET...

writes DIRECTORY/TARGET.hsaco. The kernels are `scale(x, n, factor)` and `pair(p, q)`.
"""

from __future__ import annotations

import sys
from pathlib import Path

_MODULE = """
module attributes {{gpu.container_module}} {{
  gpu.module @kernels [#rocdl.target<chip = "{processor}">] {{
    llvm.module_flags [{flags}]
    llvm.func @scale(%x: !llvm.ptr<1>, %n: i32, %factor: f32)
        attributes {{gpu.kernel, rocdl.kernel, rocdl.flat_work_group_size = "1,256"}} {{
      %value = llvm.load %x : !llvm.ptr<1> -> f32
      %scaled = llvm.fmul %value, %factor : f32
      %place = llvm.getelementptr %x[%n] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
      llvm.store %scaled, %place : f32, !llvm.ptr<1>
      llvm.return
    }}
    llvm.func @pair(%p: !llvm.ptr<1>, %q: !llvm.struct<packed (i32, i64)>)
        attributes {{gpu.kernel, rocdl.kernel, rocdl.flat_work_group_size = "1,256"}} {{
      %n = llvm.extractvalue %q[1] : !llvm.struct<packed (i32, i64)>
      llvm.store %n, %p : i64, !llvm.ptr<1>
      llvm.return
    }}
  }}
}}
"""


def main(directory: Path, targets: list[str]) -> None:
    from flydsl._mlir import ir
    from flydsl._mlir.dialects import gpu
    from flydsl._mlir.passmanager import PassManager

    from mlir_passes.toolkit import assemble_toolkit

    toolkit = assemble_toolkit(directory / "toolkit").directory
    for target in targets:
        processor, *features = target.split(":")
        flags = ", ".join(
            f'#llvm.mlir.module_flag<error, "amdgpu.{feature[:-1]}", {value} : i32>'
            for feature in features
            for value in [int(feature.endswith("+"))]
        )
        with ir.Context():
            module = ir.Module.parse(_MODULE.format(processor=processor, flags=flags))
            passes = f'gpu-module-to-binary{{format=fatbin toolkit="{toolkit}"}}'
            PassManager.parse(f"builtin.module({passes})").run(module.operation)
            (binary,) = (op for op in module.body if op.operation.name == "gpu.binary")
            objects = binary.operation.attributes["objects"]
            path = directory / f"{target}.hsaco"
            path.write_bytes(gpu.ObjectAttr(objects[0]).object)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
