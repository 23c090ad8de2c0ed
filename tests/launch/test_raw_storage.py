"""Code objects stored raw: HIP gets the mapped file itself, which stays as long as the module."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import runtime_loader as rt
from flyc_cli.bundle_writer import BundleContents, write_bundle
from runtime_loader import hip
from runtime_loader.bundle_file import BundleFile
from runtime_loader.modules import unload_unused
from tests.hip_device.device import HipTestDevice
from tests.launch.samples import specialisation
from tests.launch.test_graphs import x

pytestmark = [pytest.mark.device, pytest.mark.compile]


@pytest.fixture
def raw_bundle(tmp_path: Path, code_objects: dict[str, bytes]) -> Path:
    specs = [specialisation("gfx942", code_objects["gfx942"], N=64)]
    codes = {specs[0].code_object: code_objects["gfx942"]}
    return write_bundle(tmp_path, BundleContents("raw", {}, specs, codes), compression="raw").path


@pytest.fixture
def images(monkeypatch: pytest.MonkeyPatch, device: HipTestDevice) -> list[Any]:
    """What HIP was given to load: bytes, or an address."""
    given: list[Any] = []
    call: Callable[..., None] = hip.Hip.call

    def listen(self: hip.Hip, name: str, doing: str, *args: Any) -> None:
        if name == "hipModuleLoadData":
            given.append(args[1])
        call(self, name, doing, *args)

    monkeypatch.setattr(hip.Hip, "call", listen)
    return given


def mapped_at(path: Path) -> list[range]:
    regions = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(path)):
            start, end = line.split()[0].split("-")
            regions.append(range(int(start, 16), int(end, 16)))
    return regions


def test_hip_gets_the_mapping(device: HipTestDevice, raw_bundle: Path, images: list[Any]) -> None:
    with rt.Bundle(BundleFile.open(raw_bundle), keep=False) as bundle:
        kernel = bundle.kernel("scale")
    del bundle
    (region,) = mapped_at(raw_bundle)
    assert images[0] in region
    kernel(x(), 1, 1.0)
    assert len(device.launches()) == 2
    del kernel
    assert mapped_at(raw_bundle) == [region]
    assert unload_unused(hip.runtime()).modules == 1
    gc.collect()  # the closed bundle refers to itself
    assert mapped_at(raw_bundle) == []


def test_bundles_whose_signatures_count_are_copied(
    device: HipTestDevice, raw_bundle: Path, images: list[Any], code_objects: dict[str, bytes]
) -> None:
    with rt.Bundle(BundleFile.open(raw_bundle), copy_images=True) as bundle:
        bundle.kernel("scale")
    del bundle
    gc.collect()
    assert images == [code_objects["gfx942"]]
    assert mapped_at(raw_bundle) == []
