"""`flyc build`: compile what a manifest lists and write one bundle."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flyc_cli.commands.options import (
    cache_dir_option,
    cluster_options,
    jobs_option,
    kernels_option,
    llvm_option,
    remote_cache_options,
    rocm_option,
    store_in,
    targets_option,
)
from flyc_cli.commands.sizes import SizeType
from runtime_loader.target import Target

if TYPE_CHECKING:
    from flyc_cli.compression import Compression


report_option = click.option(
    "--report",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Write what became of each specialisation, and what it took, as JSON.",
)
timeline_option = click.option(
    "--timeline",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Write when each worker did what, as a trace that Perfetto opens.",
)


@click.command(short_help="Compile a manifest into a bundle.")
@click.argument("manifest", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, writable=True, path_type=Path),
    default=Path(),
    metavar="DIR",
    help="Where the bundle goes. [default: the current directory]",
)
@jobs_option
@kernels_option
@targets_option
@click.option("--no-cache", is_flag=True, help="Build everything, and keep nothing in the store.")
@cache_dir_option
@remote_cache_options
@cluster_options
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Stop a specialisation that takes longer. [default: the manifest's limits, or none]",
)
@click.option(
    "--memory-limit",
    type=SizeType(),
    metavar="SIZE",
    help="Stop a specialisation that uses more (2GB). [default: the manifest's limits, or none]",
)
@click.option(
    "--retries",
    type=click.IntRange(min=0),
    metavar="N",
    default=2,
    show_default=True,
    help="Try again this often when a worker dies; a compile error is never tried again.",
)
@click.option(
    "--allow-missing", is_flag=True, help="Write the bundle without what does not compile."
)
@click.option(
    "--compression",
    type=click.Choice(["zstd", "raw"]),
    default="zstd",
    show_default=True,
    help="Store code objects compressed, or raw: larger, but loaded without decompression.",
)
@click.option("--stages", is_flag=True, help="Keep every stage of the lowering in the bundle.")
@report_option
@timeline_option
@rocm_option
@llvm_option
@click.option(
    "--json", "as_json", is_flag=True, help="Print events as JSON, one a line; the result is last."
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def build(
    manifest: Path,
    output: Path,
    jobs: int | None,
    kernels: tuple[str, ...],
    targets: tuple[Target, ...],
    no_cache: bool,
    cache_dir: Path | None,
    remote_cache: str | None,
    remote_cache_mode: str,
    scheduler: str | None,
    assume_shared_sources: bool,
    timeout: float | None,
    memory_limit: int | None,
    retries: int,
    allow_missing: bool,
    compression: Compression,
    stages: bool,
    report: Path | None,
    timeline: Path | None,
    rocm: Path | None,
    llvm: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Compile every specialisation that MANIFEST lists and write them as one bundle.

    No GPU is needed. The bundle is DIR/<name>-<id>.flybundle, and DIR/<name>.flybundle links to it.
    Nothing is written unless everything compiles (but for configurations of tuned kernels), or
    --allow-missing. What earlier builds made of the same inputs is taken from the store.
    """
    from flyc_cli.annotations import annotate
    from flyc_cli.builder.build import Workers
    from flyc_cli.builder.build import build as build_bundle
    from flyc_cli.builder.failures import BuildError, IncompleteError
    from flyc_cli.builder.report import Events, Tracker, write_json
    from flyc_cli.builder.watch import Several
    from flyc_cli.manifest.model import Limits
    from flyc_cli.output import show, show_json_line
    from flyc_cli.progress import build_progress
    from flyc_cli.views.build import bundle_line, written_json

    remote = cluster = None
    if scheduler:
        from flyc_cli.builder.scheduler import Cluster

        cluster = Cluster(scheduler, assume_shared_sources)
    if remote_cache:
        from flyc_cli.store.remote_settings import Remote

        if no_cache:
            raise click.UsageError("--no-cache leaves no store for --remote-cache to fill")
        remote = Remote.at(remote_cache, read_only=remote_cache_mode == "read")
    tracker = Tracker()
    telling = [Events(show_json_line)] if as_json else []
    written = None
    for path in (report, timeline):
        if path is not None:
            path.open("a").close()  # rather now than after all the work
    how = "failed"
    try:
        with build_progress(quiet or as_json) as progress:
            written = build_bundle(
                manifest,
                output,
                kernels=kernels,
                targets=targets,
                jobs=jobs,
                stages=stages,
                rocm=rocm,
                llvm=llvm,
                watcher=Several([tracker, progress, *telling]),
                workers=Workers(
                    storage=None if no_cache else store_in(cache_dir),
                    remote=remote,
                    cluster=cluster,
                    limits=Limits(timeout, memory_limit),
                    retries=retries,
                ),
                allow_missing=allow_missing,
                compression=compression,
                each=report is not None or timeline is not None,
            )
        how = "ok"
    except BuildError as error:
        if isinstance(error, IncompleteError):
            written = error.written
        failures = error.failures
        _keep_going(lambda: annotate(failures, output, quiet=quiet or as_json))
        raise
    except KeyboardInterrupt:
        how = "interrupted"
        raise
    finally:
        bundle = written_json(written)["bundle"] if written else None
        if report is not None:
            _keep_going(lambda: write_json(report, tracker.report(bundle)))
        if timeline is not None:
            _keep_going(lambda: write_json(timeline, tracker.timeline()))
        if written and not (quiet or as_json):
            show(bundle_line(written))
        if (tracker.outcomes or tracker.found) and not (quiet or as_json):
            show(tracker.last_line(how))
    _keep_going(lambda: annotate((), output, quiet=quiet or as_json))
    if as_json:
        show_json_line(written_json(written))


def _keep_going(write: Callable[[], None]) -> None:
    """What only tells of a build must not hide what became of it."""
    try:
        write()
    except OSError as error:
        warnings.warn(f"{error.filename} cannot be written: {error.strerror}", stacklevel=2)
