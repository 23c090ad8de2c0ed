"""One output tile of C = A @ B^T per workgroup, on the matrix units of any supported target.

A is (M, K) and B is (N, K), both with K contiguous. The workgroup walks K in steps of ``tile.k``:
it stages a slice of A and of B in LDS, and its waves multiply that into f32 accumulators.
"""

from dataclasses import dataclass
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from elements import elements_per_access
from gpu_target import ARCH, IS_CDNA, WAVE_THREADS

# The matrix instruction multiplies 16 x DEPTH by DEPTH x 16.
MMA_EXTENT = 16
MMA_DEPTH = 32 if ARCH.startswith(("gfx950", "gfx1250")) else 16


@dataclass(frozen=True)
class MatmulTile:
    """What one workgroup computes, and how its waves share that."""

    element: Any
    m: int
    n: int
    k: int
    waves_m: int
    waves_n: int

    def __post_init__(self):
        for extent, step, what in (
            (self.m, MMA_EXTENT * self.waves_m, "tile_m"),
            (self.n, MMA_EXTENT * self.waves_n, "tile_n"),
            (self.k, 32, "tile_k"),
        ):
            if extent <= 0 or extent % step:
                raise ValueError(f"{what}={extent} is not a positive multiple of {step}")

    @property
    def threads(self):
        return self.waves_m * self.waves_n * WAVE_THREADS

    @property
    def pitch(self):
        """Elements from one staged row to the next: padded to spread the LDS banks."""
        return self.k + elements_per_access(self.element)

    def accesses(self, extent):
        """128-bit accesses with which each thread helps to move ``extent`` rows of a slice."""
        return -(-extent * self.k // (elements_per_access(self.element) * self.threads))

    def place_of_access(self, step):
        """Return row and first column of the calling thread's access number ``step``."""
        width = elements_per_access(self.element)
        index = fx.Int32(fx.thread_idx.x) + step * self.threads
        return index // (self.k // width), index % (self.k // width) * width

    def staging(self):
        """Return the LDS type that holds one slice of A and of B."""

        @fx.struct
        class Staging:
            a: fx.Array[self.element, self.m * self.pitch, 16]
            b: fx.Array[self.element, self.n * self.pitch, 16]

        return Staging

    def tiled_mma(self):
        """Spread the target's 16x16 matrix instruction over the tile's waves."""
        waves = fx.make_layout((self.waves_m, self.waves_n, 1), (self.waves_n, 1, 0))
        return fx.make_tiled_mma(fx.make_mma_atom(self._instruction()), waves)

    def operand_bits(self):
        """Width of the LDS reads that fill an operand of the matrix instruction."""
        return 64 if IS_CDNA and MMA_DEPTH == 16 else 128

    def _instruction(self):
        shape = (MMA_EXTENT, MMA_EXTENT, MMA_DEPTH)
        if IS_CDNA:
            return fx.rocdl.MFMA(*shape, self.element)
        return fx.rocdl.WMMA(*shape, self.element, fx.Float32)


@flyc.jit
def load_slice(tile, source, extent, first, limit, k):
    """Load the calling thread's part of ``extent`` rows of ``tile.k`` columns that all exist.

    Rows from ``limit`` on are zero. The result is a list of 128-bit vectors for write_slice.
    """
    width = elements_per_access(tile.element)
    packed = fx.Vector.make_type(width, tile.element)
    loaded = []
    for step in fx.range_constexpr(tile.accesses(extent)):
        row, column = tile.place_of_access(step)
        values = fx.full(width, 0.0, tile.element)
        if (row < extent) & (first + row < limit):
            pointer = fx.get_iter(source[first + row, None]) + (k + column)
            values = fx.Vector(fx.ptr_load(pointer, packed), width, tile.element)
        loaded.append(values)
    return loaded


@flyc.jit
def write_slice(tile, loaded, staged, extent):
    """Write what load_slice returned to LDS."""
    for step in fx.range_constexpr(len(loaded)):
        row, column = tile.place_of_access(step)
        if row < extent:
            fx.ptr_store(loaded[step], staged + (row * tile.pitch + column))


@flyc.jit
def copy_last_slice(tile, source, staged, extent, first, limit, k, k_end):
    """Copy element by element a slice that K ends in; what does not exist is zero."""
    zero = tile.element(0.0)
    for index in range(fx.Int32(fx.thread_idx.x), extent * tile.k, tile.threads):
        row = fx.Int32(index) // tile.k
        column = fx.Int32(index) % tile.k
        value = zero
        if (first + row < limit) & (k + column < k_end):
            value = (fx.get_iter(source[first + row, None]) + (k + column)).load()
        fx.ptr_store(value, staged + (row * tile.pitch + column))


@flyc.jit
def multiply_tile(tile, tiled_mma, staging, a, b, first_row, first_column, k_begin, k_end):
    """Return the calling thread's f32 accumulators of the output tile at the given corner."""
    rows = a.shape[0].unpack()
    columns = b.shape[0].unpack()
    staged_a = fx.make_view(staging.a.ptr, fx.make_layout((tile.m, tile.k), (tile.pitch, 1)))
    staged_b = fx.make_view(staging.b.ptr, fx.make_layout((tile.n, tile.k), (tile.pitch, 1)))

    thread = fx.Int32(fx.thread_idx.x)
    thread_mma = tiled_mma.thr_slice(thread)
    read = fx.make_copy_atom(fx.UniversalCopy(tile.operand_bits()), tile.element)
    read_a = fx.make_tiled_copy_A(read, tiled_mma).get_slice(thread)
    read_b = fx.make_tiled_copy_B(read, tiled_mma).get_slice(thread)
    operand_a = thread_mma.make_fragment_A(staged_a)
    operand_b = thread_mma.make_fragment_B(staged_b)
    from_a, to_a = read_a.partition_S(staged_a), read_a.retile(operand_a)
    from_b, to_b = read_b.partition_S(staged_b), read_b.retile(operand_b)
    shape = fx.make_view(staging.a.ptr, fx.make_layout((tile.m, tile.n), (tile.n, 1)))
    accumulators = thread_mma.make_fragment_C(shape)
    accumulators.fill(0)

    for k in range(k_begin, k_end, tile.k):
        if k + tile.k <= k_end:
            loaded_a = load_slice(tile, a, tile.m, first_row, rows, k)
            loaded_b = load_slice(tile, b, tile.n, first_column, columns, k)
            write_slice(tile, loaded_a, staging.a.ptr, tile.m)
            write_slice(tile, loaded_b, staging.b.ptr, tile.n)
        else:
            copy_last_slice(tile, a, staging.a.ptr, tile.m, first_row, rows, k, k_end)
            copy_last_slice(tile, b, staging.b.ptr, tile.n, first_column, columns, k, k_end)
        fx.barrier()
        fx.copy(read, from_a, to_a)
        fx.copy(read, from_b, to_b)
        fx.gemm(tiled_mma, accumulators, operand_a, operand_b, accumulators)
        # The next slice overwrites the staged one: every wave must have read it.
        fx.barrier()
    return accumulators


def store_tile(tile, tiled_mma, accumulators, out, block_row, block_column):
    """Round the accumulators to the type of ``out`` and store those that lie inside it."""
    element = out.element_type
    extent = (tile.m, tile.n)
    rounded = fx.make_fragment_like(accumulators, element)
    rounded.store(accumulators.load().to(element))

    write = fx.make_copy_atom(fx.UniversalCopy(element.width), element)
    write_out = fx.make_tiled_copy_C(write, tiled_mma).get_slice(fx.Int32(fx.thread_idx.x))
    source = write_out.retile(rounded)
    block = (None, None, block_row, block_column)
    target = write_out.partition_D(fx.flat_divide(out, extent)[block])

    # A copy moves one element, so there is one place and one predicate for each.
    each = ((0, None), None, None)
    shape = tuple(out.shape.unpack())
    coordinates = fx.make_view((0, 0), fx.make_identity_layout(shape))
    places = write_out.partition_D(fx.flat_divide(coordinates, extent)[block])[each]
    inside = fx.make_fragment_like(source[each], dtype=fx.Boolean)
    for i in range(fx.size(inside.shape).unpack()):
        inside[i] = fx.elem_less(places[i], shape)
    fx.copy(write, source, target, pred=inside)
