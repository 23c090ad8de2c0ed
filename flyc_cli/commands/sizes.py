"""Parameter types of amounts: sizes in bytes, ages in seconds."""

from __future__ import annotations

import re
from typing import Any

import click

from flyc_cli.text import parse_byte_size

_AGE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


class SizeType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """Bytes, as in 512, 700MB or 2GiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        size = parse_byte_size(str(value))
        if size is None:
            self.fail(f"{value!r} is not a size such as 700MB or 2GB", param, ctx)
        return size


class AgeType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """Seconds, as in 90s, 12h or 30d."""

    name = "age"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        match = _AGE.fullmatch(str(value))
        if match is None:
            self.fail(f"{value!r} is not an age such as 12h or 30d", param, ctx)
        return float(match[1]) * _SECONDS[match[2]]
