"""Launchers that decide at run time what to launch, and with which sizes."""

import flydsl.compiler as flyc
import flydsl.expr as fx

THREADS = 64


@flyc.kernel
def mark_kernel(out: fx.Pointer, value: fx.Int32):
    out[fx.Int64(fx.thread_idx.x)] = value


@flyc.kernel
def other_kernel(out: fx.Pointer, value: fx.Int32):
    out[fx.Int64(fx.thread_idx.x)] = value * 3


@flyc.jit
def arithmetic(out: fx.Pointer, a: fx.Int32, b: fx.Int32, u: fx.Uint32, w: fx.Int64):
    blocks = (a + 255) // 256 + a % b - (a * b >> 3) + (b << 2)
    unsigned = u // fx.Uint32(7) + u % fx.Uint32(5) + (u >> fx.Uint32(2))
    bits = (a & b) | (a ^ 15)
    chosen = (a < b).select(a, b)
    wide = (w // 3) % 11 + fx.Int64(a)
    mark_kernel(out, bits).launch(grid=(blocks, unsigned, chosen), block=(THREADS, 1, 1))
    mark_kernel(out, fx.Int32(wide)).launch(grid=(wide, 1, 1), block=(THREADS, 1, 1))


@flyc.jit
def two_launches(out: fx.Pointer, n: fx.Int32):
    blocks = (n + 63) // 64
    mark_kernel(out, n).launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1))
    other_kernel(out, n).launch(grid=(blocks, 2, 1), block=(THREADS, 1, 1))
    mark_kernel(out, blocks).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


@flyc.jit
def if_without_else(out: fx.Pointer, n: fx.Int32):
    if n > 0:
        mark_kernel(out, n).launch(grid=(n, 1, 1), block=(THREADS, 1, 1))


@flyc.jit
def if_else(out: fx.Pointer, n: fx.Int32):
    if n > 100:
        mark_kernel(out, n).launch(grid=(n, 1, 1), block=(THREADS, 1, 1))
    else:
        other_kernel(out, n).launch(grid=(1, n, 1), block=(THREADS, 1, 1))


@flyc.jit
def if_with_value(out: fx.Pointer, n: fx.Int32):
    blocks = fx.Int32(1)
    if n > 100:
        blocks = n // 100
    else:
        blocks = n + 7
    mark_kernel(out, blocks).launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1))


@flyc.jit
def nested_if(out: fx.Pointer, n: fx.Int32, m: fx.Int32):
    if n > 0:
        if m > 0:
            mark_kernel(out, n).launch(grid=(n, m, 1), block=(THREADS, 1, 1))
        else:
            other_kernel(out, m).launch(grid=(n, 1, 1), block=(THREADS, 1, 1))
    mark_kernel(out, m).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


@flyc.jit
def runtime_for(out: fx.Pointer, n: fx.Int32):
    for i in range(n):
        mark_kernel(out, fx.Int32(i)).launch(grid=(fx.Int32(i) + 1, 1, 1), block=(THREADS, 1, 1))


@flyc.jit
def runtime_for_carrying(out: fx.Pointer, n: fx.Int32):
    size = fx.Int32(1)
    for _ in range(n):
        mark_kernel(out, size).launch(grid=(size, 1, 1), block=(THREADS, 1, 1))
        size = size * 2
    other_kernel(out, size).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


@flyc.jit
def runtime_while(out: fx.Pointer, n: fx.Int32):
    size = n
    while size > 1:
        mark_kernel(out, size).launch(grid=(size, 1, 1), block=(THREADS, 1, 1))
        size = size // 2


@flyc.jit
def dynamic_lds(out: fx.Pointer, n: fx.Int32):
    mark_kernel(out, n).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), smem=n * 4)


@flyc.jit
def clustered(out: fx.Pointer, n: fx.Int32):
    mark_kernel(out, n).launch(grid=(n * 2, 1, 1), block=(THREADS, 1, 1), cluster=(2, 1, 1))


@flyc.jit
def offset_pointer(out: fx.Pointer, n: fx.Int32):
    mark_kernel(out + n * 4, n).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


@flyc.jit
def prints(out: fx.Pointer, n: fx.Int32):
    fx.printf("n={}", n)
    mark_kernel(out, n).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


@flyc.jit
def computes_floats(out: fx.Pointer, n: fx.Int32, scale: fx.Float32):
    blocks = fx.Int32(fx.Float32(n) * scale)
    mark_kernel(out, n).launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1))


@flyc.jit
def reads_memory(out: fx.Pointer, n: fx.Int32):
    blocks = fx.Int32(out[n])
    mark_kernel(out, n).launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1))


@flyc.jit
def forgets_the_stream(out: fx.Pointer, n: fx.Int32, stream: fx.Stream = fx.Stream(None)):
    mark_kernel(out, n).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


@flyc.jit
def launches_nothing(out: fx.Pointer, n: fx.Int32):
    pass


@flyc.jit
def endless(out: fx.Pointer, n: fx.Int32):
    size = n
    while size > 1:
        mark_kernel(out, size).launch(grid=(size, 1, 1), block=(THREADS, 1, 1))
        size = size + 0


@flyc.jit
def divides(out: fx.Pointer, n: fx.Int32):
    mark_kernel(out, n).launch(grid=(1024 // n, 1, 1), block=(THREADS, 1, 1))


@flyc.jit
def loop_in_if_in_loop(out: fx.Pointer, n: fx.Int32, m: fx.Int32):
    for i in range(n):
        if fx.Int32(i) % 2 == 0:
            for j in range(m):
                mark_kernel(out, fx.Int32(i) * 10 + fx.Int32(j)).launch(
                    grid=(fx.Int32(j) + 1, 1, 1), block=(THREADS, 1, 1)
                )
        else:
            other_kernel(out, fx.Int32(i)).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


@flyc.jit
def cluster_of_one(out: fx.Pointer, n: fx.Int32):
    mark_kernel(out, n).launch(grid=(n, 1, 1), block=(THREADS, 1, 1), cluster=(1, 1, 1))


@flyc.jit
def address_as_number(out: fx.Pointer, address: fx.Int64):
    mark_kernel(out, fx.Int32(address >> fx.Int64(12))).launch(
        grid=(1, 1, 1), block=(THREADS, 1, 1)
    )
