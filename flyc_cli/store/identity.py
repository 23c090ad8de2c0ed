"""The one encoding of a request that keys are made of: everything that it holds, told apart.

Whatever a request holds is part of its keys unless it is named here as something that cannot
change what is built; a value of a kind that is not known here is an error, not a guess.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flyc_cli.manifest.model import Request
from runtime_loader.target import Target

# Where a request was written, the table rows that lead to it, and what it may take; and the
# directories of `python_path`, whose contents are dependencies (`flyc_cli.store.dependencies`).
NOT_KEYED = frozenset({"where", "rows", "limits", "budget", "python_path"})

_KEYED = tuple(f.name for f in dataclasses.fields(Request) if f.name not in NOT_KEYED)

# Raise it when records are written differently: older ones are not found any more.
_FORMAT = b"flyc store 1"


def request_text(request: Request) -> bytes:
    """`request` as canonical JSON. The folders of `python_path` are named without their parents,
    so that another checkout has the same keys."""
    held = {name: encoded(getattr(request, name)) for name in _KEYED}
    folders = [os.path.basename(os.path.abspath(path)) for path in request.python_path]  # noqa: PTH100, PTH119
    return canonical_json({**held, "folders": folders})


def encoded(value: Any) -> Any:
    """`value` as JSON, such that different values have different JSON."""
    if value is None or (isinstance(value, bool | int | float | str) and not _is_enum(value)):
        return value
    if isinstance(value, Target):
        return {"target": str(value)}
    if isinstance(value, enum.Enum):
        return {"enum": f"{type(value).__qualname__}.{value.name}"}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, Path):
        return {"path": str(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {"is": type(value).__name__, **{n: encoded(getattr(value, n)) for n in names}}
    if isinstance(value, Mapping):
        return {"pairs": [[encoded(key), encoded(item)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [encoded(item) for item in value]}
    if isinstance(value, list):
        return [encoded(item) for item in value]
    if isinstance(value, set | frozenset):
        return {"set": sorted((encoded(item) for item in value), key=canonical_json)}
    match_args = getattr(type(value), "__match_args__", None)
    if match_args:
        return {"is": type(value).__name__, **{n: encoded(getattr(value, n)) for n in match_args}}
    raise TypeError(f"a request holds {type(value).__name__}, which has no place in its key")


def canonical_json(value: Any) -> bytes:
    """One encoding of JSON data, by the standard library's C code: a build makes thousands."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def key_of(purpose: str, *parts: bytes | str) -> str:
    """A key (64 hex digits) for these parts; keys of different purposes never meet."""
    digest = hashlib.sha256(_FORMAT)
    for part in (purpose, *parts):
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def _is_enum(value: object) -> bool:
    return isinstance(value, enum.Enum)
