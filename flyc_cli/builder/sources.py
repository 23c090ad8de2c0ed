"""The sources of kernels, packed for a machine that does not have them."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flyc_cli.builder.outcomes import Failed
from flyc_cli.manifest.model import Request
from runtime_loader.errors import FlycError

MAX_BYTES = 1 << 28
_LEFT_OUT = frozenset({"__pycache__", "node_modules"})
# Archives are the same for the same files: the times of entries say nothing.
_EPOCH = (1980, 1, 1, 0, 0, 0)


class SourcesError(FlycError):
    """The sources of a build cannot be sent to another machine."""


@dataclass(frozen=True)
class Packed:
    """A directory, or a single file, as a zip archive; `path` is where it is here."""

    path: str
    sha256: str
    data: bytes


def pack(requests: Sequence[Request]) -> dict[str, Packed]:
    """The directories of `python_path` and the files that these requests name, by path.

    Hidden directories and caches are left out. Raises `SourcesError` when it is too much.
    """
    paths = dict.fromkeys(path for request in requests for path in _paths(request))
    packed: dict[str, Packed] = {}
    left = MAX_BYTES
    for path in paths:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, file in _files(path):
                data = file.read_bytes()
                left -= len(data)
                if left < 0:
                    raise SourcesError(
                        f"{path} and the other directories of python_path hold more than "
                        f"{MAX_BYTES >> 20} MiB, too much to send with a build; name smaller ones, "
                        "or use --assume-shared-sources where the workers see the same files"
                    )
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), data)
        content = buffer.getvalue()
        packed[path] = Packed(path, hashlib.sha256(content).hexdigest(), content)
    return packed


def unpack(packed: Packed, directory: Path) -> str:
    """Put a packed path below `directory`, once for each content; returns where it is there.

    It has the same last name as it has at home, which keys of the store hold.
    """
    home = directory / packed.sha256[:32]
    if not home.exists():
        aside = directory / f"{packed.sha256[:32]}.{os.getpid()}"
        with zipfile.ZipFile(io.BytesIO(packed.data)) as archive:
            archive.extractall(aside / Path(packed.path).name)
        try:
            aside.rename(home)
        except OSError:  # another thread was first
            if not home.exists():
                raise
    place = home / Path(packed.path).name
    inner = place / Path(packed.path).name
    return str(inner if inner.is_file() and len(list(place.iterdir())) == 1 else place)


def moved(request: Request, places: Mapping[str, str]) -> Request:
    """The request with its paths as they are on another machine."""
    source = request.source
    if source.file:
        source = replace(source, file=places[source.file])
    return replace(
        request, source=source, python_path=tuple(places[path] for path in request.python_path)
    )


def moved_back(failed: Failed, request: Request, places: Mapping[str, str]) -> Failed:
    """A failure elsewhere, told with the paths of here."""

    def here(text: str) -> str:
        for home, away in places.items():
            text = text.replace(away, home)
        return text

    places_of_source = tuple((here(file), line) for file, line in failed.source)
    return replace(failed, message=here(failed.message), source=places_of_source)


def _paths(request: Request) -> Iterator[str]:
    yield from request.python_path
    if request.source.file:
        yield request.source.file


def _files(path: str) -> Iterator[tuple[str, Path]]:
    root = Path(path)
    if root.is_file():
        yield root.name, root
        return
    for directory, names, files in os.walk(root):
        names[:] = sorted(n for n in names if n not in _LEFT_OUT and not n.startswith("."))
        for name in sorted(files):
            file = Path(directory) / name
            if file.is_file():
                yield str(file.relative_to(root)), file
