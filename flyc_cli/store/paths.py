"""Names of files that mean the same on another machine: relative to folders that a build knows.

A path below a folder of the request's `python_path` is `<0>/…`, one in the environment that Python
runs in is `<prefix>/…`, one of this flyc's sources is `<flyc>/…`; any other is absolute.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

FLYC = str(Path(__file__).parents[2])


class Roots:
    """Turns absolute paths into names and back, for one request's `python_path`."""

    def __init__(self, python_path: Sequence[str]) -> None:
        named = [(os.path.abspath(path), f"<{i}>") for i, path in enumerate(python_path)]  # noqa: PTH100
        named += [(sys.prefix, "<prefix>"), (sys.base_prefix, "<base>"), (FLYC, "<flyc>")]
        # The innermost folder names a path; of two names for one folder, the first does.
        self._named = sorted(named, key=lambda pair: -len(pair[0]))
        self._folders = {name: path for path, name in reversed(named)}
        self.key = tuple(python_path)

    def name(self, path: str) -> str:
        """The name of an absolute path."""
        for folder, name in self._named:
            if path == folder or path.startswith(folder.rstrip("/") + "/"):
                return name + path[len(folder.rstrip("/")) :]
        return path

    def path(self, name: str) -> str:
        """The absolute path that `name` means here."""
        if name.startswith("<"):
            folder, slash, rest = name.partition("/")
            return self._folders.get(folder, folder) + slash + rest
        return name
