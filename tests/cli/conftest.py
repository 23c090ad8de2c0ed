"""Fixtures of the command's tests: ways to run `flyc`, made-up bundles, a manifest that builds."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flyc_cli.main import cli
from tests.cli.samples import KERNELS, MANIFEST, made_up_bundle

ROOT = Path(__file__).parents[2]

Finished = subprocess.CompletedProcess[str]


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run `flyc` in this process, which is quick; stdout and stderr are kept apart."""
    monkeypatch.setenv("FLYC_TRACEBACK", "")

    def run(*args: object) -> Result:
        result = CliRunner().invoke(cli, [str(arg) for arg in args])
        assert isinstance(result.exception, SystemExit | None), result.exception
        assert "Traceback" not in result.output
        return result

    return run


@pytest.fixture(scope="session")
def flyc() -> Callable[..., Finished]:
    """Run `flyc` in a process of its own; `prelude` is Python code that runs before it."""

    def run(
        *args: object, prelude: str = "", env: dict[str, str] | None = None, **options: object
    ) -> Finished:
        code = f"{prelude}\nfrom flyc_cli.main import main\nmain()"
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
        environment.pop("FLYC_TRACEBACK", None)
        result = subprocess.run(
            [sys.executable, "-c", code, *map(str, args)],
            capture_output=True,
            text=True,
            env=environment,
            timeout=300,
            check=False,
            **options,  # type: ignore[call-overload]
        )
        assert "Traceback" not in result.stdout + result.stderr
        return result

    return run


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up bundle without stages."""
    return made_up_bundle(tmp_path_factory.mktemp("bundle"), stages=False)


@pytest.fixture(scope="session")
def staged_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same bundle with stages."""
    return made_up_bundle(tmp_path_factory.mktemp("staged"), stages=True)


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a manifest that builds and its kernel module; not to be changed."""
    directory = tmp_path_factory.mktemp("project")
    (directory / "kernels.py").write_text(KERNELS)
    (directory / "manifest.yaml").write_text(MANIFEST)
    return directory


@pytest.fixture(scope="session")
def built(
    flyc: Callable[..., Finished], project: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Finished]:
    """The directory that the project was built into, with stages, and the run that did it."""
    out = tmp_path_factory.mktemp("built")
    return out, flyc("build", project / "manifest.yaml", "-o", out, "--stages", "-j", 2)


@pytest.fixture(scope="session")
def base_install(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment for `python -S` that has what a plain `pip install flyc` brings, only."""
    directory = tmp_path_factory.mktemp("base")
    for name in ("click", "rich", "PyYAML", "zstandard", "markdown-it-py", "mdurl", "Pygments"):
        distribution = importlib.metadata.distribution(name)
        for entry in {file.parts[0] for file in distribution.files or () if ".." not in file.parts}:
            link = directory / entry
            if not link.exists():
                link.symlink_to(distribution.locate_file(entry))
    environment = {"PATH": os.environ["PATH"], "FLYC_HIP_LIBRARY": "/nonexistent.so"}
    return {**environment, "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}"}
