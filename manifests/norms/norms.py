"""RMSNorm and LayerNorm over each row, computed in f32 whatever the element type.

rmsnorm:   out = x / sqrt(mean(x^2) + eps) * weight
layernorm: out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias
"""

import flydsl.compiler as flyc
import flydsl.expr as fx
from elements import element_type
from rows import BLOCK_THREADS, ReductionSlots, block_sum, load_row, repad_row, store_row


@fx.struct
class RmsScratch:
    """LDS of rmsnorm_kernel."""

    squares: ReductionSlots


@fx.struct
class LayerScratch:
    """LDS of layernorm_kernel."""

    values: ReductionSlots
    deviations: ReductionSlots


@flyc.kernel
def rmsnorm_kernel(
    x: fx.Tensor,
    weight: fx.Tensor,
    out: fx.Tensor,
    eps: fx.Float32,
    N: fx.Constexpr[int],
    dtype: fx.Constexpr[str],
):
    element = element_type(dtype)
    scratch = fx.SharedAllocator().allocate(RmsScratch).peek()
    row = fx.block_idx.x

    values = load_row(fx.get_iter(x[row, None]), N, element, 0.0)
    scales = load_row(fx.get_iter(weight), N, element, 0.0)
    squares = block_sum([value * value for value in values], scratch.squares)
    inverse = fx.rsqrt(squares * (1.0 / N) + eps)
    normed = [value * inverse * scale for value, scale in zip(values, scales, strict=True)]
    store_row(fx.get_iter(out[row, None]), normed, N, element)


@flyc.kernel
def layernorm_kernel(
    x: fx.Tensor,
    weight: fx.Tensor,
    bias: fx.Tensor,
    out: fx.Tensor,
    eps: fx.Float32,
    N: fx.Constexpr[int],
    dtype: fx.Constexpr[str],
):
    element = element_type(dtype)
    scratch = fx.SharedAllocator().allocate(LayerScratch).peek()
    row = fx.block_idx.x

    values = load_row(fx.get_iter(x[row, None]), N, element, 0.0)
    scales = load_row(fx.get_iter(weight), N, element, 0.0)
    shifts = load_row(fx.get_iter(bias), N, element, 0.0)
    mean = block_sum(values, scratch.values) * (1.0 / N)
    # Two passes over the registers: mean(x^2) - mean(x)^2 would cancel when the mean is large.
    centred = repad_row([value - mean for value in values], N, element, 0.0)
    squares = block_sum([value * value for value in centred], scratch.deviations)
    inverse = fx.rsqrt(squares * (1.0 / N) + eps)
    normed = [
        value * inverse * scale + shift
        for value, scale, shift in zip(centred, scales, shifts, strict=True)
    ]
    store_row(fx.get_iter(out[row, None]), normed, N, element)


@flyc.jit
def rmsnorm(
    x: fx.Tensor,
    weight: fx.Tensor,
    out: fx.Tensor,
    rows: fx.Int32,
    eps: fx.Float32,
    N: fx.Constexpr[int],
    dtype: fx.Constexpr[str],
    stream: fx.Stream = fx.Stream(None),
):
    """RMSNorm of the first ``rows`` rows of ``x``; x and out are (>= rows, N), weight is (N,)."""
    rmsnorm_kernel(x, weight, out, eps, N, dtype).launch(
        grid=(rows, 1, 1), block=(BLOCK_THREADS, 1, 1), stream=stream
    )


@flyc.jit
def layernorm(
    x: fx.Tensor,
    weight: fx.Tensor,
    bias: fx.Tensor,
    out: fx.Tensor,
    rows: fx.Int32,
    eps: fx.Float32,
    N: fx.Constexpr[int],
    dtype: fx.Constexpr[str],
    stream: fx.Stream = fx.Stream(None),
):
    """LayerNorm of the first ``rows`` rows of ``x``; weight and bias are (N,)."""
    layernorm_kernel(x, weight, bias, out, eps, N, dtype).launch(
        grid=(rows, 1, 1), block=(BLOCK_THREADS, 1, 1), stream=stream
    )
