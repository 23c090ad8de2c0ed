"""A scaled GEMM with everything that is worth tuning as a factory argument."""

import flydsl.compiler as flyc
import flydsl.expr as fx
from elements import element_type
from matmul import MatmulTile, multiply_tile, store_tile


def compile_tuned_gemm(*, in_dtype, tile_m, tile_n, tile_k, waves_m, waves_n, group_m):
    """Build C = scale * A @ B^T and return ``{"launch": launcher, "tile": MatmulTile}``.

    ``in_dtype`` (``bf16`` or ``f16``) is the type of all three matrices. tile_m is a multiple of
    16 * waves_m, tile_n of 16 * waves_n and tile_k of 32. Workgroups that run together take
    ``group_m`` tiles down M before the next column of tiles, so that they share B in the cache.
    """
    if group_m < 1:
        raise ValueError(f"group_m={group_m} is not a positive number of tiles")
    tile = MatmulTile(
        element=element_type(in_dtype),
        m=tile_m,
        n=tile_n,
        k=tile_k,
        waves_m=waves_m,
        waves_n=waves_n,
    )
    staging_type = tile.staging()

    def tiles_across(rows, columns):
        return (rows + tile.m - 1) // tile.m, (columns + tile.n - 1) // tile.n

    @flyc.kernel
    def tuned_gemm_kernel(
        c: fx.Tensor,
        a: fx.Tensor,
        b: fx.Tensor,
        scale: fx.Float32,
        tiled_mma: fx.TiledMma,
    ):
        staging = fx.SharedAllocator(static=False).allocate(staging_type).peek()
        tiles_m, tiles_n = tiles_across(*c.shape.unpack())
        group, place = divmod(fx.Int32(fx.block_idx.x), tiles_n * group_m)
        above = group * group_m
        height = (tiles_m - above < group_m).select(tiles_m - above, group_m)
        row, column = above + place % height, place // height

        accumulators = multiply_tile(
            tile, tiled_mma, staging, a, b, row * tile.m, column * tile.n, 0, a.shape[1].unpack()
        )
        accumulators.store(accumulators.load() * scale)
        store_tile(tile, tiled_mma, accumulators, c, row, column)

    @flyc.jit
    def tuned_gemm(
        c: fx.Tensor,
        a: fx.Tensor,
        b: fx.Tensor,
        scale: fx.Float32,
        stream: fx.Stream = fx.Stream(None),
    ):
        """C (M, N) = scale * A (M, K) @ B (N, K)^T; the slices are staged in dynamic LDS."""
        tiles_m, tiles_n = tiles_across(*c.shape.unpack())
        tuned_gemm_kernel(c, a, b, scale, tile.tiled_mma()).launch(
            grid=(tiles_m * tiles_n, 1, 1), block=(tile.threads, 1, 1), stream=stream
        )

    return {"launch": tuned_gemm, "tile": tile}
