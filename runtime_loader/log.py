"""What the loader logs, under the name `runtime_loader`.

The logging module costs more than opening a bundle. A program that has not imported it has set up
nothing that could show a record, so then there is none.
"""

from __future__ import annotations

import sys

NAME = "runtime_loader"


def debug(message: str, *args: object) -> None:
    _log(10, message, *args)


def info(message: str, *args: object) -> None:
    _log(20, message, *args)


def warning(message: str, *args: object) -> None:
    _log(30, message, *args)


def _log(level: int, message: str, *args: object) -> None:
    logging = sys.modules.get("logging")
    if logging is not None:
        logging.getLogger(NAME).log(level, message, *args)
