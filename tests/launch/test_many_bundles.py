"""Search paths, packages that bring bundles, counters, misses, and loading ahead."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import runtime_loader as rt
from runtime_loader import search
from tests.hip_device.device import HipTestDevice
from tests.launch.samples import specialisation
from tests.launch.test_launch import Array

pytestmark = [pytest.mark.device, pytest.mark.compile]


@pytest.fixture
def two(make_bundle: Callable[..., Path], code_objects: dict[str, bytes]) -> tuple[Path, Path]:
    """Bundles that both have scale with N=64, and each something of its own."""
    code = code_objects["gfx942"]
    first = make_bundle(
        specialisation("gfx942", code, N=64), specialisation("gfx942", code, N=32), name="first"
    )
    second = make_bundle(
        specialisation("gfx942", code, N=64),
        specialisation("gfx942", code, N=128),
        specialisation("gfx942", code, kernel="rows", N=64),
        name="second",
    )
    return first, second


def test_the_first_that_has_it(device: HipTestDevice, two: tuple[Path, Path]) -> None:
    bundles = rt.load_all(two)
    assert bundles.kernels() == ["scale", "rows"]
    first, second = bundles.bundles
    assert bundles.kernel("scale", N=64) is first.kernel("scale", N=64)
    assert bundles.kernel("scale", N=128) is second.kernel("scale", N=128)
    assert bundles.kernel("rows") is second.kernel("rows")
    assert sorted(spec.params["N"] for spec in bundles.specialisations("scale")) == [32, 64, 128]
    bundles.kernel("scale", N=128)(Array(4096, (1, 128)), 1, 1.0)
    assert bundles.stats().launches == 2
    assert bundles.stats().loads == 1  # one code object, of one content


def test_shadowing_is_said(
    device: HipTestDevice, two: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "runtime_loader"):
        bundles = rt.load_all(two)
    assert bundles.shadowed == {"scale": tuple(map(str, two))}
    (record,) = caplog.records
    assert record.getMessage() == f"kernel scale of {two[0]} goes before that of {two[1]}"


def test_what_none_has(device: HipTestDevice, two: tuple[Path, Path]) -> None:
    bundles = rt.load_all(two)
    with pytest.raises(rt.MissError, match=r"no bundle has a kernel 'scala'; did you mean 'scale'"):
        bundles.kernel("scala")
    with pytest.raises(rt.MissError) as caught:
        bundles.kernel("scale", N=7)
    for name in ("first", "second"):
        assert f"{name}.flybundle" in str(caught.value)
    with pytest.raises(rt.MissError, match="has no table for 'scale'"):
        bundles.kernel_for("scale", N=7)


def test_the_environment_names_files_and_directories(
    device: HipTestDevice, two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory holds the link and, beside it, the file that it points at."""
    path = os.pathsep.join([str(two[1].parent), str(two[0]), str(two[1])])
    monkeypatch.setenv(search.PATH_VARIABLE, path)
    bundles = rt.load_all()
    assert [bundle.path for bundle in bundles.bundles] == [str(two[1]), str(two[0])]
    assert rt.load_all(two[1].parent).kernels() == ["rows", "scale"]


def test_packages_bring_bundles(
    device: HipTestDevice,
    two: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Installed, as Python sees it: a package, and metadata with entry points."""
    (tmp_path / "serving_kernels.py").write_text(
        f"PATH = {str(two[0])!r}\n\ndef paths():\n    return [{str(two[1])!r}]\n\nNOTHING = 3\n"
    )
    metadata = tmp_path / "serving_kernels-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: serving_kernels\nVersion: 1\n")
    points = metadata / "entry_points.txt"
    points.write_text("[flyc.bundles]\nb = serving_kernels:paths\na = serving_kernels:PATH\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "serving_kernels", raising=False)
    monkeypatch.delenv(search.PATH_VARIABLE, raising=False)
    assert [bundle.path for bundle in rt.load_all().bundles] == list(map(str, two))
    points.write_text("[flyc.bundles]\nbad = serving_kernels:NOTHING\n")
    with pytest.raises(rt.BundleError, match=r"entry point bad = serving_kernels:NOTHING of flyc"):
        rt.load_all()


def test_no_bundle_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(search.PATH_VARIABLE, raising=False)
    with pytest.raises(rt.BundleError, match="no bundle: FLYC_BUNDLE_PATH names none"):
        rt.load_all()
    with pytest.raises(rt.BundleError, match=f"no bundle: there is none in {tmp_path}"):
        rt.load_all(tmp_path)
    with pytest.raises(rt.BundleError, match="there is no such bundle"):
        rt.load_all([tmp_path / "missing.flybundle"])


def test_counters_and_misses(
    device: HipTestDevice, bundle_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missed: list[rt.MissError] = []
    bundle = rt.load(bundle_path, on_miss=missed.append)
    assert bundle.stats() == rt.Stats(0, 0, 0, 0)
    kernel = bundle.kernel("scale", N=64)
    for _ in range(3):
        kernel(Array(4096, (1, 64)), 1, 1.0)
    with caplog.at_level(logging.WARNING, "runtime_loader"), pytest.raises(rt.MissError):
        bundle.kernel("scale", N=65)
    with pytest.raises(rt.MissError):
        bundle.kernel_for("scale", N=65)
    assert len(missed) == 2
    assert str(missed[0]) == caplog.records[0].getMessage()
    stats = bundle.stats()
    assert (stats.loads, stats.launches, stats.misses) == (1, 6, 2)
    assert stats.bytes > 1000
    # Another bundle of the same content loads nothing.
    again = rt.load(bundle_path)
    again.kernel("scale", N=64)
    assert again.stats().loads == 0


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_loading_ahead_on_several_devices(
    device: HipTestDevice, bundle_path: Path, threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = rt.load(bundle_path)
    assert bundle.preload([0, 1, 2], threads=threads) == 2 + 2 + 2
    assert device.live_modules() == 2 + 2 + 1
    before = device.calls()["hipModuleLoadData"]
    for ordinal in (0, 1):
        bundle.kernel("scale", N=64, device=ordinal)
    with monkeypatch.context() as patch:
        patch.setattr(bundle, "read", None)  # nothing is read again
        assert bundle.preload([1, 0], ["scale"]) == 4
    assert device.calls()["hipModuleLoadData"] == before
    assert bundle.preload() == 2


def test_what_fails_first_is_raised(device: HipTestDevice, bundle_path: Path) -> None:
    bundle = rt.load(bundle_path)
    with pytest.raises(rt.MissError, match="no kernel 'nothing'"):
        bundle.preload(0, ["scale", "nothing"])
    with pytest.raises(rt.HipUnavailableError, match="there is no device 9"):
        bundle.preload([0, 9])
    device.fail("hipModuleLoadData", 2, nth=2)
    with pytest.raises(rt.HipError, match="loading code object"):
        bundle.preload([0, 1])
    assert bundle.preload([0, 1]) == 4
