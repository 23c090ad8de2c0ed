"""`flyc doctor`: what is installed here, and what is missing for build or run."""

from __future__ import annotations

import click

from flyc_cli import exit_codes
from flyc_cli.commands.options import json_option


@click.command(short_help="Check what this machine can do.")
@json_option
def doctor(as_json: bool) -> int:
    """Check what this machine has for building and for running, and say what is missing.

    Exits with 0 when it can do one of the two, with 3 otherwise.
    """
    from flyc_cli.doctor import examine
    from flyc_cli.output import show, show_json
    from flyc_cli.views.machine import diagnosis_json, diagnosis_text

    found = examine()
    if as_json:
        show_json(diagnosis_json(found))
    else:
        show(diagnosis_text(found))
    return exit_codes.OK if found.can_build or found.can_run else exit_codes.ENVIRONMENT
