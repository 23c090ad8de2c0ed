"""Host code as applications call it, for the examples of docs/manifest.md: torch in, torch out."""

from __future__ import annotations

import functools

import flydsl.compiler as flyc
import flydsl.expr as fx
import torch
from flydsl.autotune import Config, autotune

UNITS = torch.cuda.get_device_properties(0).multi_processor_count


@functools.lru_cache
def compile_double(width: int):
    @flyc.kernel
    def double_kernel(x: fx.Tensor, out: fx.Tensor):
        i = fx.block_idx.x * width + fx.thread_idx.x
        out[i] = x[i] + x[i]

    @flyc.jit
    def double(x: fx.Tensor, out: fx.Tensor, n: fx.Int32, stream: fx.Stream):
        double_kernel(x, out).launch(grid=(n // width, 1, 1), block=(width, 1, 1), stream=stream)

    return double


@flyc.kernel
def clear_kernel(x: fx.Pointer):
    x[fx.thread_idx.x] = fx.Float32(0.0)


@flyc.jit
def clear(x: fx.Pointer, stream: fx.Stream):
    clear_kernel(x).launch(grid=(1, 1, 1), block=(64, 1, 1), stream=stream)


def double(x: torch.Tensor, scratch: torch.Tensor | None = None) -> torch.Tensor:
    """2x; clears `scratch` first. Small tensors use narrow blocks."""
    if not x.is_cuda:
        raise ValueError("x is not on a device")
    stream = torch.cuda.current_stream(x.device)
    if scratch is not None:
        clear(flyc.from_c_void_p(fx.Float32, scratch.data_ptr()), stream)
    width = 64 if x.numel() < 64 * UNITS else 256
    out = torch.empty(x.shape, dtype=x.dtype, device=torch.device("cuda", 0))
    launcher = compile_double(width)
    flyc.compile(launcher, x.view(-1), flyc.from_dlpack(out.view(-1)), x.numel(), stream)
    return out


def double_some(x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """Doubles if a size says so: decides by values, which fake tensors do not have."""
    return x if sizes.sum().item() else double(x)


@flyc.kernel
def square_kernel(x: fx.Pointer, block: fx.Constexpr[int]):
    if block > 1024:
        raise ValueError(f"no workgroup has {block} work items")
    i = fx.block_idx.x * block + fx.thread_idx.x
    x[i] = x[i] * x[i]


@autotune(
    configs=[Config(block=64), Config(block=256, waves_per_eu=2), Config(block=4096)], key=["n"]
)
@flyc.jit
def square(x: fx.Pointer, n: fx.Int32, block: fx.Constexpr[int], stream: fx.Stream):
    square_kernel(x, block).launch(grid=(n // block, 1, 1), block=(block, 1, 1), stream=stream)
