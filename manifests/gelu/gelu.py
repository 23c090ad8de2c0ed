"""GELU in its tanh form: out = x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))."""

import math

import flydsl.compiler as flyc
import flydsl.expr as fx
from elements import element_type, elements_per_access

BLOCK_THREADS = 256
CUBIC = 0.044715
SLOPE = math.sqrt(2.0 / math.pi)


def gelu_of(x):
    """GELU of an f32 scalar or vector."""
    return 0.5 * x * (1.0 + fx.tanh(SLOPE * (x + CUBIC * x * x * x)))


@flyc.kernel
def gelu_kernel(x: fx.Tensor, out: fx.Tensor, dtype: fx.Constexpr[str]):
    element = element_type(dtype)
    width = elements_per_access(element)
    packed = fx.Vector.make_type(width, element)
    n = fx.Int64(fx.size(out.shape).unpack())
    first = (fx.Int64(fx.block_idx.x) * BLOCK_THREADS + fx.Int64(fx.thread_idx.x)) * width
    source = fx.get_iter(x) + first
    target = fx.get_iter(out) + first

    if first + width <= n:
        values = fx.Vector(fx.ptr_load(source, packed), width, element).to(fx.Float32)
        fx.ptr_store(gelu_of(values).to(element), target)
    else:
        for i in fx.range_constexpr(width):
            if first + i < n:
                target[i] = gelu_of(source[i].to(fx.Float32)).to(element)


@flyc.jit
def gelu(
    x: fx.Tensor,
    out: fx.Tensor,
    dtype: fx.Constexpr[str],
    stream: fx.Stream = fx.Stream(None),
):
    """GELU of a contiguous 1-d tensor of ``dtype``, as long as ``out``."""
    per_block = BLOCK_THREADS * elements_per_access(element_type(dtype))
    n = fx.size(out.shape).unpack()
    blocks = (fx.Int64(n) + (per_block - 1)) // per_block
    gelu_kernel(x, out, dtype).launch(
        grid=(blocks, 1, 1), block=(BLOCK_THREADS, 1, 1), stream=stream
    )
