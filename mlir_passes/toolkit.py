"""The toolkit directory that `gpu-module-to-binary` takes its linker and device bitcode from.

FlyDSL's pass expects a ROCm layout: `llvm/bin/ld.lld` and `amdgcn/bitcode/{ocml,ockl}.bc`. The
default is assembled from the `iree-base-compiler` distribution, which ships both; a ROCm
installation is used only when asked for.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runtime_loader.errors import FlycError

if TYPE_CHECKING:
    from mlir_passes.external_llvm import ExternalLlvm

_BITCODE = ("ocml.bc", "ockl.bc")

# LLD writes its version into `.comment`; the same text for every linker keeps code objects equal.
LLD_VERSION = "flyc"


class ToolkitError(FlycError):
    """The linker or the device libraries are missing."""


@dataclass(frozen=True)
class Toolkit:
    """A usable toolkit: its directory, and what identifies it wherever it was installed.

    `llvm` is the installation of another LLVM that emits the code objects, if any.
    """

    directory: Path
    identity: dict[str, str]
    llvm: ExternalLlvm | None = None


def assemble_toolkit(directory: Path) -> Toolkit:
    """Lay out a toolkit in `directory` from the installed `iree-base-compiler`."""
    try:
        version = importlib.metadata.version("iree-base-compiler")
    except importlib.metadata.PackageNotFoundError:
        raise ToolkitError(
            "the linker and the device libraries are missing: pip install 'flyc[compiler]' "
            "(iree-base-compiler), or name a ROCm installation with --rocm DIR"
        ) from None
    libraries = _iree_libraries()
    linker = libraries / "iree-lld"
    bitcode = libraries / "iree_platform_libs" / "rocm"
    for path in (linker, *(bitcode / name for name in _BITCODE)):
        if not path.is_file():
            raise ToolkitError(f"iree-base-compiler {version} has no {path.name}: reinstall it")

    (directory / "llvm" / "bin").mkdir(parents=True, exist_ok=True)
    (directory / "amdgcn" / "bitcode").mkdir(parents=True, exist_ok=True)
    script = directory / "llvm" / "bin" / "ld.lld"
    script.write_text(f'#!/bin/sh\nexec "{linker}" -flavor gnu "$@"\n')
    script.chmod(0o755)
    for name in _BITCODE:
        link = directory / "amdgcn" / "bitcode" / name
        link.unlink(missing_ok=True)
        link.symlink_to(bitcode / name)
    identity = {"linker": f"iree-base-compiler {version} (iree-lld)"}
    return Toolkit(directory, identity | _bitcode_identity(bitcode))


def rocm_toolkit(root: Path) -> Toolkit:
    """Use the ROCm installation at `root`, identified by the bytes of what is used from it."""
    linker = root / "llvm" / "bin" / "ld.lld"
    bitcode = root / "amdgcn" / "bitcode"
    for path in (linker, *(bitcode / name for name in _BITCODE)):
        if not path.is_file():
            raise ToolkitError(f"{root} is not a usable ROCm installation: it has no {path}")
    version = subprocess.run([linker, "--version"], capture_output=True, text=True, check=False)
    identity = {
        "linker": f"ROCm {version.stdout.strip()}".strip(),
        "linker_sha256": _sha256(linker),
    }
    return Toolkit(root, identity | _bitcode_identity(bitcode))


def _bitcode_identity(directory: Path) -> dict[str, str]:
    return {f"{name}_sha256": _sha256(directory / name) for name in _BITCODE}


def _iree_libraries() -> Path:
    spec = importlib.util.find_spec("iree.compiler")
    if spec is None or not spec.submodule_search_locations:
        raise ToolkitError("iree-base-compiler is damaged (no iree.compiler): reinstall it")
    return Path(spec.submodule_search_locations[0]) / "_mlir_libs"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
