"""What tuning chose: the offline config files of `flydsl.autotune`, as choices of a kernel.

FlyDSL (`flydsl.autotune`, 0.3.1 to 0.5.0) writes one JSON file for each tuned call, into
FLYDSL_AUTOTUNE_CONFIG_DIR: `version` 1, `identity` (the tuner's `name`, the `key` values of the
call, the `device` with name, arch and compute_units) and the chosen `config`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyc_cli.manifest.messages import shown
from flyc_cli.manifest.source import Spot
from runtime_loader.checked import canonical_json

# The key of a table that holds the device's number of compute units.
UNITS = "units"
_VERSION = 1
_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Choice:
    """For calls with these `keys` on this processor, the tuner chose `config`."""

    processor: str
    keys: Mapping[str, Any]
    config: Mapping[str, Any]
    file: str


def read_choices(directory: Path, pattern: str, spot: Spot) -> tuple[tuple[Choice, ...], str]:
    """The choices of all files that match, in order of name, and the SHA-256 (hex) of them all."""
    try:
        paths = sorted(path for path in directory.glob(pattern) if path.is_file())
    except (NotImplementedError, ValueError):
        spot.fail(f"{shown(pattern)} is not a pattern of files beside the manifest")
    if not paths:
        spot.fail(f"no file {shown(pattern)} beside the manifest")
    digest = hashlib.sha256()
    choices: dict[bytes, Choice] = {}
    for path in paths:
        data = path.read_bytes()
        digest.update(data)
        choice = _choice(path.name, data, spot)
        key = canonical_json([choice.processor, choice.keys])
        other = choices.setdefault(key, choice)
        if other is not choice and other.config != choice.config:
            spot.fail(
                f"{other.file} and {choice.file} are for the same call, and chose differently"
            )
        if set(choice.keys) != set(next(iter(choices.values())).keys):
            spot.fail(f"{choice.file} has other keys than {paths[0].name}")
    return tuple(choices.values()), digest.hexdigest()


def _choice(name: str, data: bytes, spot: Spot) -> Choice:
    try:
        if len(data) > _MAX_BYTES:
            raise ValueError("it is too large")
        record = json.loads(data)
        if record["version"] != _VERSION:
            raise ValueError(f"its version is {record['version']!r:.20}, not {_VERSION}")
        identity, config = record["identity"], record["config"]
        device, keys = identity["device"], dict(identity["key"])
        if UNITS in keys:
            raise ValueError(f"its key {UNITS!r} is what flyc calls the device's compute units")
        keys[UNITS] = device["compute_units"]
        canonical_json([keys, config])
        return Choice(str(device["arch"]).partition(":")[0], keys, dict(config), name)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        spot.fail(f"{name} is not an offline config of flydsl.autotune: {what}")
