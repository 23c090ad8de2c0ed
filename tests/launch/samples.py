"""What the launch tests launch: one small launcher, its plan and its specialisations."""

from __future__ import annotations

import hashlib
from pathlib import Path

from runtime_loader.code_object import read_code_object
from runtime_loader.plan import Block, End, Launch, LaunchPlan, Op
from runtime_loader.signature import ScalarForm, StreamForm, TensorForm
from runtime_loader.specialisation import KernelEntry, Resources, Specialisation
from runtime_loader.target import Target

ROOT = Path(__file__).parents[2]
TARGETS = ("gfx942", "gfx942:xnack-", "gfx1100", "gfx1250")
# What an MI300 says of itself.
MI300 = "gfx942:sramecc+:xnack-"

# Kernels of which the numbers do not matter: `scale(x, n, factor)` and `pair(p, q)`.
KERNELS = """
    llvm.func @scale(%x: !llvm.ptr<1>, %n: i32, %factor: f32)
        attributes {gpu.kernel, rocdl.kernel, rocdl.flat_work_group_size = "1,256"} {
      %value = llvm.load %x : !llvm.ptr<1> -> f32
      %scaled = llvm.fmul %value, %factor : f32
      %place = llvm.getelementptr %x[%n] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
      llvm.store %scaled, %place : f32, !llvm.ptr<1>
      llvm.return
    }
    llvm.func @pair(%p: !llvm.ptr<1>, %q: !llvm.struct<packed (i32, i64)>)
        attributes {gpu.kernel, rocdl.kernel, rocdl.flat_work_group_size = "1,256"} {
      %n = llvm.extractvalue %q[1] : !llvm.struct<packed (i32, i64)>
      llvm.store %n, %p : i64, !llvm.ptr<1>
      llvm.return
    }
"""

RESOURCES = Resources(8, 0, 16, 0, 0, 0, 0, 64, (0, 0, 0), 256, 8, 8)


def scale_plan() -> LaunchPlan:
    """scale(x, x.shape[0], factor) on ceil(rows / parts) workgroups, then pair(x, {rows, rows})."""
    body = (
        Op("add", "i32", (1, 2)),  # 5
        Op("const", "i32", constant=1),  # 6
        Op("sub", "i32", (5, 6)),  # 7
        Op("sdiv", "i32", (7, 2)),  # 8
        Op("const", "i32", constant=64),  # 9
        Launch(0, (8, 6, 6), (9, 6, 6), 4, ((0,), (1,), (3,))),
        Op("sext", "i64", (1,)),  # 10
        Launch(1, (6, 6, 6), (6, 6, 6), 4, ((0,), (1, 10)), lds=9),
    )
    return LaunchPlan(("ptr", "i32", "i32", "f32", "ptr"), (Block((), body, End()),))


def specialisation(
    target: str,
    code: bytes,
    *,
    kernel: str = "scale",
    plan: LaunchPlan | None = None,
    **params: object,
) -> Specialisation:
    """A specialisation of the scale launcher: (x: (?, N) f32, parts, factor, stream)."""
    metadata = read_code_object(code).kernels
    entries = (
        KernelEntry("scale", metadata["scale"].kernarg, RESOURCES),
        KernelEntry("pair", metadata["pair"].kernarg, RESOURCES),
    )
    columns = params.get("N", 64)
    assert isinstance(columns, int)
    return Specialisation(
        kernel=kernel,
        target=Target.parse(target),
        params=params,
        signature=(
            TensorForm("x", "f32", (-1, columns), (columns, 1), 16),
            ScalarForm("parts", "i32"),
            ScalarForm("factor", "f32"),
            StreamForm("stream", implicit=True),
        ),
        plan=plan or scale_plan(),
        kernels=entries,
        code_object=hashlib.sha256(code).hexdigest(),
        launcher="samples:scale",
        hints={},
    )
