"""What the command's tests work on: a made-up bundle, and a small project with a kernel."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from flyc_cli.bundle_writer import BundleContents, write_bundle
from runtime_loader.plan import Block, Branch, End, Launch, LaunchPlan, Op
from runtime_loader.records import replace
from runtime_loader.signature import PointerForm, ScalarForm, StreamForm, TensorForm
from runtime_loader.specialisation import (
    KernargLayout,
    KernelEntry,
    KernelParam,
    Resources,
    Specialisation,
)
from runtime_loader.target import Target

MANIFEST = """\
flyc: 1
name: samples
targets: [gfx942, gfx1201]
kernels:
  - name: scale
    launcher: kernels:scale
    constexpr: {N: [64, 128]}
    args:
      x: {pointer: f32, align: 16}
      factor: f32
"""

KERNELS = '''\
"""Kernels of the command's tests."""

import os

import flydsl.compiler as flyc
import flydsl.expr as fx


@flyc.kernel
def scale_kernel(x: fx.Pointer, factor: fx.Float32):
    at = fx.Int64(fx.block_idx.x) * 64 + fx.Int64(fx.thread_idx.x)
    x[at] = x[at] * factor


@flyc.jit
def scale(x: fx.Pointer, factor: fx.Float32, N: fx.Constexpr[int]):
    scale_kernel(x, factor).launch(grid=(1, 1, 1), block=(N, 1, 1))


@flyc.jit
def raises(x: fx.Pointer, factor: fx.Float32, N: fx.Constexpr[int]):
    raise ValueError(f"no tiling for N={N}")


@flyc.jit
def aborts(x: fx.Pointer, factor: fx.Float32, N: fx.Constexpr[int]):
    os.abort()


@flyc.jit
def too_large(x: fx.Pointer, factor: fx.Float32, N: fx.Constexpr[int]):
    scale_kernel(x, factor).launch(grid=(1, 1, 1), block=(4096, 1, 1))


WIDTHS = (64, 128)
'''

RESOURCES = Resources(
    vgprs=24,
    agprs=4,
    sgprs=18,
    vgpr_spills=0,
    sgpr_spills=0,
    lds=512,
    scratch=0,
    wavefront=64,
    workgroup=(256, 1, 1),
    max_workgroup=256,
    allocated_vgprs=32,
    waves_per_simd=8,
)

SIGNATURE = (
    TensorForm("x", "bf16", (-1, 4096), (-8, 1), 16),
    PointerForm("out", "f32", 4),
    ScalarForm("rows", "i32"),
    StreamForm("stream", implicit=True),
)

# Inputs: 0 x, 1 x.shape[0], 2 x.stride[0], 3 out, 4 rows, 5 stream.
PLAN = LaunchPlan(
    inputs=("ptr", "i32", "i64", "ptr", "i32", "ptr"),
    blocks=(
        Block(
            params=(),
            body=(
                Op("const", "i32", constant=0xFFFFFFFF),  # 6
                Op("add", "i32", (4, 6)),  # 7
                Op("icmp.slt", "i1", (7, 4)),  # 8
            ),
            end=End(8, (Branch(1, (7,)), Branch(2))),
        ),
        Block(
            params=("i32",),  # 9
            body=(
                Op("sext", "i64", (9,)),  # 10
                Op("const", "i32", constant=256),  # 11
                Op("const", "i32", constant=1),  # 12
                Launch(0, (9, 12, 12), (11, 12, 12), 5, ((0,), (1, 2), (3,)), lds=11),
            ),
            end=End(None, (Branch(2),)),
        ),
        Block(params=(), body=(), end=End()),
    ),
)

LAYOUT = KernargLayout(
    (
        KernelParam(0, 8, "global_buffer"),
        KernelParam(8, 12, "by_value"),
        KernelParam(24, 8, "global_buffer"),
    ),
    32,
    288,
)

STAGES = (
    ("traced", "module {\n  old\n}\n"),
    ("canonicalize", "module {\n  new\n}\n"),
    ("cse", "module {\n  new\n}\n"),
    ("isa", "\ts_endpgm\n"),
)


def specialisation(kernel: str, target: str, **params: Any) -> tuple[Specialisation, bytes]:
    """A specialisation and the bytes that stand for its code object."""
    code = f"{kernel} {target} {params}".encode() * 20
    spec = Specialisation(
        kernel=kernel,
        target=Target.parse(target),
        params=params,
        signature=SIGNATURE,
        plan=PLAN,
        kernels=(KernelEntry(f"{kernel}_0", LAYOUT, RESOURCES),),
        code_object=hashlib.sha256(code).hexdigest(),
        launcher=f"norms:{kernel}",
        hints={"waves_per_eu": 2},
    )
    return spec, code


def made_up_bundle(directory: Path, *, stages: bool) -> Path:
    """Two kernels: rmsnorm swept over N and dtype for two targets, and one gelu."""
    made = [
        specialisation("rmsnorm", target, N=n, dtype=dtype)
        for n in (2048, 4096)
        for dtype in ("bf16", "f16")
        for target in ("gfx942", "gfx950")
    ]
    made.append(specialisation("gelu", "gfx942:xnack-", fast=True, eps=0.5))
    spilling, code = specialisation("gelu", "gfx942", fast=True, eps=0.5)
    resources = replace(RESOURCES, vgpr_spills=3, sgpr_spills=1, workgroup=(0, 0, 0))
    entry = replace(spilling.kernels[0], resources=resources)
    made.append((replace(spilling, kernels=(entry, entry)), code))
    specs = [spec for spec, _ in made]
    contents = BundleContents(
        name="made-up",
        meta={"provenance": {"flyc": "0", "toolkit": {"linker": "a linker"}}},
        specialisations=specs,
        code_objects={spec.code_object: code for spec, code in made},
        stages={spec.key(): STAGES for spec in specs} if stages else {},
        parameter_order={"rmsnorm": ["dtype", "N"]},
    )
    return write_bundle(directory, contents).path
