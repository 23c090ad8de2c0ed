"""`flyc diff`: what changed between two bundles."""

from __future__ import annotations

from pathlib import Path

import click

from flyc_cli.commands.options import json_option
from flyc_cli.exit_codes import FAILED


@click.command(short_help="Show what changed between two bundles.")
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option("--exit-code", is_flag=True, help="End in 1 if anything changed.")
@json_option
@click.pass_context
def diff(context: click.Context, old: Path, new: Path, exit_code: bool, as_json: bool) -> None:
    """Compare the specialisations of the bundles OLD and NEW.

    Each is identical, has the same code in another code object, is changed (with what its kernels
    take before and now), has another interface (arguments, launch plan), or was added or removed.
    """
    from flyc_cli.inspect.diff import diff_bundles
    from flyc_cli.output import show, show_json
    from flyc_cli.views.diff import diff_json, diff_parts

    found = diff_bundles(old, new)
    if as_json:
        show_json(diff_json(found))
    else:
        for part in diff_parts(found):
            show(part)
    if exit_code and found.differs:
        context.exit(FAILED)
