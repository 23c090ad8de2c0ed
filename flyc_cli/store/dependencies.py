"""What a build looked at outside of its request, and what it saw: names, and the state of each.

A dependency is a kind and a name; its state is a short text that changes when what a build would
see changes. Paths are named as `flyc_cli.store.paths` does.

| kind | name | state |
|---|---|---|
| file | path | SHA-256 of the contents, `absent`, `directory`, or `unreadable` and why |
| exists | path | `absent`, `file`, `directory` or `other` |
| list | path of a directory | SHA-256 of its names, `absent`, or `unreadable` and why |
| import | directory, `:`, module name | what there is that an import of that module can find |
| environment | variable | SHA-256 of its value, or `unset` |
| environment | `*` | SHA-256 of all variables |
| distribution | name of what is installed | version and SHA-256 of its RECORD, or `absent` |
| directory | `.` | the working directory, which relative paths were taken from |
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.metadata
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from flyc_cli.store.paths import Roots
from runtime_loader.checked import canonical_json

Kind = Literal["file", "exists", "list", "import", "environment", "distribution", "directory"]
ALL_VARIABLES = "*"
ABSENT = "absent"
_SUFFIXES = tuple(importlib.machinery.all_suffixes())


class Dependency(NamedTuple):
    """One thing that a build looked at."""

    kind: Kind
    name: str


class States:
    """The present state of dependencies, each looked up once.

    `environment` is what compile workers get. One `States` serves one build: what it has seen of a
    file stays what it says.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._files: dict[tuple[str, str], str] = {}

    def of(self, dependency: Dependency, roots: Roots) -> str:
        """The state of one dependency."""
        kind, name = dependency
        if kind == "environment":
            return self._variable(name)
        if kind == "directory":
            return _working_directory()
        if kind == "distribution":
            return self._remembered(kind, name)
        if kind == "import":
            directory, _, module = name.rpartition(":")
            return self._remembered(kind, f"{roots.path(directory)}:{module}")
        return self._remembered(kind, roots.path(name))

    def of_all(self, dependencies: Sequence[Dependency], roots: Roots) -> list[str]:
        """The state of each, in order."""
        return [self.of(dependency, roots) for dependency in dependencies]

    def _variable(self, name: str) -> str:
        if name == ALL_VARIABLES:
            return _sha256(canonical_json(sorted(self._environment.items())))
        value = self._environment.get(name)
        return "unset" if value is None else _sha256(os.fsencode(value))

    def _remembered(self, kind: str, name: str) -> str:
        state = self._files.get((kind, name))
        if state is None:
            state = self._files[kind, name] = _LOOK[kind](name)
        return state


def file_state(path: str) -> str:
    """What reading `path` gives."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return hashlib.sha256(file.read()).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return ABSENT
    except IsADirectoryError:
        return "directory"
    except (OSError, ValueError) as error:
        return f"unreadable {type(error).__name__}"


def _exists_state(path: str) -> str:
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116
    except (OSError, ValueError):
        return ABSENT
    if stat.S_ISDIR(mode):
        return "directory"
    return "file" if stat.S_ISREG(mode) else "other"


def _list_state(path: str) -> str:
    try:
        return _sha256(canonical_json(sorted(os.listdir(path))))  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return ABSENT
    except OSError as error:
        return f"unreadable {type(error).__name__}"


def _import_state(name: str) -> str:
    """What the path finder of Python's import system can find: packages, then modules."""
    directory, _, module = name.rpartition(":")
    base = f"{directory}/{module}"
    found = [f"{module}{suffix}" for suffix in _SUFFIXES if os.path.isfile(base + suffix)]  # noqa: PTH113
    if os.path.isdir(base):  # noqa: PTH112
        inits = [s for s in _SUFFIXES if os.path.isfile(f"{base}/__init__{s}")]  # noqa: PTH113
        found += [f"{module}/__init__{suffix}" for suffix in inits] or [f"{module}/"]
    return " ".join(found) or ABSENT


def _distribution_state(name: str) -> str:
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return ABSENT
    record = distribution.read_text("RECORD") or ""
    return f"{distribution.version} {_sha256(record.encode())}"


_LOOK = {
    "file": file_state,
    "exists": _exists_state,
    "list": _list_state,
    "import": _import_state,
    "distribution": _distribution_state,
}


def _working_directory() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ABSENT


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
