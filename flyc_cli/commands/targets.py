"""`flyc targets`: what flyc builds for."""

from __future__ import annotations

import click

from flyc_cli.commands.options import json_option


@click.command(short_help="List the targets that flyc builds for.")
@json_option
def targets(as_json: bool) -> None:
    """List the targets that flyc builds for.

    A manifest may fix a feature, as in gfx942:xnack-; otherwise the code runs with it on or off.
    """
    from flyc_cli.output import show, show_json
    from flyc_cli.targets import supported_targets
    from flyc_cli.views.machine import targets_json, targets_table

    found = supported_targets()
    if as_json:
        show_json(targets_json(found))
    else:
        show(targets_table(found))
