"""Kernels behind functions, partials, objects and tuners, for the examples of docs/manifest.md."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.compiler.kernel_function import CompilationContext

BLOCKS = (64, 128)


@flyc.kernel
def scale_kernel(x: fx.Pointer, factor: fx.Float32, block: fx.Constexpr[int]):
    i = fx.block_idx.x * block + fx.thread_idx.x
    x[i] = x[i] * factor


@flyc.jit
def scale(
    x: fx.Pointer,
    factor: fx.Float32,
    n: fx.Int32,
    block: fx.Constexpr[int],
    stream: fx.Stream,
):
    scale_kernel(x, factor, block).launch(
        grid=(n // block, 1, 1), block=(block, 1, 1), stream=stream
    )


wide_scale = functools.partial(scale, block=256)


def hinted_scale(*args, **kwargs):
    with CompilationContext.compile_hints({"waves_per_eu": 2}):
        return scale(*args, **kwargs)


def compiled_scale(x, factor, n, stream):
    compiled = flyc.compile[{"fast_fp_math": True}](scale, x, factor, n, 64, stream)
    compiled(x, factor, n, 64, stream)


def every_block(x, factor, n, stream):
    for block in BLOCKS:
        scale(x, factor, n, block, stream)


class Shifter:
    """Launchers as methods: what they read from `self` is compiled in."""

    def __init__(self, distance: int) -> None:
        self.distance = distance

    @flyc.kernel
    def kernel(self, x: fx.Pointer):
        i = fx.thread_idx.x
        x[i] = x[i] + fx.Float32(self.distance)

    @flyc.jit
    def shift(self, x: fx.Pointer, stream: fx.Stream):
        self.kernel(x).launch(grid=(1, 1, 1), block=(64, 1, 1), stream=stream)


shifter = Shifter(3)


def make_shift(distance: int):
    """A factory of factories, whose launchers are in a mapping and an object."""

    def with_block(block: int):
        @flyc.kernel
        def up(x: fx.Pointer):
            i = fx.block_idx.x * block + fx.thread_idx.x
            x[i] = x[i] + fx.Float32(distance)

        @flyc.kernel
        def down(x: fx.Pointer):
            i = fx.block_idx.x * block + fx.thread_idx.x
            x[i] = x[i] - fx.Float32(distance)

        @flyc.jit
        def shift_up(x: fx.Pointer, n: fx.Int32, stream: fx.Stream):
            up(x).launch(grid=(n // block, 1, 1), block=(block, 1, 1), stream=stream)

        @flyc.jit
        def shift_down(x: fx.Pointer, n: fx.Int32, stream: fx.Stream):
            down(x).launch(grid=(n // block, 1, 1), block=(block, 1, 1), stream=stream)

        return {"launch": shift_up, "both": SimpleNamespace(up=shift_up, down=shift_down)}

    return with_block
