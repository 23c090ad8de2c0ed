"""Turns on LLVM's kernel-resource-usage remarks, which go to the file that REMARKS names."""

import ctypes
import os
from pathlib import Path

import flydsl._mlir
import flydsl.compiler as flyc
import flydsl.compiler.backends.rocm as rocm
import flydsl.expr as fx


def _turn_on() -> None:
    # Through the C function: the Python binding cannot read the old value of this option.
    (library,) = Path(flydsl._mlir.__path__[0], "_mlir_libs").glob("libFlyPythonCAPI.so*")
    option, value = b"pass-remarks-analysis", b"kernel-resource-usage"
    status = ctypes.CDLL(str(library)).flydslSetLLVMOptionStr(option, value, None)
    assert status == 0
    if "WAVE64" in os.environ:
        # FlyDSL itself compiles for 32 lanes wherever the hardware has them.
        parts = rocm.RocmBackend._pipeline_parts

        def wide(self, **options):
            passes, last = parts(self, **options)
            return [p.replace("features= ", "features=+wavefrontsize64 ") for p in passes], last

        rocm.RocmBackend._pipeline_parts = wide
    os.dup2(os.open(os.environ["REMARKS"], os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)


_turn_on()


@flyc.kernel
def pressure_kernel(x: fx.Pointer, out: fx.Pointer, live: fx.Constexpr[int]):
    lane = fx.Int64(fx.thread_idx.x)
    values = [x[lane + 64 * i] for i in fx.range_constexpr(live)]
    fx.gpu.barrier()
    for i in fx.range_constexpr(live):
        out[lane + 64 * i] = values[i] * values[live - 1 - i]


@flyc.jit
def pressure(
    x: fx.Pointer, out: fx.Pointer, live: fx.Constexpr[int], threads: fx.Constexpr[int] = 256
):
    pressure_kernel(x, out, live).launch(grid=(1, 1, 1), block=(threads, 1, 1))


@flyc.kernel
def sharing_kernel(out: fx.Pointer, size: fx.Constexpr[int]):
    @fx.struct
    class Scratch:
        values: fx.Array[fx.Int32, size]

    scratch = fx.SharedAllocator().allocate(Scratch).peek()
    lane = fx.Int32(fx.thread_idx.x)
    scratch.values[lane] = lane
    fx.gpu.barrier()
    out[fx.Int64(lane)] = fx.Float32(scratch.values[lane ^ 1])


@flyc.jit
def sharing(out: fx.Pointer, size: fx.Constexpr[int], threads: fx.Constexpr[int]):
    """`size` 32-bit words of LDS."""
    sharing_kernel(out, size).launch(grid=(1, 1, 1), block=(threads, 1, 1))
