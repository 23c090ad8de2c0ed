"""Kernels as torch operators: traced on the CPU, launched on the HIP test device."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import runtime_loader as rt
from runtime_loader.torch import register
from tests.hip_device.device import HipTestDevice
from tests.launch.samples import ROOT, specialisation

pytestmark = [pytest.mark.device, pytest.mark.compile]


class OnDevice(torch.Tensor):
    """A tensor of the CPU that says it is on device 0; the test device takes any address."""

    @property
    def device(self) -> Any:
        return SimpleNamespace(type="cuda", index=0)


@pytest.fixture
def bundle(device: HipTestDevice, bundle_path: Path) -> Iterator[rt.Bundle]:
    with rt.load(bundle_path) as opened:
        register("flyc_test::scale", opened, "scale", mutates=["x"], N=64)
        yield opened


def test_a_call_launches(device: HipTestDevice, bundle: rt.Bundle) -> None:
    x = torch.zeros(100, 64).as_subclass(OnDevice)
    assert torch.ops.flyc_test.scale(x, 8, factor=1.5) is None
    torch.ops.flyc_test.scale(x=x, parts=8, factor=1.5)
    launches = device.launches()
    assert [launch.kernel for launch in launches] == ["scale", "pair"] * 2
    assert launches[0].kernarg == struct.pack("<Qif", x.data_ptr(), 100, 1.5)
    assert (launches[0].grid, launches[0].device) == ((13, 1, 1), 0)


def test_the_schema_says_what_is_written(bundle: rt.Bundle) -> None:
    assert str(torch.ops.flyc_test.scale.default._schema) == (
        "flyc_test::scale(Tensor(a0!) x, SymInt parts, float factor) -> ()"
    )


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch.ops.flyc_test.scale(y, 8, 1.5)
        return y + 1


def test_export_keeps_it_with_any_number_of_rows(device: HipTestDevice, bundle: rt.Bundle) -> None:
    rows = torch.export.Dim("rows", min=2, max=4096)
    exported = torch.export.export(Model(), (torch.zeros(100, 64),), dynamic_shapes=({0: rows},))
    targets = [str(n.target) for n in exported.graph.nodes if n.op == "call_function"]
    assert "flyc_test.scale.default" in targets
    # What reads y afterwards stays behind the launch.
    assert targets.index("flyc_test.scale.default") < targets.index("aten.add.Tensor")
    decomposed = exported.run_decompositions()
    assert any("scale" in str(node.args) for node in decomposed.graph.nodes), "it was dropped"
    assert device.launches() == ()


def test_compile_keeps_it_in_one_graph(device: HipTestDevice, bundle: rt.Bundle) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(Model(), backend=backend, fullgraph=True)
    with pytest.raises(rt.ArgumentError, match=r"memory of device 0 .*found cpu memory"):
        compiled(torch.zeros(100, 64))
    (graph,) = graphs
    assert "torch.ops.flyc_test.scale" in graph.code
    assert device.launches() == ()


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (torch.zeros(4, 64, dtype=torch.float16), "is torch.float16, not torch.float32"),
        (torch.zeros(4, 8, 8), "has 3 dimensions, not 2"),
        (torch.zeros(4, 65), r"has shape\[1\] = 65, not 64"),
    ],
)
def test_tracing_refuses_what_a_launch_would(
    bundle: rt.Bundle, tensor: torch.Tensor, said: str
) -> None:
    with torch._subclasses.FakeTensorMode() as mode:
        fake = mode.from_tensor(tensor)
        with pytest.raises(Exception, match=rf"scale\(N=64.*argument 'x' {said}"):
            torch.ops.flyc_test.scale(fake, 8, 1.5)


def test_what_cannot_be_an_operator(bundle: rt.Bundle) -> None:
    with pytest.raises(rt.ArgumentError, match=r"no tensor or pointer 'y' to write to; it has x"):
        register("flyc_test::wrong", bundle, "scale", mutates=["y"], N=64)
    with pytest.raises(rt.MissError, match="is several specialisations, and an operator is one"):
        register("flyc_test::wrong", bundle, "scale", mutates=["x"])
    with pytest.raises(rt.MissError, match=r"has no scale\(N=3\); it has N=128, dtype=f32"):
        register("flyc_test::wrong", bundle, "scale", mutates=["x"], N=3)
    with pytest.raises(rt.MissError, match="did you mean 'scale'"):
        register("flyc_test::wrong", bundle, "scal", mutates=["x"])


def test_registering_again_replaces(
    device: HipTestDevice,
    bundle: rt.Bundle,
    make_bundle: Callable[..., Path],
    code_objects: dict[str, bytes],
) -> None:
    path = make_bundle(specialisation("gfx942", code_objects["gfx942"], N=32, dtype="f32"))
    register("flyc_test::scale", rt.load(path), "scale", mutates=["x"])
    torch.ops.flyc_test.scale(torch.zeros(10, 32).as_subclass(OnDevice), 1, 1.0)
    assert len(device.launches()) == 2


def test_the_loader_does_not_import_torch() -> None:
    code = "import runtime_loader, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
