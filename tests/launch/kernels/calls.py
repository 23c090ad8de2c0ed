"""Launchers that are called in every way, and that decide at run time what they launch."""

import enum
from collections.abc import Callable

import flydsl.compiler as flyc
import flydsl.expr as fx

THREADS = 64


class Mode(enum.Enum):
    """A compile-time choice."""

    SMALL = 1
    LARGE = 2


@flyc.kernel
def mark_kernel(out: fx.Pointer, value: fx.Int32):
    out[fx.Int64(fx.thread_idx.x)] = value


@flyc.kernel
def other_kernel(out: fx.Pointer, value: fx.Int32, wide: fx.Int64):
    out[fx.Int64(fx.thread_idx.x)] = value * 3 + fx.Int32(wide)


@flyc.kernel
def optional_kernel(out: fx.Pointer, bias: fx.Pointer, n: fx.Int32, scale: fx.Float32):
    out[fx.Int64(fx.thread_idx.x)] = n + fx.Int32(scale)


def tripled(value):
    return value * 3


# FlyDSL takes no other function in a struct.
DOUBLED = lambda value: value * 2  # noqa: E731


@fx.struct
class Config:
    """A struct of which half is fixed at compile time."""

    count: fx.Int32
    width: fx.Constexpr[int]
    rule: fx.Constexpr[Callable]
    offset: fx.Uint8


@flyc.jit
def with_defaults(
    out: fx.Pointer,
    bias: fx.Pointer = flyc.from_c_void_p(fx.Float32, None),
    n: fx.Int32 = -7,
    scale: fx.Float32 = 0.5,
    flag: fx.Boolean = True,
    wide: fx.Uint64 = fx.Uint64(1 << 63),
    config: Config = Config(count=-3, width=4, rule=DOUBLED, offset=200),
    stream: fx.Stream = fx.Stream(None),
):
    optional_kernel(out, bias, n, scale).launch(
        grid=(fx.Int32(flag) + 1, 1, 1), block=(THREADS, 1, 1), stream=stream
    )
    other_kernel(out, n, fx.Int64(wide)).launch(
        grid=(1, 1, 1), block=(THREADS, 1, 1), stream=stream
    )
    mark_kernel(out, config.rule(config.count) + fx.Int32(config.offset)).launch(
        grid=(config.width, 1, 1), block=(THREADS, 1, 1), stream=stream
    )


@flyc.kernel
def compile_time_kernel(
    out: fx.Pointer,
    number: fx.Constexpr[int],
    flag: fx.Constexpr[bool],
    text: fx.Constexpr[str],
    ratio: fx.Constexpr[float],
    mode: fx.Constexpr,
    shape: fx.Constexpr[tuple],
    rule: fx.Constexpr[Callable],
    dtype: type,
    layout: fx.Layout,
):
    value = number + len(text) + sum(shape) + mode.value * 100 + dtype.width
    value = rule(value) + int(ratio * 8)
    place = fx.crd2idx((fx.Int32(fx.thread_idx.x) % 4, 1), layout).unpack()
    out[fx.Int64(fx.thread_idx.x)] = fx.Int32(value if flag else -value) + fx.Int32(place)


@flyc.jit
def compile_time(
    out: fx.Pointer,
    number: fx.Constexpr[int],
    flag: fx.Constexpr[bool],
    text: fx.Constexpr[str],
    ratio: fx.Constexpr[float],
    mode: fx.Constexpr,
    shape: fx.Constexpr[tuple],
    rule: fx.Constexpr[Callable],
    dtype: type,
):
    layout = fx.make_layout((4, 2), (2, 1))
    compile_time_kernel(out, number, flag, text, ratio, mode, shape, rule, dtype, layout).launch(
        grid=(number, 1, 1), block=(THREADS, 1, 1)
    )


class Model:
    """An object whose methods launch."""

    def __init__(self, blocks):
        self.blocks = blocks

    @flyc.jit
    def launch(self, out: fx.Pointer, n: fx.Int32):
        mark_kernel(out, n + self.blocks).launch(grid=(self.blocks, 1, 1), block=(THREADS, 1, 1))


model = Model(5)


@flyc.jit
def shared_values(out: fx.Pointer, n: fx.Int32, m: fx.Int32):
    blocks = (n + 63) // 64
    rest = n % 64 + (m >> 2) - (m * n << 1)
    mark_kernel(out, rest).launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1))
    other_kernel(out, blocks, fx.Int64(rest) * 5).launch(
        grid=(blocks, 2, 1), block=(THREADS, 1, 1), smem=(n & 1023) * 4
    )


@flyc.jit
def divides(out: fx.Pointer, n: fx.Int32, m: fx.Int32):
    mark_kernel(out, n % m).launch(grid=(n // m, 1, 1), block=(THREADS, 1, 1))


@flyc.jit
def chooses(out: fx.Pointer, n: fx.Int32, m: fx.Int32):
    size = fx.Int32(1)
    if n > 100:
        mark_kernel(out, n).launch(grid=(n, 1, 1), block=(THREADS, 1, 1))
        size = n // 3
    else:
        if m < 0:
            other_kernel(out, m, fx.Int64(n)).launch(grid=(2, 1, 1), block=(THREADS, 1, 1))
        size = (n < m).select(n, m)
    mark_kernel(out, size).launch(grid=(size, 1, 1), block=(THREADS, 1, 1))


@flyc.jit
def repeats(out: fx.Pointer, n: fx.Int32, m: fx.Int32):
    size = m
    for step in range(n):
        mark_kernel(out, size).launch(grid=(fx.Int32(step) + 1, 1, 1), block=(THREADS, 1, 1))
        size = size * 2 + fx.Int32(step)
    while size > 4096:
        size = size // 5
    other_kernel(out, size, fx.Int64(m)).launch(grid=(3, 1, 1), block=(THREADS, 1, 1))


@flyc.jit
def moves_pointers(out: fx.Pointer, n: fx.Int32, m: fx.Int32):
    mark_kernel(out + n * 4, m).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))
    mark_kernel(out + (fx.Int64(m) << 3), n).launch(grid=(2, 1, 1), block=(THREADS, 1, 1))


@flyc.jit
def takes_addresses(out: fx.Int64, n: fx.Int32, m: fx.Int32):
    pointer = fx.inttoptr(fx.PointerType.get(fx.Int32.ir_type, fx.AddressSpace.Global, 4), out)
    mark_kernel(pointer, n).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))
    other_kernel(pointer, m, out + fx.Int64(n) * 4).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))
