"""A function of FlyDSL's math module, applied to every element of arrays."""

import flydsl.compiler as flyc
import flydsl.expr as fx

LANES = 256


@flyc.kernel
def math_kernel(
    x: fx.Pointer,
    y: fx.Pointer,
    out: fx.Pointer,
    function: fx.Constexpr[str],
    arity: fx.Constexpr[int],
):
    place = fx.Int64(fx.block_idx.x) * LANES + fx.Int64(fx.thread_idx.x)
    operands = [p[place] for p in (x, y)[:arity]]
    out[place] = getattr(fx, function)(*operands)


@flyc.jit
def apply(
    x: fx.Pointer,
    y: fx.Pointer,
    out: fx.Pointer,
    blocks: fx.Int32,
    function: fx.Constexpr[str],
    arity: fx.Constexpr[int],
):
    """Apply to ``blocks`` times 256 elements."""
    math_kernel(x, y, out, function, arity).launch(grid=(blocks, 1, 1), block=(LANES, 1, 1))
