"""A FlyDSL that flyc was not checked on: a warning, and one message where it lacks something."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.compile

ROOT = Path(__file__).parents[2]

# Python runs this at start: FlyDSL's module loses a name as soon as it is imported.
_WITHOUT_A_SEAM = """
import importlib.machinery
import sys


class Finder:
    def find_spec(self, name, path, target=None):
        if name != "flydsl.compiler.jit_function":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def execute_and_forget(module):
            execute(module)
            del module._run_pipeline

        spec.loader.exec_module = execute_and_forget
        return spec


sys.meta_path.insert(0, Finder())
"""


def _build(directory: Path, python_path: Path) -> subprocess.CompletedProcess[str]:
    manifest = ROOT / "manifests" / "gelu" / "manifest.yaml"
    options = ["-o", directory, "--target", "gfx942", "--quiet"]
    return subprocess.run(
        [sys.executable, "-m", "flyc_cli", "build", manifest, *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{python_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_unknown_version_warns(tmp_path: Path) -> None:
    metadata = tmp_path / "flydsl-9.9.9.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: flydsl\nVersion: 9.9.9\n")
    result = _build(tmp_path / "out", tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stderr.startswith(
        "Warning: FlyDSL 9.9.9 is not a version that flyc was checked on (0.3.1, "
    )
    assert (tmp_path / "out" / "gelu.flybundle").exists()


def test_a_missing_seam_names_it_and_the_version(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(_WITHOUT_A_SEAM)
    result = _build(tmp_path / "out", tmp_path)
    assert result.returncode == 3
    assert result.stderr.startswith(
        "Error: FlyDSL 0.5.0 lacks what flyc builds on: flydsl.compiler.jit_function has no "
        "_run_pipeline. Install one that flyc was checked on: 0.3.1, "
    )
