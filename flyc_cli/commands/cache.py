"""`flyc cache`: what the store holds, whether it is sound, making it smaller, explaining a miss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from flyc_cli.commands.options import (
    AssignmentType,
    TargetType,
    assignments_of,
    cache_dir_option,
    json_option,
    llvm_option,
    rocm_option,
    store_in,
)
from flyc_cli.commands.sizes import AgeType, SizeType
from runtime_loader.target import Target


@click.group(short_help="Look after the store of built artifacts.")
def cache() -> None:
    """Look after the store, where builds keep what they made: $FLYC_CACHE_DIR, or flyc in the
    user's cache directory."""


@cache.command(short_help="Say what the store holds.")
@cache_dir_option
@json_option
def stats(cache_dir: Path | None, as_json: bool) -> None:
    """Count the files of the store and their sizes."""
    from flyc_cli.output import show, show_json
    from flyc_cli.store.upkeep import stats as count
    from flyc_cli.views.cache import stats_text

    found = count(store_in(cache_dir))
    if as_json:
        show_json({"store": {**vars(found), "root": str(found.root)}})
    else:
        show(stats_text(found))


@cache.command(short_help="Read everything, and remove what is damaged.")
@cache_dir_option
@json_option
def verify(cache_dir: Path | None, as_json: bool) -> int:
    """Read every file of the store. What is damaged is removed, and the exit code is 1."""
    from flyc_cli import exit_codes
    from flyc_cli.output import show, show_json
    from flyc_cli.store.upkeep import verify as check
    from flyc_cli.views.cache import verified_text

    found = check(store_in(cache_dir))
    if as_json:
        show_json({"checked": found.checked, "damaged": [str(path) for path in found.damaged]})
    else:
        show(verified_text(found))
    return exit_codes.FAILED if found.damaged else exit_codes.OK


@cache.command(short_help="Remove what was not used for long.")
@click.option("--max-size", type=SizeType(), metavar="SIZE", help="Keep at most this, as in 2GB.")
@click.option("--max-age", type=AgeType(), metavar="AGE", help="Keep what was used in 30d, 12h.")
@cache_dir_option
@json_option
def prune(
    max_size: int | None, max_age: float | None, cache_dir: Path | None, as_json: bool
) -> None:
    """Remove the least recently used files."""
    from flyc_cli.output import show, show_json
    from flyc_cli.store.upkeep import prune as remove
    from flyc_cli.views.cache import pruned_text

    if max_size is None and max_age is None:
        raise click.UsageError("say how much to keep: --max-size SIZE, --max-age AGE, or both")
    done = remove(store_in(cache_dir), max_size=max_size, max_age=max_age)
    if as_json:
        show_json(dict(vars(done)))
    else:
        show(pruned_text(done))


@cache.command(short_help="Say why an artifact would be built again.")
@click.argument("manifest", type=click.Path(path_type=Path))
@click.argument("kernel")
@click.argument("params", nargs=-1, type=AssignmentType(), metavar="[NAME=VALUE]...")
@click.option("--target", type=TargetType(), help="Only this target.")
@rocm_option
@llvm_option
@cache_dir_option
@json_option
def why(
    manifest: Path,
    kernel: str,
    params: tuple[tuple[str, str], ...],
    target: Target | None,
    rocm: Path | None,
    llvm: Path | None,
    cache_dir: Path | None,
    as_json: bool,
) -> None:
    """Say of each specialisation of KERNEL whether the store has it; if not, which file, variable
    or version differs from the nearest earlier build."""
    from flyc_cli.builder.explain import explain
    from flyc_cli.output import show, show_json
    from flyc_cli.views.cache import answer_json, answer_text

    given: dict[str, Any] = assignments_of(params, "parameter")
    answers = explain(
        manifest, kernel, given, target, rocm=rocm, llvm=llvm, storage=store_in(cache_dir)
    )
    if as_json:
        show_json({"specialisations": [answer_json(answer) for answer in answers]})
    else:
        for answer in answers:
            show(answer_text(answer))
