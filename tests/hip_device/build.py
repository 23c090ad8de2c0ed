"""Builds the HIP test device: a shared library that stands in for libamdhip64.so.7."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

LIBRARY_NAME = "libamdhip64.so.7"
_SOURCES = Path(__file__).parent / "src"
_COMMAND = (
    "gcc", "-std=gnu11", "-O2", "-g", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden",
    "-Wall", "-Wextra", "-Wshadow", "-Werror",
    f"-Wl,-soname,{LIBRARY_NAME}", "-Wl,-z,defs",
)  # fmt: skip


def build(directory: Path) -> Path:
    """The library's path, compiled under `directory` unless the same sources were before.

    The library keeps its real name, so that its parent directory can serve as LD_LIBRARY_PATH.
    Raises `RuntimeError` with the compiler's output when gcc refuses.
    """
    sources = sorted(_SOURCES.iterdir())
    digest = hashlib.sha256(repr(_COMMAND).encode())
    for source in sources:
        digest.update(f"{source.name}\0".encode() + source.read_bytes() + b"\0")
    home = directory / digest.hexdigest()[:16]
    library = home / LIBRARY_NAME
    if library.exists():
        return library
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        output = Path(scratch) / LIBRARY_NAME
        command = [
            *_COMMAND,
            f"-Wl,--version-script={_SOURCES / 'exports.map'}",
            *(str(source) for source in sources if source.suffix == ".c"),
            "-o",
            str(output),
        ]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise RuntimeError(f"gcc could not build the HIP test device:\n{result.stderr}")
        os.replace(output, library)  # noqa: PTH105 - two builders may race; the last one wins
    return library
