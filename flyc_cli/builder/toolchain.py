"""What a build compiles with, found out without importing FlyDSL, and how a bundle records it."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flyc_cli.builder.supervisor import WorkerError
from mlir_passes.external_llvm import find_external_llvm
from mlir_passes.toolkit import Toolkit, assemble_toolkit, rocm_toolkit
from mlir_passes.version import LOWERING_VERSION

# The library that holds FlyDSL's LLVM and MLIR; its suffix is LLVM's version.
_LLVM_LIBRARY = "libFlyPythonCAPI.so"
_MISSING = "Install it with: pip install 'flyc[compiler]'; `flyc doctor` says what is missing"


@dataclass(frozen=True)
class Compiler:
    """The installed FlyDSL, and the LLVM inside it: its version and its library's SHA-256."""

    flydsl: str
    llvm: str
    llvm_sha256: str


def flyc_version() -> str:
    """The version of this flyc; that of a bare source tree is `0+source`."""
    try:
        return importlib.metadata.version("flyc")
    except importlib.metadata.PackageNotFoundError:
        return "0+source"


def installed_compiler() -> Compiler:
    """Find FlyDSL. Raises `WorkerError` when it is not installed, or damaged."""
    spec = importlib.util.find_spec("flydsl")
    try:
        distribution = importlib.metadata.distribution("flydsl")
    except importlib.metadata.PackageNotFoundError:
        raise WorkerError(f"FlyDSL is not installed here. {_MISSING}") from None
    if spec is None or not spec.submodule_search_locations:
        raise WorkerError(f"FlyDSL {distribution.version} cannot be found here. {_MISSING}")
    directory = Path(spec.submodule_search_locations[0]) / "_mlir" / "_mlir_libs"
    libraries = sorted(directory.glob(f"{_LLVM_LIBRARY}*"))
    if not libraries:
        raise WorkerError(
            f"FlyDSL {distribution.version} is damaged: {directory} has no {_LLVM_LIBRARY}. "
            "Reinstall it"
        )
    llvm = libraries[0].name.removeprefix(_LLVM_LIBRARY).lstrip(".") or "unknown"
    return Compiler(distribution.version, llvm, _sha256(distribution, libraries[0]))


def flydsl_directory() -> Path:
    """The directory of FlyDSL's package. Raises `WorkerError` when it is not installed."""
    spec = importlib.util.find_spec("flydsl")
    if spec is None or not spec.submodule_search_locations:
        raise WorkerError(f"FlyDSL is not installed here. {_MISSING}")
    return Path(spec.submodule_search_locations[0])


def open_toolkit(rocm: Path | None, scratch: Path, llvm: Path | None = None) -> Toolkit:
    """The ROCm installation at `rocm`, or else a toolkit assembled in `scratch`.

    With `llvm`, the LLVM/MLIR installation there emits the code objects.
    """
    toolkit = assemble_toolkit(scratch) if rocm is None else rocm_toolkit(rocm.absolute())
    if llvm is None:
        return toolkit
    external = find_external_llvm(llvm.absolute())
    return replace(toolkit, identity=toolkit.identity | external.identity, llvm=external)


def provenance(compiler: Compiler, toolkit: Toolkit, manifest_sha256: str) -> dict[str, Any]:
    """What a bundle says of its origin; nothing in it tells the machine or the time."""
    return {
        "flyc": flyc_version(),
        "flydsl": compiler.flydsl,
        "llvm": {"version": compiler.llvm, "sha256": compiler.llvm_sha256},
        "toolkit": toolkit.identity,
        "lowering": LOWERING_VERSION,
        "manifest_sha256": manifest_sha256,
    }


def _sha256(distribution: importlib.metadata.Distribution, library: Path) -> str:
    """As the wheel's RECORD states it (the library is a quarter of a gigabyte), or computed."""
    for entry in distribution.files or ():
        if entry.name == library.name and entry.hash and entry.hash.mode == "sha256":
            value = entry.hash.value
            return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()
    with library.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
