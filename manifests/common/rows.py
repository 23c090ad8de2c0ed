"""One workgroup per row: keep the row in registers, and reduce it across the workgroup.

A row of N elements is cut into chunks of equal width; thread t owns the chunks t, t + 256, and so
on. The last ones may not exist, so loads and stores are guarded and absent elements are padding.
"""

import math

import flydsl.compiler as flyc
import flydsl.expr as fx
from elements import elements_per_access
from gpu_target import WAVE_THREADS

BLOCK_THREADS = 256
WAVES = BLOCK_THREADS // WAVE_THREADS

# One f32 per wave: the scratch of one block_reduce. Each reduction of a kernel has its own, so that
# no wave can overwrite a partial result which a slower wave has yet to read.
ReductionSlots = fx.Array[fx.Float32, WAVES, 16]


def chunk_width(n, element):
    """Elements a chunk: as wide as one memory access allows, and dividing the row evenly."""
    return math.gcd(n, elements_per_access(element))


def chunk_tiles(n, element):
    """Chunks that thread 0, which has most, owns."""
    return -(-n // (chunk_width(n, element) * BLOCK_THREADS))


def chunk_start(tile, width):
    """Index in the row of the calling thread's chunk number ``tile``."""
    return (fx.Int32(fx.thread_idx.x) + tile * BLOCK_THREADS) * width


@flyc.jit
def load_row(row, n, element, padding):
    """Return the calling thread's chunks of ``row`` as f32 vectors; absent ones are ``padding``."""
    width = chunk_width(n, element)
    packed = fx.Vector.make_type(width, element)
    chunks = []
    for tile in fx.range_constexpr(chunk_tiles(n, element)):
        first = chunk_start(tile, width)
        chunk = fx.full(width, padding, fx.Float32)
        if first < n:
            loaded = fx.Vector(fx.ptr_load(row + first, packed), width, element)
            chunk = loaded.to(fx.Float32)
        chunks.append(chunk)
    return chunks


def repad_row(chunks, n, element, padding):
    """Return ``chunks`` with ``padding`` in place of whatever became of the absent ones."""
    width = chunk_width(n, element)
    absent = fx.full(width, padding, fx.Float32)
    return [
        (chunk_start(tile, width) < n).select(chunk, absent) for tile, chunk in enumerate(chunks)
    ]


@flyc.jit
def store_row(row, chunks, n, element):
    """Round the calling thread's f32 ``chunks`` to ``element`` and store those that exist."""
    width = chunk_width(n, element)
    for tile in fx.range_constexpr(len(chunks)):
        first = chunk_start(tile, width)
        if first < n:
            fx.ptr_store(chunks[tile].to(element), row + first)


@flyc.jit
def block_reduce(value, combine, slots):
    """Combine one f32 of every thread; all threads get the result. ``slots`` is used only here."""
    distance = WAVE_THREADS // 2
    while fx.const_expr(distance > 0):
        value = combine(value, fx.shuffle_xor(value, distance, WAVE_THREADS))
        distance //= 2

    thread = fx.Int32(fx.thread_idx.x)
    if thread % WAVE_THREADS == 0:
        slots[thread // WAVE_THREADS] = value
    fx.barrier()

    result = slots[0]
    for wave in fx.range_constexpr(1, WAVES):
        result = combine(result, slots[wave])
    return result


def block_sum(chunks, slots):
    """Sum every element of the row whose chunks are given."""
    partial = chunks[0].reduce(fx.ReductionOp.ADD)
    for chunk in chunks[1:]:
        partial = partial + chunk.reduce(fx.ReductionOp.ADD)
    return block_reduce(partial, lambda a, b: a + b, slots)


def block_max(chunks, slots):
    """Return the largest element of the row whose chunks are given."""
    partial = chunks[0].reduce(fx.ReductionOp.MAX)
    for chunk in chunks[1:]:
        partial = fx.maxnumf(partial, chunk.reduce(fx.ReductionOp.MAX))
    return block_reduce(partial, fx.maxnumf, slots)
