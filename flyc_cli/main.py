"""The `flyc` command: its subcommands, and how an error becomes one message and an exit code."""

from __future__ import annotations

import io
import json
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from flyc_cli import exit_codes
from flyc_cli.commands.build import build
from flyc_cli.commands.cache import cache
from flyc_cli.commands.diff import diff
from flyc_cli.commands.doctor import doctor
from flyc_cli.commands.inspect import inspect
from flyc_cli.commands.plan import plan
from flyc_cli.commands.run import run
from flyc_cli.commands.sign import sign, verify
from flyc_cli.commands.targets import targets
from flyc_cli.output import ReaderGoneError, printable
from runtime_loader.errors import FlycError

# Set it to see where an error that flyc did not expect came from.
_TRACEBACK = "FLYC_TRACEBACK"


class _Flyc(click.Group):
    """Ends every run in a documented exit code, and never in a traceback."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        _write_any_text(sys.stdout)
        _write_any_text(sys.stderr)
        try:
            status = super().main(
                given, prog_name or "flyc", complete_var, standalone_mode=False, **extra
            )
        except ReaderGoneError:
            sys.exit(exit_codes.READER_GONE)
        except (click.Abort, KeyboardInterrupt):
            click.echo("interrupted", err=True)
            sys.exit(exit_codes.INTERRUPTED)
        except Exception as error:
            if os.environ.get(_TRACEBACK):
                raise
            sys.exit(_report(error, as_json="--json" in given))
        sys.exit(status if isinstance(status, int) else exit_codes.OK)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # click takes this for its own stdout and would exit with 1, silently.
            raise OSError(f"a process that flyc talks to has ended ({error.strerror})") from error


@click.group(
    "flyc",
    cls=_Flyc,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done; 1 something did not compile; 2 bad input; 3 the environment lacks "
    "something; 4 the bundle lacks something; 130 interrupted.",
)
@click.version_option(package_name="flyc", message="flyc %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Compile FlyDSL kernels ahead of time into one deployable bundle.

    In CI, `flyc build manifest.yaml` writes a .flybundle, with no GPU. On a server, runtime_loader
    launches its kernels, with no compiler. `flyc inspect` shows what is inside.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(exit_codes.BAD_INPUT)


for command in (build, plan, inspect, diff, run, sign, verify, targets, doctor, cache):
    cli.add_command(command)


def main() -> NoReturn:
    """Run `flyc` with the arguments of this process, and exit."""
    warnings.showwarning = _show_warning
    cli.main()
    raise AssertionError("cli.main returned")


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    click.echo(printable(f"Warning: {message}"), err=True)


def _report(error: Exception, *, as_json: bool) -> int:
    """Say what went wrong, on stderr or as the JSON document; returns the exit code."""
    kind = type(error).__name__
    hint = ""
    if isinstance(error, click.ClickException):
        code, message = exit_codes.BAD_INPUT, error.format_message()
        context = getattr(error, "ctx", None)
        if context is not None:
            hint = f"\nTry '{context.command_path} --help'."
    else:
        code = exit_codes.exit_code(error)
        message = str(error)
        if code == exit_codes.DEFECT:
            message = (
                f"internal error: {kind}: {message}\nThis is a defect of flyc; set {_TRACEBACK}=1 "
                "to see where, and report it"
            )
        elif not isinstance(error, FlycError):
            message = f"the system refused: {message}"
    if as_json:
        click.echo(json.dumps({"error": _details(error, kind, code, message)}))
    else:
        click.echo(printable(f"Error: {message}{hint}"), err=True)
    return code


def _details(error: Exception, kind: str, code: int, message: str) -> dict[str, Any]:
    from flyc_cli.builder.failures import BuildError, failure_json
    from flyc_cli.manifest import ManifestError

    details: dict[str, Any] = {"kind": kind, "message": message, "exit_code": code}
    if isinstance(error, ManifestError):
        place = error.place
        details |= {"file": place.file, "line": place.line, "column": place.column}
    if isinstance(error, BuildError):
        details["message"] = error.summary()
        details["failures"] = [failure_json(failed) for failed in error.failures]
    return details


def _write_any_text(stream: Any) -> None:
    """Let text outside of the terminal's encoding be escaped rather than fail."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
