"""Split-K GEMM: workgroups share the K axis of a tile, and a second launch adds their partials."""

import flydsl.compiler as flyc
import flydsl.expr as fx
from elements import element_type
from matmul import MatmulTile, multiply_tile, store_tile

REDUCE_THREADS = 256


@flyc.kernel
def reduce_kernel(c: fx.Tensor, workspace: fx.Tensor, splits: fx.Int32):
    columns = c.shape[1].unpack()
    row = fx.block_idx.x
    column = fx.Int32(fx.block_idx.y) * REDUCE_THREADS + fx.Int32(fx.thread_idx.x)
    if column < columns:
        total = fx.Float32(0.0)
        for split in range(splits):
            total = total + workspace[fx.Int32(split), row, column]
        c[row, column] = total.to(c.element_type)


def compile_splitk_gemm(*, in_dtype, tile_m, tile_n, tile_k):
    """Return the launcher ``splitk_gemm(c, a, b, workspace, splits, stream)``.

    ``in_dtype`` (``bf16`` or ``f16``) is the type of A, B and C. Tile sizes are as for a GEMM of
    2 x 2 waves: tile_m, tile_n and tile_k are multiples of 32.
    """
    tile = MatmulTile(
        element=element_type(in_dtype), m=tile_m, n=tile_n, k=tile_k, waves_m=2, waves_n=2
    )
    staging_type = tile.staging()

    @flyc.kernel
    def partial_kernel(
        workspace: fx.Tensor,
        a: fx.Tensor,
        b: fx.Tensor,
        k_share: fx.Int32,
        tiled_mma: fx.TiledMma,
    ):
        staging = fx.SharedAllocator().allocate(staging_type).peek()
        column, row, split = fx.block_idx
        k_limit = a.shape[1].unpack()
        k_begin = split * k_share
        k_end = (k_begin + k_share < k_limit).select(k_begin + k_share, k_limit)
        # The share of a late split can be empty: its partials are zero, and are still written.
        accumulators = multiply_tile(
            tile, tiled_mma, staging, a, b, row * tile.m, column * tile.n, k_begin, k_end
        )
        store_tile(tile, tiled_mma, accumulators, workspace[split, None, None], row, column)

    @flyc.jit
    def splitk_gemm(
        c: fx.Tensor,
        a: fx.Tensor,
        b: fx.Tensor,
        workspace: fx.Tensor,
        splits: fx.Int32,
        stream: fx.Stream = fx.Stream(None),
    ):
        """C (M, N) = A (M, K) @ B (N, K)^T; the f32 workspace is (>= splits, M, N)."""
        rows, columns = c.shape.unpack()
        per_split = (a.shape[1].unpack() + splits - 1) // splits
        k_share = (per_split + tile.k - 1) // tile.k * tile.k
        tiles_m = (rows + tile.m - 1) // tile.m
        tiles_n = (columns + tile.n - 1) // tile.n
        partial_kernel(workspace, a, b, k_share, tile.tiled_mma()).launch(
            grid=(tiles_n, tiles_m, splits), block=(tile.threads, 1, 1), stream=stream
        )
        reduce_kernel(c, workspace, splits).launch(
            grid=(rows, (columns + REDUCE_THREADS - 1) // REDUCE_THREADS, 1),
            block=(REDUCE_THREADS, 1, 1),
            stream=stream,
        )

    return splitk_gemm
