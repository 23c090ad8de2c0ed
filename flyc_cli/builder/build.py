"""From a manifest to a bundle: the functions that the commands and programs call."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flyc_cli.builder.budgets import over_budget
from flyc_cli.builder.failures import (
    BuildError,
    IncompleteError,
    MissingWarning,
    OverBudgetError,
    missing_text,
)
from flyc_cli.builder.jobs import default_jobs
from flyc_cli.builder.merge import merge_outcomes
from flyc_cli.builder.scratch import scratch_directory
from flyc_cli.builder.servers import WorkerError, worker_environment
from flyc_cli.builder.supervisor import RETRIES, Built, Failed, compile_all
from flyc_cli.builder.tables import collect_tables
from flyc_cli.builder.toolchain import (
    flydsl_directory,
    installed_compiler,
    open_toolkit,
    provenance,
)
from flyc_cli.builder.unchanged import Unchanged
from flyc_cli.builder.watch import SILENT, Watcher
from flyc_cli.bundle_writer import BundleContents, WrittenBundle, write_bundle
from flyc_cli.compression import Compression
from flyc_cli.frontends.versions import warn_if_unchecked
from flyc_cli.manifest import Manifest, Request, expand, load_manifest
from flyc_cli.manifest.model import NO_LIMITS, Limits
from flyc_cli.store.artifacts import Artifacts
from flyc_cli.store.files import Store
from flyc_cli.store.toolchain import identify_toolchain
from mlir_passes.toolkit import Toolkit
from runtime_loader.target import Target

if TYPE_CHECKING:
    from flyc_cli.builder.scheduler import Cluster
    from flyc_cli.store.remote_settings import Remote


@dataclass(frozen=True)
class Workers:
    """How a build goes about its work; nothing of this changes what is built.

    `storage` is where earlier builds are found and this one is kept; None builds everything.
    `remote` is a cache behind it that machines share, `cluster` where jobs run instead of here.
    `limits` go before those of the manifest; `retries` is how often a specialisation whose worker
    died is tried again.
    """

    storage: Store | None = None
    remote: Remote | None = None
    cluster: Cluster | None = None
    limits: Limits = NO_LIMITS
    retries: int = RETRIES


ALONE = Workers()


@dataclass(frozen=True)
class Planned:
    """A checked manifest and the specialisations that are wanted of it, in its order."""

    manifest: Manifest
    requests: tuple[Request, ...]


@dataclass(frozen=True)
class Compiled:
    """Specialisations that compiled, and the toolkit that they were linked with.

    `failed` are those that may be missing: configurations of tuned kernels that did not compile
    though others of the kernel did, or whatever failed if any may be missing.
    """

    built: tuple[Built, ...]
    toolkit: Toolkit
    failed: tuple[Failed, ...] = ()


def plan(
    manifest: Path | Manifest, kernels: Sequence[str] = (), targets: Sequence[Target] = ()
) -> Planned:
    """What `manifest` (a file, or one that was read) asks for, without importing FlyDSL or kernels.

    `kernels` are patterns of kernel names and `targets` the targets to keep; empty means all.
    Raises `ManifestError`, and `SelectionError` where a pattern or target matches nothing.
    """
    loaded = manifest if isinstance(manifest, Manifest) else load_manifest(manifest)
    return Planned(loaded, expand(loaded, list(kernels) or None, list(targets) or None))


def compile_planned(
    planned: Planned,
    *,
    jobs: int | None = None,
    stages: bool = False,
    rocm: Path | None = None,
    llvm: Path | None = None,
    watcher: Watcher = SILENT,
    workers: Workers = ALONE,
    allow_missing: bool = False,
) -> Compiled:
    """Compile every specialisation of `planned`, `jobs` at a time.

    `stages` keeps the text of every lowering stage. `rocm` is a ROCm installation to link with
    instead of the one that the manifest names, or the libraries that came with pip; `llvm` is an
    LLVM/MLIR installation that emits the code objects instead of the one that the manifest names,
    or FlyDSL's own. Raises
    `BuildError` when a specialisation fails (after trying them all) that is not one of several
    configurations of a tuned kernel (with `allow_missing`, when all fail), `WorkerError` and
    `ToolkitError` when nothing can be compiled here.
    """
    tools = _tools(planned.manifest, rocm, llvm)
    with _opened(tools, workers) as (toolkit, artifacts):
        return _compile(
            planned, tools, toolkit, artifacts, jobs=jobs, stages=stages, watcher=watcher,
            workers=workers, allow_missing=allow_missing,
        )  # fmt: skip


# The ROCm and the LLVM installations to use, where others than what pip installed are.
_Tools = tuple[Path | None, Path | None]


def _tools(manifest: Manifest, rocm: Path | None, llvm: Path | None) -> _Tools:
    return rocm or manifest.toolchain.rocm, llvm or manifest.toolchain.llvm


@contextmanager
def _opened(tools: _Tools, workers: Workers) -> Iterator[tuple[Toolkit, Artifacts | None]]:
    """The toolkit, and what the store has of it."""
    rocm, llvm = tools
    with scratch_directory() as scratch:
        toolkit = open_toolkit(rocm, scratch, llvm)
        yield toolkit, open_artifacts(workers.storage, toolkit, workers.remote)


def _compile(
    planned: Planned,
    tools: _Tools,
    toolkit: Toolkit,
    artifacts: Artifacts | None,
    *,
    jobs: int | None,
    stages: bool,
    watcher: Watcher,
    workers: Workers,
    allow_missing: bool,
) -> Compiled:
    watcher.begin(planned.requests)
    build_them: Any = compile_all
    if workers.cluster is not None:
        from flyc_cli.builder.cluster import build_on_cluster

        build_them = partial(build_on_cluster, workers.cluster, tools)
    outcomes = merge_outcomes(
        build_them(
            planned.requests,
            toolkit=toolkit,
            jobs=jobs or default_jobs(),
            capture=stages,
            artifacts=artifacts,
            limits=workers.limits,
            retries=workers.retries,
            watcher=watcher,
        )
    )
    built = tuple(outcome for outcome in outcomes if isinstance(outcome, Built))
    failed = tuple(outcome for outcome in outcomes if isinstance(outcome, Failed))
    works = {(b.entry, b.request.target, b.request.where) for b in built}
    if (
        failed
        and not (allow_missing and built)
        and not all(
            f.optional and (f.entry, f.request.target, f.request.where) in works for f in failed
        )
    ):
        raise BuildError(failed, len(outcomes))
    return Compiled(built, toolkit, failed)


def open_artifacts(
    storage: Store | None, toolkit: Toolkit, remote: Remote | None = None
) -> Artifacts | None:
    """What `storage`, and a remote cache behind it, have of the installed toolchain."""
    if storage is None:
        return None
    environment = worker_environment(os.environ)
    toolchain = identify_toolchain(storage, toolkit, flydsl_directory(), environment)
    if remote is None:
        return Artifacts(storage, toolchain, environment)
    from flyc_cli.store.layers import Layers
    from flyc_cli.store.remote import RemoteCache

    cache = RemoteCache(remote)
    shared = Layers(storage, cache, shared_first=True)
    layers = Layers(storage, cache, fetched=shared.fetched)
    return Artifacts(layers, toolchain, environment, shared, shared.fetched)


def build(
    manifest: Path | Manifest,
    directory: Path,
    *,
    kernels: Sequence[str] = (),
    targets: Sequence[Target] = (),
    jobs: int | None = None,
    stages: bool = False,
    rocm: Path | None = None,
    llvm: Path | None = None,
    watcher: Watcher = SILENT,
    workers: Workers = ALONE,
    allow_missing: bool = False,
    compression: Compression = "zstd",
    each: bool = False,
) -> WrittenBundle:
    """Build the bundle of `manifest` into `directory`: all that is asked for, or nothing.

    `compression="raw"` stores code objects as they are, to be loaded from where they are mapped.
    With `allow_missing` the bundle is written without what failed; `meta["missing"]` names it, and
    `MissingWarning` says so. Otherwise, configurations of a tuned kernel that do not compile are
    left out, and `IncompleteError` says so once the bundle with the others is there. Raises
    `OverBudgetError` when one takes more than the manifest's `budgets`, and writes nothing then.

    Where the store knows that nothing has changed since the bundle that `directory` has, that is
    returned as it is, unless `each` specialisation is to be looked at.

    The arguments are those of `plan` and `compile_planned`, and so are the errors; `FlycError`
    also when the bundle cannot be written. Warns (`FlydslVersionWarning`) about a FlyDSL that flyc
    was not checked on.
    """
    if not isinstance(manifest, Manifest):
        manifest = load_manifest(manifest)
    try:
        compiler = installed_compiler()
    except WorkerError:
        plan(manifest, kernels, targets)  # what is wrong with the manifest comes first
        raise
    warn_if_unchecked(compiler.flydsl)
    options = {
        "kernels": list(kernels),
        "targets": list(map(str, targets)),
        "stages": stages,
        "rocm": rocm,
        "llvm": llvm,
        "compression": compression,
    }
    tools = _tools(manifest, rocm, llvm)
    with _opened(tools, workers) as (toolkit, artifacts):
        origin = provenance(compiler, toolkit, manifest.sha256)
        before = Unchanged(artifacts, manifest, options, origin) if artifacts else None
        known = before.find(directory) if before and not each else None
        if known is not None:
            watcher.unchanged(known.specialisations)
            return known
        planned = plan(manifest, kernels, targets)
        compiled = _compile(
            planned, tools, toolkit, artifacts, jobs=jobs, stages=stages, watcher=watcher,
            workers=workers, allow_missing=allow_missing,
        )  # fmt: skip
    previous = directory / f"{planned.manifest.name}.flybundle"
    over = over_budget(compiled.built, previous)
    if over:
        watcher.over_budget(over)
        raise OverBudgetError(over, len(compiled.built) + len(compiled.failed))
    contents = BundleContents(
        name=planned.manifest.name,
        meta={"provenance": origin, **_missing(compiled.failed)},
        specialisations=[built.specialisation for built in compiled.built],
        code_objects={b.specialisation.code_object: b.code_object for b in compiled.built},
        stages={b.specialisation.key(): b.stages for b in compiled.built} if stages else {},
        parameter_order={b.request.kernel: tuple(b.request.params) for b in compiled.built},
        tables=collect_tables(planned.manifest, compiled.built),
    )
    written = write_bundle(directory, contents, compression=compression, jobs=jobs)
    if compiled.failed and allow_missing:
        warnings.warn(missing_text(compiled.failed, written.path), MissingWarning, stacklevel=2)
    elif compiled.failed:
        asked = len(compiled.built) + len(compiled.failed)
        raise IncompleteError(compiled.failed, asked, written)
    elif before is not None:
        with suppress(OSError):  # the store has been told of already
            before.keep(compiled.built, written)
    return written


def _missing(failed: Sequence[Failed]) -> dict[str, Any]:
    """What a bundle says of the specialisations that it was asked to hold and does not."""
    if not failed:
        return {}
    missing = [
        {"kernel": f.request.kernel, "params": f.request.params, "target": str(f.request.target)}
        for f in failed
    ]
    return {"missing": missing}
