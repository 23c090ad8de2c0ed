"""`flyc inspect`: look into a bundle, or compile one specialisation to look at its stages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from flyc_cli.commands.options import (
    TargetType,
    assignments_of,
    cache_dir_option,
    json_option,
    kernel_argument,
    llvm_option,
    rocm_option,
)
from runtime_loader.target import Target

if TYPE_CHECKING:
    from flyc_cli.inspect.question import Wish


@click.command(short_help="Look into a bundle, or at the stages of one specialisation.")
@click.argument("path", type=click.Path(path_type=Path))
@kernel_argument(required=False)
@click.option("--target", type=TargetType(), help="Only this target.")
@click.option("--stage", metavar="NAME", help="Print one stage, such as traced, llvm-ir or isa.")
@click.option("--stages", is_flag=True, help="List the stages.")
@click.option("--diff", is_flag=True, help="Print what each stage changed, as unified diffs.")
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, writable=True, path_type=Path),
    metavar="DIR",
    help="Write all stages, the launch plan and the code object into DIR.",
)
@click.option("--plan", is_flag=True, help="Print only the launch plan.")
@click.option("--table", is_flag=True, help="Print the kernel's tuned table.")
@rocm_option
@llvm_option
@click.option("--no-cache", is_flag=True, help="Compile, whatever the store has.")
@cache_dir_option
@json_option
def inspect(
    path: Path,
    kernel: str | None,
    params: tuple[tuple[str, str], ...],
    target: Target | None,
    stage: str | None,
    stages: bool,
    diff: bool,
    output: Path | None,
    plan: bool,
    table: bool,
    rocm: Path | None,
    llvm: Path | None,
    no_cache: bool,
    cache_dir: Path | None,
    as_json: bool,
) -> None:
    """Show what is in PATH: a bundle, one kernel of it, or one specialisation in full.

    NAME=VALUE and --target narrow the choice. Stages are in bundles that were built with --stages;
    when PATH is a manifest, the chosen specialisation is compiled and its stages are shown.

    \b
    flyc inspect out/quickstart.flybundle
    flyc inspect out/quickstart.flybundle rmsnorm
    flyc inspect out/quickstart.flybundle rmsnorm N=4096 dtype=bf16 --target gfx942
    flyc inspect manifest.yaml rmsnorm N=4096 dtype=bf16 --target gfx942 --stage isa
    """
    from flyc_cli.inspect.question import Question, answer
    from flyc_cli.output import show, show_json
    from flyc_cli.store.files import store_at
    from flyc_cli.views.inspect import answer_json, answer_parts

    question = Question(
        path=path,
        kernel=kernel,
        given=assignments_of(params, "parameter"),
        target=target,
        wish=_wish(
            plan=plan,
            stage=stage is not None,
            stages=stages,
            files=output is not None,
            diff=diff,
            table=table,
        ),
        stage=stage or "",
        directory=output or Path(),
        rocm=rocm,
        llvm=llvm,
        storage=None if no_cache else store_at(cache_dir),
    )
    found = answer(question)
    if as_json:
        show_json(answer_json(found))
    else:
        for part in answer_parts(found):
            show(part)


def _wish(**asked: bool) -> Wish:
    wishes: list[Wish] = ["plan", "stage", "stages", "files", "diff", "table"]
    chosen = [wish for wish in wishes if asked[wish]]
    if len(chosen) > 1:
        raise click.UsageError(
            "--plan, --table, --stage, --stages, --diff and -o exclude each other"
        )
    return chosen[0] if chosen else "all"
