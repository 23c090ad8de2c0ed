"""Kernels that trace and lower, and that LLVM or the linker then refuses on some target."""

import sys

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl._mlir.dialects import llvm
from flydsl.expr.extern import ffi

LANES = 64


@flyc.kernel
def matrix_kernel(x: fx.Pointer, out: fx.Pointer):
    lane = fx.Int64(fx.thread_idx.x) * 4
    four = fx.Vector.make_type(4, fx.Float16)
    a = fx.ptr_load(x + lane, four)
    zero = fx.Vector.filled(4, 0.0, fx.Float32)
    result = fx.rocdl.mfma_f32_16x16x16f16(zero.type, [a, a, zero.ir_value(), 0, 0, 0])
    fx.ptr_store(fx.Vector(result, 4, fx.Float32).to(fx.Float16), out + lane)


@flyc.jit
def cdna_matrix(x: fx.Pointer, out: fx.Pointer):
    matrix_kernel(x, out).launch(grid=(1, 1, 1), block=(LANES, 1, 1))


@flyc.kernel
def large_kernel(out: fx.Pointer, size: fx.Constexpr[int]):
    @fx.struct
    class Scratch:
        values: fx.Array[fx.Int32, size]

    scratch = fx.SharedAllocator().allocate(Scratch).peek()
    lane = fx.Int32(fx.thread_idx.x)
    scratch.values[lane] = lane
    fx.gpu.barrier()
    out[fx.Int64(lane)] = scratch.values[lane ^ 1]


@flyc.jit
def large_lds(out: fx.Pointer, size: fx.Constexpr[int]):
    large_kernel(out, size).launch(grid=(1, 1, 1), block=(LANES, 1, 1))


missing = ffi("nobody_defines_this", ["int32"], "int32")


@flyc.kernel
def calling_kernel(out: fx.Pointer):
    lane = fx.Int32(fx.thread_idx.x)
    out[fx.Int64(lane)] = fx.Int32(missing(lane))


@flyc.jit
def undefined_symbol(out: fx.Pointer):
    calling_kernel(out).launch(grid=(1, 1, 1), block=(LANES, 1, 1))


@flyc.kernel
def intrinsic_kernel(x: fx.Pointer, out: fx.Pointer, intrinsic: fx.Constexpr[str]):
    lane = fx.Int64(fx.thread_idx.x)
    value = x[lane].ir_value()
    result = llvm.call_intrinsic(value.type, intrinsic, [value], [], [])
    out[lane] = x.element_type(result)


@flyc.jit
def intrinsic(x: fx.Pointer, out: fx.Pointer, intrinsic: fx.Constexpr[str]):
    intrinsic_kernel(x, out, intrinsic).launch(grid=(1, 1, 1), block=(LANES, 1, 1))


@flyc.kernel
def plain_kernel(out: fx.Pointer):
    out[fx.Int64(fx.thread_idx.x)] = fx.Int32(1)


@flyc.jit
def large_block(out: fx.Pointer):
    plain_kernel(out).launch(grid=(1, 1, 1), block=(4096, 1, 1))


@flyc.jit
def prints_errors(out: fx.Pointer):
    print("error: printed by the launcher")
    print("error: printed by the launcher", file=sys.stderr)
    plain_kernel(out).launch(grid=(1, 1, 1), block=(LANES, 1, 1))
