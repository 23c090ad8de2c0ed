"""What docs/api.md and docs/manifest.md show of tables is built, loaded and launched."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import runtime_loader as rt
from flyc_cli import build
from runtime_loader import hip
from tests.hip_device.device import HipTestDevice

pytestmark = [pytest.mark.compile, pytest.mark.device]

DOCS = Path(__file__).parents[2] / "docs"


def documented(page: str, containing: str) -> str:
    """The one Python block of a page with this text."""
    blocks = [part.partition("```")[0] for part in (DOCS / page).read_text().split("```python\n")]
    (found,) = [block for block in blocks[1:] if containing in block]
    return found


@pytest.fixture(scope="module")
def fills(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle that the example of docs/api.md builds."""
    directory = tmp_path_factory.mktemp("fills")
    (directory / "fills.py").write_text((DOCS / "examples" / "fills.py").read_text())
    scope: dict[str, object] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        exec(documented("api.md", "from flyc_cli import"), scope)
        assert build("manifest.yaml", "again").id == vars(scope["bundle"])["id"]
    return directory / "out" / "fills.flybundle"


@pytest.fixture
def device(hip_library: Path, monkeypatch: pytest.MonkeyPatch) -> HipTestDevice:
    monkeypatch.setenv(hip.LIBRARY_VARIABLE, str(hip_library))
    monkeypatch.setattr(hip, "_runtime", None)
    device = HipTestDevice(hip_library)
    device.configure("gfx942:sramecc+:xnack-", "gfx1100")
    device.set_recording(True)
    return device


def test_the_table_of_the_api_example_answers_and_launches(
    fills: Path, device: HipTestDevice
) -> None:
    bundle = rt.load(fills, verify="open")
    assert bundle.table("fill").keys == ("n",)
    for n, block in ((64, 64), (1, 64), (1025, 256), (4096, 256), (10**9, 256)):
        kernel = bundle.kernel_for("fill", n=n)
        assert kernel.specialisation.params == {"block": block}
        assert bundle.kernel_for("fill", n=n) is kernel
    bundle.kernel_for("fill", n=100)(4096, 0.5, 100)
    (launch,) = device.launches()
    assert (launch.grid, launch.block) == ((2, 1, 1), (64, 1, 1))
    assert launch.kernarg[:16] == struct.pack("<Qfi", 4096, 0.5, 100)


def test_what_a_table_lacks_is_explained(fills: Path, device: HipTestDevice) -> None:
    bundle = rt.load(fills)
    with pytest.raises(rt.MissError, match="table of fill has no key 'm'"):
        bundle.kernel_for("fill", m=1)
    with pytest.raises(rt.MissError, match="has no row for n=64 on gfx1100; it has no rows for"):
        bundle.kernel_for("fill", n=64, device=1)
    with pytest.raises(rt.MissError, match="has no table for 'wide_fill'"):
        bundle.table("wide_fill")
    with pytest.raises(rt.MissError, match="no kernel 'fil'; did you mean 'fill'"):
        bundle.kernel_for("fil", n=1)
    assert {spec.params["block"] for spec in bundle.specialisations("wide_fill")} == {512, 1024}
