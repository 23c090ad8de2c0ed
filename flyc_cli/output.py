"""Writes what commands report: rich tables on a terminal, plain lines elsewhere, or one JSON."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

# A bundle or manifest may come from anywhere: its names must not drive the terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class ReaderGoneError(Exception):
    """Nobody reads stdout any more, as in `flyc plan manifest.yaml | head`."""


@dataclass(frozen=True)
class Column:
    """One column of a table; `right` aligns numbers."""

    name: str
    right: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of text under named columns."""

    columns: tuple[Column, ...]
    rows: Sequence[Sequence[str]]


def is_terminal() -> bool:
    """Whether stdout is a terminal that can redraw."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def printable(text: str) -> str:
    """`text` with control characters (but newlines and tabs) made visible."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def show(item: str | Table) -> None:
    """Print a text or a table on stdout."""
    if isinstance(item, str):
        _echo(printable(item))
    elif is_terminal():
        _show_rich(item)
    else:
        _echo("\n".join(plain_lines(item)))


def show_json(value: Any) -> None:
    """Print the one JSON document of a `--json` run on stdout."""
    _echo(json.dumps(value, indent=2))


def show_json_line(value: Any) -> None:
    """Print a JSON document on one line of stdout."""
    _echo(json.dumps(value))


def plain_lines(table: Table) -> list[str]:
    """The table as lines: columns padded to their widest cell, two spaces apart."""
    rows = [[column.name for column in table.columns]]
    rows += [[_one_line(cell) for cell in row] for row in table.rows]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(row, widths, table.columns, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def forget_stdout() -> None:
    """Let what is still buffered go nowhere, once stdout has failed."""
    with contextlib.suppress(io.UnsupportedOperation):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _echo(text: str) -> None:
    try:
        click.echo(text)
    except BrokenPipeError:
        forget_stdout()
        raise ReaderGoneError from None
    except OSError:
        forget_stdout()
        raise


def _show_rich(table: Table) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=SIMPLE_HEAD, pad_edge=False)
    for column in table.columns:
        shown.add_column(
            Text(column.name), justify="right" if column.right else "left", overflow="fold"
        )
    for row in table.rows:
        shown.add_row(*[Text(_one_line(cell)) for cell in row])
    Console().print(shown)


def _one_line(text: str) -> str:
    return printable(text).replace("\n", " ").replace("\t", " ")
