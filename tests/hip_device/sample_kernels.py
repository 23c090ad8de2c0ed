"""Small FlyDSL launchers for the device's own tests: one launch, two launches, clusters."""

import flydsl.compiler as flyc
import flydsl.expr as fx


@flyc.kernel
def scale_kernel(x: fx.Tensor, factor: fx.Float32, rows: fx.Int32):
    row = fx.block_idx.x
    if row < rows:
        x[row, fx.thread_idx.x] = x[row, fx.thread_idx.x] * factor


@flyc.jit
def scale(
    x: fx.Tensor,
    factor: fx.Float32,
    rows: fx.Int32,
    parts: fx.Int32,
    stream: fx.Stream = fx.Stream(None),  # noqa: B008 - how FlyDSL declares a stream
):
    """Grid (rows // parts, parts, 1) with 1,024 bytes of dynamic LDS."""
    scale_kernel(x, factor, rows).launch(
        grid=(rows // parts, parts, 1), block=(64, 1, 1), smem=1024, stream=stream
    )


@flyc.jit
def scale_twice(
    x: fx.Tensor,
    factor: fx.Float32,
    rows: fx.Int32,
    stream: fx.Stream = fx.Stream(None),  # noqa: B008
):
    """Two launches: rows, then rows + 1 workgroups."""
    scale_kernel(x, factor, rows).launch(grid=(rows, 1, 1), block=(64, 1, 1), stream=stream)
    scale_kernel(x, factor, rows + 1).launch(grid=(rows + 1, 1, 1), block=(64, 1, 1), stream=stream)


@flyc.jit
def scale_in_clusters(
    x: fx.Tensor,
    factor: fx.Float32,
    rows: fx.Int32,
    stream: fx.Stream = fx.Stream(None),  # noqa: B008
):
    """Clusters of two workgroups."""
    scale_kernel(x, factor, rows).launch(
        grid=(rows, 1, 1), block=(64, 1, 1), cluster=(2, 1, 1), stream=stream
    )


@flyc.kernel
def sizes_kernel(x: fx.Tensor, rows: fx.Int32):
    if fx.block_idx.x < rows:
        x[fx.block_idx.x, fx.thread_idx.x] = fx.Float32(fx.block_dim.x * fx.grid_dim.y)


@flyc.jit
def sizes(
    x: fx.Tensor,
    rows: fx.Int32,
    stream: fx.Stream = fx.Stream(None),  # noqa: B008
):
    """A kernel that reads its sizes, which the runtime passes as hidden arguments."""
    sizes_kernel(x, rows).launch(grid=(rows, 3, 1), block=(64, 1, 1), stream=stream)


SAMPLE_SCALARS = {
    "scale": (2.0, 8, 2),
    "scale_twice": (2.0, 8),
    "scale_in_clusters": (2.0, 8),
    "sizes": (8,),
}
