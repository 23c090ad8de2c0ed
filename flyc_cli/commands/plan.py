"""`flyc plan`: list what a manifest would build."""

from __future__ import annotations

from pathlib import Path

import click

from flyc_cli.commands.options import json_option, kernels_option, targets_option
from runtime_loader.target import Target


@click.command(short_help="List what a manifest would build.")
@click.argument("manifest", type=click.Path(path_type=Path))
@kernels_option
@targets_option
@json_option
def plan(
    manifest: Path, kernels: tuple[str, ...], targets: tuple[Target, ...], as_json: bool
) -> None:
    """List every specialisation that MANIFEST asks for.

    The manifest is checked as far as that goes without its kernel modules, which are not imported.
    """
    from flyc_cli.builder.build import plan as plan_build
    from flyc_cli.output import show, show_json
    from flyc_cli.views.build import plan_json, plan_summary, plan_table

    planned = plan_build(manifest, kernels, targets)
    if as_json:
        show_json(plan_json(planned))
    else:
        show(plan_table(planned.requests))
        show(plan_summary(planned.requests))
