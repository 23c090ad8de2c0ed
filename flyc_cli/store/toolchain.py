"""What compiles: the bytes of everything between a kernel module and a code object.

Libraries of hundreds of megabytes are hashed once: the store remembers the digest of a file with
its size, inode, and times of modification and change (which nothing but a write sets back). A file
that an installer placed and nobody touched since has the digest that its wheel's RECORD states.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from flyc_cli.store.dependencies import file_state
from flyc_cli.store.files import Storage
from flyc_cli.store.identity import canonical_json, key_of
from flyc_cli.store.paths import FLYC
from mlir_passes.toolkit import Toolkit
from mlir_passes.version import LOWERING_VERSION

# A file that changed within the last moments can change again without its times telling.
_SETTLED_AFTER = 3.0
# A file is as its RECORD says if the installer wrote it no later than this after the RECORD.
_INSTALLED_WITHIN = 2.0


@dataclass(frozen=True)
class ToolchainIdentity:
    """Digests by name of what traces and lowers; `why` compares them one by one.

    `lowering` has those that matter once a module is traced.
    """

    tracing: Mapping[str, str]
    lowering: Mapping[str, str]

    def tracing_key(self) -> bytes:
        """All of it, as part of an input key."""
        return canonical_json({**self.tracing, **self.lowering})

    def lowering_key(self) -> bytes:
        """What a lowering key needs of it."""
        return canonical_json(dict(self.lowering))


def identify_toolchain(
    storage: Storage, toolkit: Toolkit, flydsl: Path, environment: Mapping[str, str]
) -> ToolchainIdentity:
    """Hash what is installed. `flydsl` is FlyDSL's package directory, `environment` what compile
    workers get."""
    flyc = [
        *(Path(FLYC) / "flyc_cli" / "frontends").rglob("*.py"),
        *(Path(FLYC) / "runtime_loader").glob("*.py"),
        Path(FLYC) / "flyc_cli" / "builder" / "job.py",
        Path(FLYC) / "flyc_cli" / "manifest" / "model.py",
    ]
    passes = list((Path(FLYC) / "mlir_passes").rglob("*.py"))
    sources = list(flydsl.rglob("*.py"))
    libraries = [path for path in flydsl.rglob("*") if _is_native(path)]
    linker = list(_linker_files(toolkit))
    digests = _digests(storage, [*flyc, *passes, *sources, *libraries, *linker])

    def tree(paths: Iterable[Path], base: Path) -> str:
        return key_of(
            "tree",
            canonical_json(sorted((_relative(path, base), digests[path]) for path in paths)),
        )

    return ToolchainIdentity(
        tracing={
            "Python": sys.version,
            "PYTHONOPTIMIZE": environment.get("PYTHONOPTIMIZE", ""),
            "PYTHONPATH": environment.get("PYTHONPATH", "").replace(FLYC, "<flyc>"),
            "FlyDSL's sources": tree(sources, flydsl),
            "flyc's front end": tree(flyc, Path(FLYC)),
        },
        lowering={
            "FlyDSL's libraries": tree(libraries, flydsl),
            "linker": key_of("linker", *sorted(digests[path] for path in linker)),
            **{f"toolkit: {name}": text for name, text in toolkit.identity.items()},
            "flyc's lowering": f"{LOWERING_VERSION} {tree(passes, Path(FLYC))}",
        },
    )


def _linker_files(toolkit: Toolkit) -> Iterator[Path]:
    """The linker, its libraries beside it, and the bitcode; not the script that calls it."""
    linker = toolkit.directory / "llvm" / "bin" / "ld.lld"
    script = linker.read_bytes()[:4096] if linker.is_file() else b""
    if script.startswith(b"#!"):
        called = Path(script.decode(errors="replace").partition('"')[2].partition('"')[0])
        yield called
        yield from sorted(called.parent.glob("libIREECompiler.so*"))
    elif linker.is_file():
        yield linker.resolve()
        yield from sorted((toolkit.directory / "llvm" / "lib").glob("libLLVM*.so*"))
    # In a toolkit that was assembled these are links, in a directory of this build alone.
    bitcode = (toolkit.directory / "amdgcn" / "bitcode").glob("*.bc")
    yield from sorted(path.resolve() for path in bitcode)


def _is_native(path: Path) -> bool:
    return path.suffix in (".so", ".a", ".bc") or ".so." in path.name


def _relative(path: Path, base: Path) -> str:
    return path.relative_to(base).as_posix()


def _digests(storage: Storage, paths: list[Path]) -> dict[Path, str]:
    """The SHA-256 (hex) of each file, from memory where it is still true."""
    key = key_of("file digests", canonical_json(sorted(map(str, paths))))
    known = _read_known(storage.record(key))
    stamps = {path: _stamp(path) for path in paths}
    found = {
        path: known[str(path)][1]
        for path in paths
        if known.get(str(path), ("", ""))[0] == stamps[path]
    }
    missing = [path for path in paths if path not in found]
    if not missing:
        return found
    found |= _installed(missing)
    with ThreadPoolExecutor() as pool:
        unknown = [path for path in missing if path not in found]
        found |= dict(zip(unknown, pool.map(file_state, map(str, unknown)), strict=True))
    settled = {
        str(path): (stamps[path], found[path])
        for path in paths
        if stamps[path] == _stamp(path) and _is_settled(path)
    }
    with contextlib.suppress(OSError):  # it is only slower without
        storage.put_record(key, json.dumps(settled).encode())
    return found


def _read_known(value: bytes | None) -> dict[str, tuple[str, str]]:
    if value is None:
        return {}
    return {path: (stamp, digest) for path, (stamp, digest) in json.loads(value).items()}


def _stamp(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return ""
    times = f"{status.st_mtime_ns} {status.st_ctime_ns}"
    return f"{status.st_dev} {status.st_ino} {status.st_size} {times}"


def _is_settled(path: Path) -> bool:
    try:
        return abs(time.time() - path.stat().st_ctime) > _SETTLED_AFTER
    except OSError:
        return False


def _installed(paths: list[Path]) -> dict[Path, str]:
    """Digests that a RECORD states (PEP 376) of large files untouched since they were installed."""
    large = {path: path.stat().st_size for path in paths if path.is_file()}
    large = {path: size for path, size in large.items() if size > 1 << 20}
    found: dict[Path, str] = {}
    for name in ("flydsl", "iree-base-compiler") if large else ():
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        for entry in distribution.files or ():
            if entry.hash is None or entry.hash.mode != "sha256" or not entry.size:
                continue
            path = Path(os.path.normpath(str(distribution.locate_file(entry))))
            if large.get(path) == entry.size and _untouched(path, distribution):
                value = entry.hash.value
                found[path] = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()
    return found


def _untouched(path: Path, distribution: importlib.metadata.Distribution) -> bool:
    record = next((f for f in distribution.files or () if f.name == "RECORD"), None)
    if record is None:
        return False
    installed = Path(str(distribution.locate_file(record))).stat()
    return path.stat().st_ctime <= installed.st_ctime + _INSTALLED_WITHIN
