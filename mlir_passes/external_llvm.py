"""Another LLVM for the last stage: the `mlir-opt` of an LLVM/MLIR installation emits the binary.

As FlyDSL does with FLYDSL_COMPILE_LLVM_DIR (`flydsl.compiler.external_llvm`), only the `gpu.module`
is handed over, as text; host code stays with FlyDSL's own MLIR.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlir_passes.toolkit import ToolkitError

_TIMEOUT = 600  # seconds; FlyDSL's own
_LINES_SHOWN = 6


class ExternalLlvmError(Exception):
    """The other LLVM does not compile a module. `kept` is the file with what it was given."""

    def __init__(self, message: str, kept: Path) -> None:
        self.kept = kept
        super().__init__(message)


@dataclass(frozen=True)
class ExternalLlvm:
    """An installation: its directory, version, and what identifies it wherever it is."""

    directory: Path
    version: str
    identity: dict[str, str]

    @property
    def tool(self) -> Path:
        return self.directory / "bin" / "mlir-opt"


def find_external_llvm(directory: Path) -> ExternalLlvm:
    """The installation at `directory`, identified by the bytes of its tool and LLVM's libraries.

    Raises `ToolkitError` when it has no `bin/mlir-opt` that runs.
    """
    tool = directory / "bin" / "mlir-opt"
    if not os.access(tool, os.X_OK) or not tool.is_file():
        raise ToolkitError(
            f"{directory} is not an LLVM installation with MLIR: it has no program {tool}"
        )
    try:
        printed = _run([tool, "--version"], directory).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolkitError(f"{tool} does not run: {error}") from None
    version = next(
        (line.split()[-1] for line in printed.splitlines() if "LLVM version" in line), ""
    )
    if not version:
        raise ToolkitError(f"{tool} does not say its LLVM version")
    identity = {"llvm": f"LLVM {version} (mlir-opt)", "mlir-opt_sha256": _sha256(tool)}
    for library in _libraries(tool, directory):
        identity[f"{library.name}_sha256"] = _sha256(library)
    return ExternalLlvm(directory, version, identity)


def run_external(
    llvm: ExternalLlvm, module: str, passes: str, options: Mapping[str, bool | int | str]
) -> str:
    """Run `passes` on the text of a module and return the text after them.

    `options` are LLVM's command-line options by name. Raises `ExternalLlvmError` with the tool's
    own message for every failure, also those that it reports on stderr only; the module is kept in
    a file then, the same one for the same module.
    """
    arguments = [
        f"--{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in options.items()
    ]
    with tempfile.TemporaryDirectory(prefix="flyc-llvm-") as scratch:
        before, after = Path(scratch, "before.mlir"), Path(scratch, "after.mlir")
        before.write_text(module)
        command = [llvm.tool, before, f"--pass-pipeline={passes}", "-o", after, *arguments]
        try:
            done = _run(command, llvm.directory)
        except (OSError, subprocess.SubprocessError) as error:
            raise _failure(llvm, module, str(error)) from None
        said = done.stderr.replace(f"{before}:", "line ")
        if done.returncode or "error:" in said or not after.is_file():
            ended = f"it ended with status {done.returncode}"
            raise _failure(llvm, module, said.strip() or ended)
        return after.read_text()


def _failure(llvm: ExternalLlvm, module: str, said: str) -> ExternalLlvmError:
    lines = said.splitlines()
    first = next((i for i, line in enumerate(lines) if "error:" in line), 0)
    digest = hashlib.sha256(module.encode()).hexdigest()
    kept = Path(tempfile.gettempdir(), f"flyc-{digest[:16]}.mlir")
    kept.write_text(module)
    shown = "\n".join(line[:200] for line in lines[first : first + _LINES_SHOWN])
    return ExternalLlvmError(
        f"LLVM {llvm.version} does not compile the module:\n{shown}\n"
        f"what it was given is kept in {kept}; use the LLVM that FlyDSL has (no llvm in toolchain, "
        "no --llvm), or an installation as new as that",
        kept,
    )


def _run(command: list[Any], directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_TIMEOUT,
        check=False,
        env=_environment(directory),
    )


def _environment(directory: Path) -> dict[str, str]:
    """The tool finds its own libraries and programs first."""
    environment = dict(os.environ)
    for variable, name in (("LD_LIBRARY_PATH", "lib"), ("PATH", "bin")):
        before = environment.get(variable)
        own = str(directory / name)
        environment[variable] = own if not before else f"{own}{os.pathsep}{before}"
    return environment


def _libraries(tool: Path, directory: Path) -> list[Path]:
    """The libraries of LLVM and MLIR that ld.so(8) would load with the tool."""
    environment = {**_environment(directory), "LD_TRACE_LOADED_OBJECTS": "1"}
    traced = subprocess.run([tool], capture_output=True, text=True, check=False, env=environment)
    found = []
    for line in traced.stdout.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if arrow and name.startswith(("libLLVM", "libMLIR")):
            path = Path(rest.rpartition(" (")[0])
            if path.is_file():
                found.append(path)
    return sorted(found)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
