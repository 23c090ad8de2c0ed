"""Options and parameter types that the commands share, with their shell completion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from runtime_loader.target import SUPPORTED, Target, TargetError

if TYPE_CHECKING:
    from flyc_cli.store.files import Store

F = TypeVar("F", bound=Callable[..., Any])
_COMPLETIONS = 200


class TargetType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """A target ID, such as gfx942 or gfx942:xnack-."""

    name = "target"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Target:
        try:
            return Target.parse(str(value)).check_supported()
        except TargetError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(name) for name in SUPPORTED if name.startswith(incomplete)]


class AssignmentType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """NAME=VALUE, as a pair of texts."""

    name = "name=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, separator, text = str(value).partition("=")
        if not separator or not name:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, text


def json_option(command: F) -> F:
    """`--json`: one JSON document on stdout, errors included."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON document (errors too) on stdout."
    )(command)


def kernels_option(command: F) -> F:
    """`--kernel PATTERN`, as often as wanted."""
    return click.option(
        "--kernel",
        "kernels",
        multiple=True,
        metavar="PATTERN",
        help="Only kernels whose name matches (a shell pattern; may be repeated).",
    )(command)


def targets_option(command: F) -> F:
    """`--target TARGET` of a manifest, as often as wanted."""
    return click.option(
        "--target",
        "targets",
        multiple=True,
        type=TargetType(),
        help="Only this target of the manifest (may be repeated).",
    )(command)


def jobs_option(command: F) -> F:
    """`-j N`."""
    return click.option(
        "-j",
        "--jobs",
        type=click.IntRange(min=1),
        metavar="N",
        help="Compile N at a time. [default: what cores and memory allow]",
    )(command)


def rocm_option(command: F) -> F:
    """`--rocm DIR`."""
    return click.option(
        "--rocm",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="DIR",
        help="Link with the ROCm installation in DIR instead of what pip installed.",
    )(command)


def llvm_option(command: F) -> F:
    """`--llvm DIR`."""
    return click.option(
        "--llvm",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="DIR",
        help="Emit code objects with the LLVM/MLIR installation in DIR instead of FlyDSL's own.",
    )(command)


def cache_dir_option(command: F) -> F:
    """`--cache-dir DIR`."""
    return click.option(
        "--cache-dir",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="The store. [default: $FLYC_CACHE_DIR, or flyc in the user's cache directory]",
    )(command)


def remote_cache_options(command: F) -> F:
    """`--remote-cache URL` and `--remote-cache-mode`."""
    command = click.option(
        "--remote-cache-mode",
        type=click.Choice(["read", "read-write"]),
        default="read-write",
        show_default=True,
        help="Whether what is built goes to the remote cache too.",
    )(command)
    return click.option(
        "--remote-cache",
        metavar="URL",
        envvar="FLYC_REMOTE_CACHE",
        help="A cache that machines share, by Bazel's HTTP protocol. [default: "
        "$FLYC_REMOTE_CACHE, or none]",
    )(command)


def cluster_options(command: F) -> F:
    """`--scheduler dask://HOST:PORT` and `--assume-shared-sources`."""
    command = click.option(
        "--assume-shared-sources",
        is_flag=True,
        help="The cluster's workers see the same files at the same paths: send no sources.",
    )(command)
    return click.option(
        "--scheduler",
        metavar="dask://HOST:PORT",
        help="Compile on the workers of a Dask cluster instead of here.",
    )(command)


def store_in(directory: Path | None) -> Store:
    """The store in `directory`, or else in the default place; a usage error if there is none."""
    from flyc_cli.store.files import store_at

    store = store_at(directory)
    if store is None:
        raise click.UsageError("there is no home directory for the store: give --cache-dir DIR")
    return store


def kernel_argument(required: bool) -> Callable[[F], F]:
    """KERNEL and NAME=VALUE ...: which specialisation."""

    def decorate(command: F) -> F:
        command = click.argument(
            "params", nargs=-1, type=AssignmentType(), shell_complete=_complete_params,
            metavar="[NAME=VALUE]...",
        )(command)  # fmt: skip
        return click.argument("kernel", required=required, shell_complete=_complete_kernel)(command)

    return decorate


def assignments_of(pairs: tuple[tuple[str, str], ...], what: str) -> dict[str, str]:
    """Pairs as a mapping; a usage error when a name is given twice."""
    found: dict[str, str] = {}
    for name, text in pairs:
        if name in found:
            raise click.UsageError(f"{what} {name} is given twice")
        found[name] = text
    return found


def _complete_kernel(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from flyc_cli.inspect.completion import kernel_names

    names = kernel_names(ctx.params.get("path"))
    return [CompletionItem(name) for name in names if name.startswith(incomplete)][:_COMPLETIONS]


def _complete_params(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from flyc_cli.inspect.completion import parameter_values

    values = parameter_values(ctx.params.get("path"), ctx.params.get("kernel"))
    return [CompletionItem(text) for text in values if text.startswith(incomplete)][:_COMPLETIONS]
