"""Launchers with every form of argument; their kernels take them as they are."""

import flydsl.compiler as flyc
import flydsl.expr as fx

THREADS = 64


@fx.struct
class Inner:
    offset: fx.Int64
    flag: fx.Boolean


@fx.struct
class Outer:
    count: fx.Int8
    inner: Inner
    scale: fx.Float32


@flyc.kernel
def tensor_kernel(x: fx.Tensor, out: fx.Pointer):
    lane = fx.Int64(fx.thread_idx.x)
    out[lane] = fx.Int32(fx.size(x.shape).unpack()) + fx.Int32(fx.size(x.stride).unpack())


@flyc.jit
def one_tensor(x: fx.Tensor, out: fx.Pointer):
    tensor_kernel(x, out).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


@flyc.kernel
def two_tensors_kernel(x: fx.Tensor, y: fx.Tensor, out: fx.Pointer):
    lane = fx.Int64(fx.thread_idx.x)
    out[lane] = fx.Int32(fx.size(x.shape).unpack()) + fx.Int32(fx.size(y.shape).unpack())


@flyc.jit
def two_tensors(x: fx.Tensor, y: fx.Tensor, out: fx.Pointer):
    two_tensors_kernel(x, y, out).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


@flyc.kernel
def scalars_kernel(out: fx.Pointer, a, b, c, d):
    lane = fx.Int64(fx.thread_idx.x)
    out[lane] = fx.Int32(a) + fx.Int32(b) + fx.Int32(c) + fx.Int32(d)


@flyc.jit
def four_scalars(out: fx.Pointer, a, b, c, d):
    scalars_kernel(out, a, b, c, d).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


@flyc.kernel
def struct_kernel(s: Outer, out: fx.Pointer):
    lane = fx.Int64(fx.thread_idx.x)
    out[lane] = fx.Int32(s.inner.offset) + fx.Int32(s.scale)


@flyc.jit
def nested_struct(s: Outer, out: fx.Pointer):
    struct_kernel(s, out).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


@flyc.kernel
def plain_kernel(out: fx.Pointer, n: fx.Int32):
    out[fx.Int64(fx.thread_idx.x)] = n


@flyc.jit
def stream_in_the_middle(out: fx.Pointer, stream: fx.Stream, n: fx.Int32):
    plain_kernel(out, n).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), stream=stream)


@flyc.jit
def no_stream(out: fx.Pointer, n: fx.Int32):
    plain_kernel(out, n).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


@flyc.jit
def scalar_called_stream(out: fx.Pointer, stream: fx.Int32):
    plain_kernel(out, stream).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


@flyc.jit
def compile_time(out: fx.Pointer, n: fx.Int32, width: fx.Constexpr[int], tag: fx.Constexpr = 7):
    plain_kernel(out, n * width + tag).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


@flyc.jit
def element_size(out: fx.Pointer, dtype: fx.Constexpr):
    plain_kernel(out, fx.Int32(dtype.width)).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))
