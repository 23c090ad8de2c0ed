"""A kernel of the documentation's examples that is linked with external device code."""

from pathlib import Path

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.compiler.extern_link import ExternFunction


def set_factor(module: int) -> None:
    """FlyDSL calls this with the hipModule_t; with flyc the application registers its own."""


def make_scale(library: str, hook: bool = True):
    """The launcher of out[i] = scale(x[i]), with ``scale`` from the bitcode file ``library``."""
    scale = ExternFunction(
        "scale",
        ["float32"],
        "float32",
        bitcode_path=str(Path(__file__).parent / library),
        module_init_fn=set_factor if hook else None,
    )

    @flyc.kernel
    def scale_kernel(x: fx.Pointer, out: fx.Pointer, n: fx.Int32):
        i = fx.Int64(fx.block_idx.x) * 64 + fx.Int64(fx.thread_idx.x)
        if i < fx.Int64(n):
            out[i] = fx.Float32(scale(x[i]))

    @flyc.jit
    def launch(x: fx.Pointer, out: fx.Pointer, n: fx.Int32):
        scale_kernel(x, out, n).launch(grid=((n + 63) // 64, 1, 1), block=(64, 1, 1))

    return launch
