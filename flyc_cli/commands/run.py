"""`flyc run`: launch one specialisation on this machine's device."""

from __future__ import annotations

from pathlib import Path

import click

from flyc_cli.commands.options import (
    AssignmentType,
    assignments_of,
    json_option,
    kernel_argument,
)


@click.command(short_help="Launch one specialisation on generated inputs and time it.")
@click.argument("path", metavar="BUNDLE", type=click.Path(path_type=Path))
@kernel_argument(required=True)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    type=AssignmentType(),
    metavar="ARG=AxBxC",
    help="Extents of a tensor, or elements of a buffer. [default: 128 for dynamic extents]",
)
@click.option(
    "--set",
    "values",
    multiple=True,
    type=AssignmentType(),
    metavar="ARG=VALUE",
    help="The value of a scalar. [default: 1]",
)
@click.option(
    "--iterations", type=click.IntRange(min=1), default=100, metavar="N", show_default=True,
    help="Timed launches.",
)  # fmt: skip
@click.option("--device", type=click.IntRange(min=0), metavar="N", help="The device's ordinal.")
@json_option
def run(
    path: Path,
    kernel: str,
    params: tuple[tuple[str, str], ...],
    shapes: tuple[tuple[str, str], ...],
    values: tuple[tuple[str, str], ...],
    iterations: int,
    device: int | None,
    as_json: bool,
) -> None:
    """Launch one specialisation of KERNEL on generated inputs, and print how long it takes.

    A smoke test for servers: it selects, checks and launches as a program would, and computes
    nothing that is looked at. Floats are random, integer tensors are zero.

    \b
    flyc run quickstart.flybundle rmsnorm N=4096 dtype=bf16 --shape x=128x4096 \\
        --shape out=128x4096 --set rows=128
    """
    from flyc_cli.output import show, show_json
    from flyc_cli.smoke.run import run as run_kernel
    from flyc_cli.views.smoke import run_json, run_text

    report = run_kernel(
        path,
        kernel,
        assignments_of(params, "parameter"),
        shapes=assignments_of(shapes, "--shape"),
        values=assignments_of(values, "--set"),
        iterations=iterations,
        device=device,
    )
    if as_json:
        show_json(run_json(report))
    else:
        show(run_text(report))
