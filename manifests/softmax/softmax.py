"""Softmax over each row: out = exp(x - max(x)) / sum(exp(x - max(x)))."""

import flydsl.compiler as flyc
import flydsl.expr as fx
from elements import element_type
from rows import BLOCK_THREADS, ReductionSlots, block_max, block_sum, load_row, store_row


@fx.struct
class Scratch:
    """LDS of softmax_kernel."""

    maximum: ReductionSlots
    total: ReductionSlots


@flyc.kernel
def softmax_kernel(
    x: fx.Tensor,
    out: fx.Tensor,
    N: fx.Constexpr[int],
    dtype: fx.Constexpr[str],
):
    element = element_type(dtype)
    scratch = fx.SharedAllocator().allocate(Scratch).peek()
    row = fx.block_idx.x

    # exp(-inf) is 0: padding takes no part in the maximum or in the sum.
    values = load_row(fx.get_iter(x[row, None]), N, element, float("-inf"))
    maximum = block_max(values, scratch.maximum)
    powers = [fx.exp(chunk - maximum) for chunk in values]
    scale = 1.0 / block_sum(powers, scratch.total)
    store_row(fx.get_iter(out[row, None]), [chunk * scale for chunk in powers], N, element)


@flyc.jit
def softmax(
    x: fx.Tensor,
    out: fx.Tensor,
    rows: fx.Int32,
    N: fx.Constexpr[int],
    dtype: fx.Constexpr[str],
    stream: fx.Stream = fx.Stream(None),
):
    """Softmax of the first ``rows`` rows of ``x``; both tensors are (>= rows, N) of ``dtype``."""
    softmax_kernel(x, out, N, dtype).launch(
        grid=(rows, 1, 1), block=(BLOCK_THREADS, 1, 1), stream=stream
    )
