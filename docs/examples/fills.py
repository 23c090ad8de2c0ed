"""Kernels of the documentation's examples: fill an array with one number."""

import flydsl.compiler as flyc
import flydsl.expr as fx


@flyc.kernel
def fill_kernel(out: fx.Pointer, value: fx.Float32, n: fx.Int32, block: fx.Constexpr[int]):
    i = fx.Int64(fx.block_idx.x) * block + fx.Int64(fx.thread_idx.x)
    if i < fx.Int64(n):
        out[i] = value


@flyc.jit
def fill(
    out: fx.Pointer,
    value: fx.Float32,
    n: fx.Int32,
    block: fx.Constexpr[int],
    stream: fx.Stream = fx.Stream(None),
):
    """Fill ``n`` floats, ``block`` workitems in a workgroup."""
    blocks = (fx.Int64(n) + (block - 1)) // block
    fill_kernel(out, value, n, block).launch(
        grid=(blocks, 1, 1), block=(block, 1, 1), stream=stream
    )
