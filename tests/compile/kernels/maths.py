"""Any function of FlyDSL's math module, applied to as many operands as it takes."""

import flydsl.compiler as flyc
import flydsl.expr as fx

LANES = 64


@flyc.kernel
def math_kernel(
    x: fx.Pointer, out: fx.Pointer, function: fx.Constexpr[str], arity: fx.Constexpr[int]
):
    lane = fx.Int64(fx.thread_idx.x)
    operands = [x[lane + LANES * place] for place in range(arity)]
    out[lane] = getattr(fx, function)(*operands)


@flyc.jit
def apply(
    x: fx.Pointer, out: fx.Pointer, function: fx.Constexpr[str], arity: fx.Constexpr[int] = 1
):
    math_kernel(x, out, function, arity).launch(grid=(1, 1, 1), block=(LANES, 1, 1))


@flyc.kernel
def vector_kernel(x: fx.Pointer, out: fx.Pointer, function: fx.Constexpr[str]):
    lane = fx.Int64(fx.thread_idx.x) * 4
    four = fx.Vector.make_type(4, fx.Float32)
    values = fx.Vector(fx.ptr_load(x + lane, four), 4, fx.Float32)
    fx.ptr_store(getattr(fx, function)(values), out + lane)


@flyc.jit
def apply_to_vectors(x: fx.Pointer, out: fx.Pointer, function: fx.Constexpr[str]):
    vector_kernel(x, out, function).launch(grid=(1, 1, 1), block=(LANES, 1, 1))


@flyc.kernel
def power_kernel(x: fx.Pointer, out: fx.Pointer, n: fx.Int32):
    lane = fx.Int64(fx.thread_idx.x)
    out[lane] = fx.fpowi(x[lane], n)


@flyc.jit
def integer_power(x: fx.Pointer, out: fx.Pointer, n: fx.Int32):
    power_kernel(x, out, n).launch(grid=(1, 1, 1), block=(LANES, 1, 1))
