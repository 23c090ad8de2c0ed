"""Vector addition, out[i] = x[i] + y[i], for any length."""

import flydsl.compiler as flyc
import flydsl.expr as fx
from elements import element_type, elements_per_access

BLOCK_THREADS = 256


@flyc.kernel
def add_kernel(
    x: fx.Pointer,
    y: fx.Pointer,
    out: fx.Pointer,
    n: fx.Int32,
    dtype: fx.Constexpr[str],
):
    element = element_type(dtype)
    width = elements_per_access(element)
    packed = fx.Vector.make_type(width, element)
    # 64-bit, so that the last block of an array close to 2**31 elements does not wrap.
    first = (fx.Int64(fx.block_idx.x) * BLOCK_THREADS + fx.Int64(fx.thread_idx.x)) * width

    if first + width <= fx.Int64(n):
        a = fx.Vector(fx.ptr_load(x + first, packed), width, element)
        b = fx.Vector(fx.ptr_load(y + first, packed), width, element)
        total = (a.to(fx.Float32) + b.to(fx.Float32)).to(element)
        fx.ptr_store(total, out + first)
    else:
        for i in fx.range_constexpr(width):
            if first + i < fx.Int64(n):
                tail = x[first + i].to(fx.Float32) + y[first + i].to(fx.Float32)
                out[first + i] = tail.to(element)


@flyc.jit
def vector_add_pointers(
    x: fx.Pointer,
    y: fx.Pointer,
    out: fx.Pointer,
    n: fx.Int32,
    dtype: fx.Constexpr[str],
    stream: fx.Stream = fx.Stream(None),
):
    """Add ``n`` elements of type ``dtype``; the three pointers are 16-byte aligned."""
    per_block = BLOCK_THREADS * elements_per_access(element_type(dtype))
    blocks = (fx.Int64(n) + (per_block - 1)) // per_block
    add_kernel(x, y, out, n, dtype).launch(
        grid=(blocks, 1, 1), block=(BLOCK_THREADS, 1, 1), stream=stream
    )


@flyc.jit
def vector_add(
    x: fx.Tensor,
    y: fx.Tensor,
    out: fx.Tensor,
    dtype: fx.Constexpr[str],
    stream: fx.Stream = fx.Stream(None),
):
    """Add two contiguous 1-d tensors of ``dtype``, both as long as ``out``."""
    n = fx.size(out.shape).unpack()
    vector_add_pointers(fx.get_iter(x), fx.get_iter(y), fx.get_iter(out), n, dtype, stream)
