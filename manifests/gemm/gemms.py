"""Tiled GEMM, C = A @ B^T: a launcher per tile size, for any M, N and K."""

import flydsl.compiler as flyc
import flydsl.expr as fx
from elements import element_type
from matmul import MatmulTile, multiply_tile, store_tile


def compile_gemm(*, in_dtype, tile_m, tile_n, tile_k):
    """Return the launcher ``gemm(c, a, b, stream)`` for tiles of the given size.

    ``in_dtype`` (``bf16`` or ``f16``) is the type of all three matrices. tile_m is a multiple of
    16, tile_n of 32 (of 64 when tile_m is an odd multiple of 16) and tile_k of 32.
    """
    waves_m = 1 if tile_m % 32 else 2
    tile = MatmulTile(
        element=element_type(in_dtype),
        m=tile_m,
        n=tile_n,
        k=tile_k,
        waves_m=waves_m,
        waves_n=4 // waves_m,
    )
    staging_type = tile.staging()

    @flyc.kernel
    def gemm_kernel(c: fx.Tensor, a: fx.Tensor, b: fx.Tensor, tiled_mma: fx.TiledMma):
        staging = fx.SharedAllocator().allocate(staging_type).peek()
        row, column = fx.block_idx.y, fx.block_idx.x
        accumulators = multiply_tile(
            tile, tiled_mma, staging, a, b, row * tile.m, column * tile.n, 0, a.shape[1].unpack()
        )
        store_tile(tile, tiled_mma, accumulators, c, row, column)

    @flyc.jit
    def gemm(
        c: fx.Tensor,
        a: fx.Tensor,
        b: fx.Tensor,
        stream: fx.Stream = fx.Stream(None),
    ):
        """C (M, N) = A (M, K) @ B (N, K)^T, accumulated in f32; the last axis is contiguous."""
        rows, columns = c.shape.unpack()
        grid = ((columns + tile.n - 1) // tile.n, (rows + tile.m - 1) // tile.m, 1)
        gemm_kernel(c, a, b, tile.tiled_mma()).launch(
            grid=grid, block=(tile.threads, 1, 1), stream=stream
        )

    return gemm
