"""Finds a whole build that need not be made again: its bundle is there, and nothing has changed.

A record under the manifest, the options, the toolchain and the origin that the bundle tells of
names what all specialisations together were made from (the lists and states of
`flyc_cli.store.artifacts`, raw inputs) and the bundle that came of it. If each of those is as it
was, and the bundle too, byte for byte, that is the result.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import zstandard

from flyc_cli.builder.outcomes import Built
from flyc_cli.bundle_writer import WrittenBundle
from flyc_cli.manifest import Manifest
from flyc_cli.store.artifacts import Artifacts
from flyc_cli.store.identity import canonical_json, encoded, key_of
from flyc_cli.store.paths import FLYC
from runtime_loader.checked import Fields
from runtime_loader.errors import BundleError

_CHUNK = 1 << 20


class Unchanged:
    """What a store knows of one manifest, built with these options into bundles."""

    def __init__(
        self,
        artifacts: Artifacts,
        manifest: Manifest,
        options: Mapping[str, Any],
        origin: Mapping[str, Any],
    ) -> None:
        self._artifacts = artifacts
        self._key = key_of(
            "build",
            canonical_json(dict(origin)),
            str(manifest.directory.resolve()),
            canonical_json(encoded(dict(options))),
            artifacts.toolchain.tracing_key(),
            _own_sources(),
            " ".join(sorted(zstandard.backend_features)),
            zstandard.__version__,
        )

    def find(self, directory: Path) -> WrittenBundle | None:
        """The bundle in `directory` that a build would write again."""
        value = self._artifacts.storage.record(self._key)
        if value is None:
            return None
        # A record may come from elsewhere, and say anything.
        with contextlib.suppress(OSError, BundleError, ValueError, TypeError, LookupError):
            held = json.loads(value)
            written = _read_written(Fields(held["bundle"], "a record of the store"), directory)
            if (
                written.link.resolve() == written.path.resolve()
                and written.path.stat().st_size == written.size
                and all(_sha256(Path(file)) == digest for file, digest in held["files"])
                and all(self._artifacts.unchanged(*used) for used in held["used"])
                and _sha256(written.path) == held["sha256"]
            ):
                return written
        return None

    def keep(self, built: Sequence[Built], written: WrittenBundle) -> None:
        """Remember a build that lacks nothing. Raises `OSError`."""
        used = self._artifacts.used()
        if used is None:
            return
        sources = {(b.request.source.file, b.request.source.file_sha256) for b in built}
        held = {
            "bundle": {**vars(written), "path": written.path.name, "link": written.link.name},
            "sha256": _sha256(written.path),
            "files": sorted(list(pair) for pair in sources if pair[0]),
            "used": used,
        }
        self._artifacts.storage.put_record(self._key, canonical_json(held))


def _read_written(fields: Fields, directory: Path) -> WrittenBundle:
    names = ("size", "specialisations", "kernels", "code_objects", "deduplicated")
    return WrittenBundle(
        path=directory / Path(fields.text("path")).name,
        link=directory / Path(fields.text("link")).name,
        id=fields.text("id"),
        **{name: fields.integer(name) for name in names},
    )


def _own_sources() -> str:
    """This flyc: whatever expands, writes and compresses."""
    digest = hashlib.sha256()
    for package in ("flyc_cli", "runtime_loader", "mlir_passes"):
        for path in sorted((Path(FLYC) / package).rglob("*.py")):
            digest.update(str(path.relative_to(FLYC)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
