"""Kernels linked with external device code: linked into the bundle, and hooks by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import runtime_loader as rt
from flyc_cli import Kernel, Manifest, build
from flyc_cli.builder.failures import BuildError
from runtime_loader import hip, modules, post_load
from runtime_loader.bundle_file import BundleFile
from runtime_loader.catalogue import Catalogue
from tests.hip_device.device import HipTestDevice

pytestmark = [pytest.mark.compile, pytest.mark.device]

ROOT = Path(__file__).parents[2]
ARGS = {"x": {"pointer": "f32"}, "out": {"pointer": "f32"}, "n": "i32"}
HOOK = "externs:set_factor"

OTHER = """
from externs import make_scale as make

def with_lambda(library):
    import externs
    externs.set_factor = lambda module: None
    return make(library)
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("extern")
    source = (ROOT / "docs" / "examples" / "externs.py").read_text()
    (directory / "externs.py").write_text(source)
    (directory / "other.py").write_text(OTHER)
    command = [sys.executable, "-m", "tests.compile.device_library", "gfx942"]
    subprocess.run([*command, str(directory / "library.bc")], check=True, cwd=ROOT)
    return directory


@pytest.fixture(scope="module")
def bundle(directory: Path) -> Path:
    kernels = [
        Kernel(
            name,
            factory="externs:make_scale",
            kwargs={"library": "library.bc", "hook": hook},
            args=ARGS,
        )
        for name, hook in (("scale", True), ("plain", False))
    ]
    manifest = Manifest("extern", kernels=kernels, targets=["gfx942"])
    written = build(manifest, directory / "out", base=directory, stages=True)
    return written.path


@pytest.fixture
def device(hip_library: Path, monkeypatch: pytest.MonkeyPatch) -> HipTestDevice:
    monkeypatch.setenv(hip.LIBRARY_VARIABLE, str(hip_library))
    monkeypatch.setattr(hip, "_runtime", None)
    monkeypatch.setattr(post_load, "_functions", {})
    monkeypatch.setattr(modules, "_modules", {})
    device = HipTestDevice(hip_library)
    device.configure("gfx942:sramecc+:xnack-", "gfx942:sramecc+:xnack-")
    device.set_recording(True)
    return device


def test_the_code_object_is_fully_linked(bundle: Path) -> None:
    file = BundleFile.open(bundle, verify="open")
    for name, hooks in (("scale", (HOOK,)), ("plain", ())):
        (spec,) = Catalogue(file).specialisations(name)
        assert spec.post_load == hooks
        isa = str(file.stage(spec.key(), "isa"))
        assert ".globl\tfactor" in isa  # for hipModuleGetGlobal
        assert "v_mul_f32" in isa
        assert "s_swappc" not in isa


def test_a_kernel_with_a_hook_loads_once_it_is_registered(
    bundle: Path, device: HipTestDevice
) -> None:
    kernels = rt.load(bundle)
    with pytest.raises(rt.PostLoadError, match=r"scale\(.*register_post_load\('externs:set_fa"):
        kernels.kernel("scale")
    assert not device.launches()
    seen: list[tuple[int, int]] = []
    rt.register_post_load(
        HOOK, lambda module: seen.append((module, hip.runtime().current_device()))
    )
    kernels.kernel("scale")(4096, 8192, 100)
    kernels.kernel("scale")(4096, 8192, 100)
    rt.load(bundle).kernel("scale")
    assert [ordinal for _, ordinal in seen] == [0]
    kernels.kernel("scale", device=1)
    assert [ordinal for _, ordinal in seen] == [0, 1]
    assert len({module for module, _ in seen}) == 2
    assert 0 not in {module for module, _ in seen}
    assert len(device.launches()) == 2


def test_a_kernel_without_a_hook_needs_none(bundle: Path, device: HipTestDevice) -> None:
    rt.load(bundle).kernel("plain")(4096, 8192, 100)
    assert len(device.launches()) == 1


def test_a_hook_that_fails_is_tried_again(bundle: Path, device: HipTestDevice) -> None:
    calls: list[int] = []

    def hook(module: int) -> None:
        calls.append(module)
        if len(calls) == 1:
            raise OSError("no memory for the factor")

    rt.register_post_load(HOOK, hook)
    kernels = rt.load(bundle)
    with pytest.raises(OSError, match="no memory for the factor"):
        kernels.kernel("scale")
    kernels.kernel("scale")(4096, 8192, 100)
    assert len(calls) == 2
    assert calls[0] == calls[1]


def test_preloading_needs_the_hook_too(bundle: Path, device: HipTestDevice) -> None:
    kernels = rt.load(bundle)
    with pytest.raises(rt.PostLoadError, match="externs:set_factor"):
        kernels.preload()
    rt.register_post_load(HOOK, lambda module: None)
    assert kernels.preload() == 2


def test_what_cannot_be_bundled(directory: Path) -> None:
    (directory / "damaged.bc").write_bytes(b"BC\xc0\xdehello")
    kernels = [
        Kernel("unnamed", factory="other:with_lambda", kwargs={"library": "library.bc"}, args=ARGS),
        Kernel("missing", factory="externs:make_scale", kwargs={"library": "none.bc"}, args=ARGS),
        Kernel(
            "damaged", factory="externs:make_scale", kwargs={"library": "damaged.bc"}, args=ARGS
        ),
    ]
    with pytest.raises(BuildError) as caught:
        build(
            Manifest("bad", kernels=kernels, targets=["gfx942"]), directory / "out", base=directory
        )
    said = {f.request.kernel: f.message for f in caught.value.failures}
    assert "define it with def at the top" in said["unnamed"]
    assert "none.bc" in said["missing"]
    assert "damaged.bc" in said["damaged"]
