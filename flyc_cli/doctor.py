"""What this machine has for building and for running bundles, and what to do about the rest."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flyc_cli.builder.supervisor import WorkerError
from flyc_cli.builder.toolchain import flyc_version, installed_compiler, open_toolkit
from flyc_cli.frontends.versions import CHECKED_VERSIONS, checked_versions
from runtime_loader import hip
from runtime_loader.errors import FlycError, HipError, HipUnavailableError
from runtime_loader.hip import Device
from runtime_loader.target import SUPPORTED

_IMPORT = "from flyc_cli.frontends.torch_standin import *; import_flydsl_without_torch()"
_IMPORT_SECONDS = 120


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    `state` is `ok`, `missing` (what `needed_for` names cannot work) or `note`; `advice` says what
    to do where `detail` does not.
    """

    name: str
    state: Literal["ok", "missing", "note"]
    detail: str
    advice: str = ""
    needed_for: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """Everything that was found, and the devices of this machine."""

    findings: tuple[Finding, ...]
    devices: tuple[Device, ...]

    @property
    def can_build(self) -> bool:
        return self._can("build")

    @property
    def can_run(self) -> bool:
        return self._can("run")

    def _can(self, what: str) -> bool:
        return not any(f.state == "missing" and what in f.needed_for for f in self.findings)


def examine() -> Diagnosis:
    """Look at everything that building and running need."""
    hip_finding, devices_finding, devices = _hip()
    return Diagnosis(
        (
            Finding("Python", "ok", f"{platform.python_version()} ({sys.executable})"),
            Finding("flyc", "ok", flyc_version()),
            Finding("zstandard", "ok", importlib.metadata.version("zstandard")),
            _flydsl(),
            _toolkit(),
            _torch(),
            hip_finding,
            devices_finding,
        ),
        devices,
    )


def _flydsl() -> Finding:
    try:
        compiler = installed_compiler()
    except WorkerError as error:
        return _missing("FlyDSL", str(error), "", "build")
    result = subprocess.run(
        [sys.executable, "-c", _IMPORT],
        capture_output=True,
        text=True,
        timeout=_IMPORT_SECONDS,
        check=False,
    )
    if result.returncode:
        reason = (result.stderr.strip().splitlines() or [f"exit status {result.returncode}"])[-1]
        detail = f"{compiler.flydsl} is installed, but cannot be imported: {reason}"
        return _missing("FlyDSL", detail, "reinstall it: pip install 'flyc[compiler]'", "build")
    detail = f"{compiler.flydsl} with LLVM {compiler.llvm}"
    if compiler.flydsl in CHECKED_VERSIONS:
        return Finding("FlyDSL", "ok", detail)
    advice = f"flyc was checked on {checked_versions()}; other versions may not work"
    return Finding("FlyDSL", "note", detail, advice)


def _toolkit() -> Finding:
    name = "linker and device libraries"
    with tempfile.TemporaryDirectory(prefix="flyc-toolkit-") as scratch:
        try:
            toolkit = open_toolkit(None, Path(scratch))
            linker = toolkit.directory / "llvm" / "bin" / "ld.lld"
            result = subprocess.run(
                [linker, "--version"], capture_output=True, text=True, check=False
            )
        except FlycError as error:
            return _missing(name, str(error), "", "build")
    if result.returncode:
        return _missing(
            name, f"the linker does not run: {result.stderr.strip()}", "reinstall it", "build"
        )
    return Finding(name, "ok", f"{toolkit.identity['linker']}: {result.stdout.strip()}")


def _torch() -> Finding:
    try:
        return Finding("torch (optional)", "ok", importlib.metadata.version("torch"))
    except importlib.metadata.PackageNotFoundError:
        detail = "not installed; only kernel modules that import it need it"
        return Finding("torch (optional)", "note", detail)


def _hip() -> tuple[Finding, Finding, tuple[Device, ...]]:
    try:
        runtime = hip.runtime()
        version = runtime.version()
        devices = tuple(runtime.device(ordinal) for ordinal in range(runtime.device_count()))
    except (HipUnavailableError, HipError) as error:
        none = _missing("devices", "none without a HIP runtime", "", "run")
        return _missing("HIP runtime", str(error), "", "run"), none, ()
    found = Finding("HIP runtime", "ok", f"{runtime.path}, version {version}")
    if not devices:
        advice = "does HIP_VISIBLE_DEVICES hide them, and may this user open /dev/kfd?"
        return found, _missing("devices", "HIP reports none", advice, "run"), ()
    lines = [
        f"{device}"
        + ("" if device.target.processor in SUPPORTED else ": flyc does not build for it")
        for device in devices
    ]
    return found, Finding("devices", "ok", "\n".join(lines)), devices


def _missing(name: str, detail: str, advice: str, what: str) -> Finding:
    return Finding(name, "missing", detail, advice, (what,))
