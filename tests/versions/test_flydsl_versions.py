"""The samples build with every FlyDSL that flyc is checked on, and launch alike.

`make test-flydsl-versions` makes an environment for each version, without torch, and runs this.
Built is the quickstart manifest, which has every sample kernel, for one CDNA and one RDNA target.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings

from flyc_cli.manifest import expand, load_manifest
from runtime_loader import hip
from runtime_loader.bundle_file import BundleFile
from runtime_loader.errors import ArgumentError, PlanError
from runtime_loader.kernel import Kernel
from runtime_loader.loader import load
from runtime_loader.target import Target
from tests.hip_device.build import build
from tests.hip_device.device import HipTestDevice
from tests.launch.oracle_arguments import STREAM, Drawn, arguments

ROOT = Path(__file__).parents[2]
VERSIONS = os.environ["FLYDSL_VERSIONS"].split()
MANIFEST = ROOT / "manifests" / "quickstart" / "manifest.yaml"
TARGETS = ("gfx942", "gfx1201")


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HipTestDevice]:
    library = build(tmp_path_factory.mktemp("hip"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(hip.LIBRARY_VARIABLE, str(library))
        patch.setattr(hip, "_runtime", None)
        test_device = HipTestDevice(library)
        test_device.configure(*TARGETS)
        yield test_device
        test_device.reset()


@pytest.fixture(scope="module")
def built_here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle that the FlyDSL of this environment makes."""
    return _build(Path(sys.executable), tmp_path_factory.mktemp("here"))


def _build(python: Path, directory: Path) -> Path:
    targets = [option for target in TARGETS for option in ("--target", target)]
    command = [python, "-m", "flyc_cli", "build", MANIFEST, "-o", directory, *targets]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return directory / "quickstart.flybundle"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_samples_build_and_launch_alike(
    version: str, built_here: Path, device: HipTestDevice, tmp_path: Path
) -> None:
    python = ROOT / ".venv-flydsl" / version / "bin" / "python"
    path = _build(python, tmp_path)
    file = BundleFile.open(path, verify="open")
    assert file.meta["provenance"]["flydsl"] == version
    file.close()
    compared = 0
    with load(path) as theirs, load(built_here) as ours:
        assert theirs.kernels() == ours.kernels()
        for name in theirs.kernels():
            for spec in theirs.specialisations(name):
                ordinal = TARGETS.index(str(spec.target))
                _compare(
                    theirs.kernel(name, device=ordinal, **spec.params),
                    ours.kernel(name, device=ordinal, **spec.params),
                    device,
                )
                compared += 1
    assert compared == len(expand(load_manifest(MANIFEST), None, list(map(Target.parse, TARGETS))))


def _compare(kernel: Kernel, reference: Kernel, device: HipTestDevice) -> None:
    """Both take the same arguments and launch the same of them, on the device too."""
    signature = kernel.specialisation.signature
    assert signature == reference.specialisation.signature

    @settings(max_examples=10, derandomize=True, deadline=None)
    @given(arguments(signature))
    def launch(drawn: list[Drawn]) -> None:
        values = [None if d.value is STREAM else d.value for d in drawn]
        try:
            expected = reference.launches(*values)
        except (ArgumentError, PlanError) as refused:
            with pytest.raises(type(refused)):
                kernel.launches(*values)
            return
        assert kernel.launches(*values) == expected

    device.check("hipSetDevice", kernel.device.ordinal)
    launch()
