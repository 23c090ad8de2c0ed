"""From a bundle to launches on the HIP test device."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import runtime_loader as rt
from runtime_loader import hip
from runtime_loader.plan import Block, End, Launch, LaunchPlan, Op
from tests.hip_device.device import HipTestDevice
from tests.launch.samples import MI300, ROOT, specialisation

pytestmark = [pytest.mark.device, pytest.mark.compile]


class Array:
    """A row-major f32 array in device memory."""

    dtype = "torch.float32"

    def __init__(self, address: int, shape: tuple[int, ...], device: int = 0) -> None:
        self.address = address
        self.shape = shape
        self.device = SimpleNamespace(type="cuda", index=device)

    def data_ptr(self) -> int:
        return self.address

    def stride(self) -> tuple[int, int]:
        return self.shape[1], 1


def test_a_call_launches_the_plan(device: HipTestDevice, bundle_path: Path) -> None:
    with rt.load(bundle_path) as bundle:
        kernel = bundle.kernel("scale", N=64)
        kernel(Array(4096, (100, 64)), 8, 1.5)
    first, second = device.launches()
    assert (first.kernel, first.grid, first.block, first.stream) == (
        "scale", (13, 1, 1), (64, 1, 1), 0
    )  # fmt: skip
    assert first.kernarg == struct.pack("<Qif", 4096, 100, 1.5)
    assert (second.kernel, second.grid, second.block) == ("pair", (1, 1, 1), (1, 1, 1))
    assert second.kernarg == struct.pack("<Qiq", 4096, 100, 100)
    assert (first.dynamic_lds, second.dynamic_lds) == (0, 64)
    assert first.device == second.device == 0


def test_the_stream_is_the_one_given(device: HipTestDevice, bundle_path: Path) -> None:
    kernel = rt.load(bundle_path).kernel("scale", N=64)
    stream = device.create("hipStreamCreate")
    kernel(Array(4096, (1, 64)), parts=1, factor=0.0, stream=SimpleNamespace(cuda_stream=stream))
    # Streams are recorded by handle; the default one is 0.
    assert {launch.stream for launch in device.launches()} == {stream}


def test_repr_and_names(device: HipTestDevice, bundle_path: Path) -> None:
    bundle = rt.load(str(bundle_path))
    assert bundle.name == "samples"
    assert bundle.kernels() == ["rows", "scale"]
    assert [(s.params["N"], str(s.target)) for s in bundle.specialisations("scale")] == [
        (128, "gfx942"), (128, "gfx942:xnack-"), (64, "gfx1100"), (64, "gfx942")
    ]  # fmt: skip
    kernel = bundle.kernel("scale", N=64)
    assert kernel.label == "scale(N=64, dtype=f32) for gfx942"
    assert kernel.specialisation.params == {"N": 64, "dtype": "f32"}
    assert repr(kernel) == f"<Kernel {kernel.label} on device 0 (gfx942:sramecc+:xnack-)>"
    assert repr(bundle) == f"<Bundle samples.flybundle {bundle.id[:16]}>"


def test_the_most_specific_code_object_is_taken(device: HipTestDevice, bundle_path: Path) -> None:
    bundle = rt.load(bundle_path)
    assert str(bundle.kernel("scale", N=128).specialisation.target) == "gfx942:xnack-"
    device.configure("gfx942:sramecc+:xnack+")
    hip._runtime = None
    assert str(bundle.kernel("scale", N=128).specialisation.target) == "gfx942"


def test_kernels_load_on_the_device_asked_for(device: HipTestDevice, bundle_path: Path) -> None:
    bundle = rt.load(bundle_path)
    other = bundle.kernel("scale", N=64, device=2)
    assert str(other.specialisation.target) == "gfx1100"
    assert hip.runtime().current_device() == 0
    with pytest.raises(rt.ArgumentError, match=r"loaded on device 2 .* current device is 0"):
        other(Array(4096, (1, 64), device=2), 1, 1.0)
    device.check("hipSetDevice", 2)
    other(Array(4096, (1, 64), device=2), 1, 1.0)
    assert {launch.device for launch in device.launches()} == {2}


def test_one_module_for_each_content_and_device(device: HipTestDevice, bundle_path: Path) -> None:
    bundle = rt.load(bundle_path)
    for _ in range(2):
        bundle.kernel("scale", N=64)
    assert device.live_modules() == 1
    rt.load(bundle_path).kernel("scale", N=64)
    assert device.live_modules() == 1
    bundle.kernel("scale", N=64, device=1)
    bundle.kernel("scale", N=128)
    assert device.live_modules() == 3
    bundle.close()
    assert device.live_modules() == 3


def test_threads_that_race_load_once(device: HipTestDevice, bundle_path: Path) -> None:
    bundle = rt.load(bundle_path)
    barrier = threading.Barrier(8)
    failures: list[BaseException] = []

    def race() -> None:
        try:
            barrier.wait()
            for column in (64, 128):
                bundle.kernel("scale", N=column)(Array(4096, (1, column)), 1, 1.0)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert device.calls()["hipModuleLoadData"] == 2
    assert device.calls()["hipInit"] == 1
    assert len(device.launches()) == 32


def test_preload(device: HipTestDevice, bundle_path: Path) -> None:
    bundle = rt.load(bundle_path)
    assert bundle.preload() == 2
    loads = device.calls()["hipModuleLoadData"]
    bundle.kernel("scale", N=64)(Array(4096, (1, 64)), 1, 1.0)
    assert device.calls()["hipModuleLoadData"] == loads == 2
    assert bundle.preload(2, ["rows"]) == 1
    with pytest.raises(rt.MissError, match="no kernel 'rowz'; did you mean 'rows'"):
        bundle.preload(kernels=["rowz"])


MISSES = [
    ("scael", {}, ["has no kernel 'scael'; did you mean 'scale'?; it has rows, scale"]),
    ("scale", {}, ["scale in samples.flybundle (", "needs N (one of 64, 128)"]),
    ("scale", {"M": 64}, ["has no parameter 'M'", "it has N, dtype"]),
    ("scale", {"N": object()}, ["parameter N is <object", "parameters are plain numbers"]),
    (
        "scale",
        {"N": 100},
        [
            "has no scale(N=100, dtype=f32) for device 0 (gfx942:sramecc+:xnack-)",
            "tried targets: gfx942:sramecc+:xnack-, gfx942:sramecc+, gfx942:xnack-, gfx942",
            "nearest: scale(N=128, dtype=f32) for gfx942, gfx942:xnack-, where N is 128, not 100",
            "values of N: 64, 128",
            "the bundle has 4 specialisation(s) of scale, for gfx1100, gfx942, gfx942:xnack-",
        ],
    ),
    ("scale", {"N": 64, "dtype": "bf16"}, ["scale(N=64, dtype=f32)", "dtype is 'f32', not 'bf16'"]),
    ("scale", {"N": 64.0}, ["N is 64, not 64.0"]),
    (
        "rows",
        {},
        [
            "tried targets: gfx942:sramecc+:xnack-, gfx942:sramecc+, gfx942:xnack-, gfx942",
            "it has rows(N=64, dtype=f32) for gfx1100; build it for one of the targets tried",
        ],
    ),
]


@pytest.mark.parametrize(("name", "params", "parts"), MISSES)
def test_misses_say_what_is_there(
    device: HipTestDevice, bundle_path: Path, name: str, params: dict[str, Any], parts: list[str]
) -> None:
    with pytest.raises(rt.MissError) as caught:
        rt.load(bundle_path).kernel(name, **params)
    for part in parts:
        assert part in str(caught.value)
    assert "hipModuleLoadData" not in device.calls()


class Four:
    def __index__(self) -> int:
        return 64


def test_parameters_may_be_integer_like(device: HipTestDevice, bundle_path: Path) -> None:
    assert rt.load(bundle_path).kernel("scale", N=Four()).specialisation.params["N"] == 64


def test_an_empty_grid_is_refused(device: HipTestDevice, bundle_path: Path) -> None:
    kernel = rt.load(bundle_path).kernel("scale", N=64)
    with pytest.raises(rt.ArgumentError) as caught:
        kernel(Array(4096, (0, 64)), 1, 1.0)
    text = str(caught.value)
    assert (
        "scale would be launched with grid (0, 1, 1) and block (64, 1, 1), which is empty" in text
    )
    assert text.endswith("Nothing was launched; with x.shape[0] = 0, parts = 1")
    assert device.launches() == ()


def test_undefined_arithmetic_launches_nothing(device: HipTestDevice, bundle_path: Path) -> None:
    kernel = rt.load(bundle_path).kernel("scale", N=64)
    message = (
        r"scale\(N=64.*: sdiv to i32 \(value 8\): 2 divided by zero.*shape\[0\] = 3, parts = 0"
    )
    with pytest.raises(rt.PlanError, match=message):
        kernel(Array(4096, (3, 64)), 0, 1.0)
    assert device.launches() == ()


def test_arguments_are_checked_before_any_launch(device: HipTestDevice, bundle_path: Path) -> None:
    kernel = rt.load(bundle_path).kernel("scale", N=64)
    with pytest.raises(
        rt.ArgumentError, match=r"^scale\(N=64, dtype=f32\) for gfx942: argument 'x'"
    ):
        kernel(Array(4096, (3, 65)), 1, 1.0)
    with pytest.raises(rt.ArgumentError, match=r"memory of device 0 \(.*found memory of device 1"):
        kernel(Array(4096, (3, 64), device=1), 1, 1.0)
    assert device.launches() == ()


def test_a_stream_of_another_device_is_refused(device: HipTestDevice, bundle_path: Path) -> None:
    kernel = rt.load(bundle_path).kernel("scale", N=64)
    device.check("hipSetDevice", 1)
    stream = device.create("hipStreamCreate")
    device.check("hipSetDevice", 0)
    with pytest.raises(rt.ArgumentError, match=r"stream 0x.* belongs to device 1"):
        kernel(Array(4096, (3, 64)), 1, 1.0, stream)
    assert device.launches() == ()


def one_launch(**changes: Any) -> LaunchPlan:
    """A plan for the same signature: scale on `parts` by 1 by 1 workgroups of 64."""
    body = (
        Op("const", "i32", constant=1),
        Op("const", "i32", constant=changes.pop("block", 64)),
        Op("const", "i32", constant=2),
        Launch(0, (2, 5, 5), (6, 5, 5), 4, ((0,), (1,), (3,)), **changes),
    )
    return LaunchPlan(("ptr", "i32", "i32", "f32", "ptr"), (Block((), body, End()),))


@pytest.mark.parametrize(
    "how",
    [{"cooperative": True}, {"cluster": (7, 5, 5)}, {"cluster": (7, 5, 5), "cooperative": True}],
)
def test_clusters_and_cooperative_launches(
    device: HipTestDevice,
    make_bundle: Callable[..., Path],
    code_objects: dict[str, bytes],
    how: dict[str, Any],
) -> None:
    spec = specialisation("gfx1250", code_objects["gfx1250"], plan=one_launch(**how))
    kernel = rt.load(make_bundle(spec)).kernel("scale", device=3)
    device.check("hipSetDevice", 3)
    kernel(Array(4096, (7, 64), device=3), 4, 2.0)
    (launch,) = device.launches()
    assert launch.cooperative == how.get("cooperative", False)
    assert launch.cluster == ((2, 1, 1) if "cluster" in how else (1, 1, 1))
    assert (launch.grid, launch.block) == ((4, 1, 1), (64, 1, 1))
    assert launch.kernarg == struct.pack("<Qif", 4096, 7, 2.0)


def test_a_block_larger_than_compiled_for(
    device: HipTestDevice, make_bundle: Callable[..., Path], code_objects: dict[str, bytes]
) -> None:
    spec = specialisation("gfx942", code_objects["gfx942"], plan=one_launch(block=512))
    kernel = rt.load(make_bundle(spec)).kernel("scale")
    with pytest.raises(rt.ArgumentError, match="at most 256 workitems"):
        kernel(Array(4096, (7, 64)), 4, 2.0)


def test_hip_errors_say_what_was_being_done(device: HipTestDevice, bundle_path: Path) -> None:
    bundle = rt.load(bundle_path)
    code = bundle.specialisations("scale")[0].code_object[:16]
    device.fail("hipModuleLoadData", 209)
    with pytest.raises(rt.HipError) as caught:
        bundle.kernel("scale", N=64)
    assert (caught.value.code, caught.value.name) == (209, "hipErrorNoBinaryForGpu")
    text = str(caught.value)
    assert text.startswith("hipModuleLoadData failed with hipErrorNoBinaryForGpu (209: ")
    assert f"while loading code object {code}"[:30] in text
    assert text.endswith(f"of scale(N=64, dtype=f32) for gfx942 on device 0 ({MI300})")
    kernel = bundle.kernel("scale", N=64)  # the next attempt works
    device.fail("hipModuleLaunchKernel", 701)
    with pytest.raises(
        rt.HipError, match=r"hipErrorLaunchOutOfResources.* while launching scale of"
    ):
        kernel(Array(4096, (1, 64)), 1, 1.0)
    device.fail("hipModuleGetFunction", 500)
    with pytest.raises(rt.HipError, match="while finding kernel scale in code object"):
        bundle.kernel("scale", N=128)


def test_a_layout_that_contradicts_the_code_object(
    device: HipTestDevice, make_bundle: Callable[..., Path], code_objects: dict[str, bytes]
) -> None:
    """The bundle's record says other offsets than the code object's own metadata."""
    spec = specialisation("gfx942", code_objects["gfx942"])
    first = spec.kernels[0]
    moved = vars(first.kernarg) | {"size": 24, "segment_size": 24}
    broken = type(first)(first.symbol, type(first.kernarg)(**moved), first.resources)
    renamed = type(first)("scales", first.kernarg, first.resources)
    for entry, message in (
        (broken, "disagree about the arguments of scale"),
        (renamed, "no kernel"),
    ):
        fields = vars(spec) | {"kernels": (entry, spec.kernels[1])}
        with pytest.raises(rt.BundleError, match=message):
            rt.load(make_bundle(type(spec)(**fields))).kernel("scale")
    assert "hipModuleLoadData" not in device.calls()


def test_a_code_object_for_another_target(
    device: HipTestDevice, make_bundle: Callable[..., Path], code_objects: dict[str, bytes]
) -> None:
    spec = specialisation("gfx942", code_objects["gfx1100"])
    with pytest.raises(rt.BundleError, match=r"its code object .* is for gfx1100"):
        rt.load(make_bundle(spec)).kernel("scale")


def test_what_is_no_code_object(
    device: HipTestDevice, make_bundle: Callable[..., Path], code_objects: dict[str, bytes]
) -> None:
    junk = b"\x7fELF" + bytes(200)
    spec = specialisation("gfx942", code_objects["gfx942"])
    fields = vars(spec) | {"code_object": hashlib.sha256(junk).hexdigest()}
    with pytest.raises(rt.BundleError, match="not a code object"):
        rt.load(make_bundle(type(spec)(**fields), junk=junk)).kernel("scale")


def test_no_such_device(device: HipTestDevice, bundle_path: Path) -> None:
    bundle = rt.load(bundle_path)
    with pytest.raises(rt.HipUnavailableError, match=r"no device 4: HIP has 4 device\(s\)"):
        bundle.kernel("scale", N=64, device=4)
    device.configure()
    hip._runtime = None
    with pytest.raises(rt.HipUnavailableError, match=r"no usable device: hipInit failed with hip"):
        bundle.kernel("scale", N=64)


def test_a_forked_child_is_refused(device: HipTestDevice, bundle_path: Path) -> None:
    bundle = rt.load(bundle_path)
    kernel = bundle.kernel("scale", N=64)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        texts = []
        for attempt in (
            lambda: kernel(Array(4096, (1, 64)), 1, 1.0),
            lambda: bundle.kernel("scale", N=128),
            bundle.preload,
        ):
            try:
                attempt()
            except rt.HipUnavailableError as error:
                texts.append(str(error))
        os.write(writer, "\n".join(texts).encode())
        os._exit(0)
    os.waitpid(child, 0)
    texts = os.read(reader, 65536).decode().splitlines()
    assert len(texts) == 3
    for text in texts:
        assert f"HIP was initialised in process {os.getpid()}, which then forked" in text
    assert device.launches() == ()


LEAN = """
import sys
import runtime_loader as rt
kernel = rt.load(sys.argv[1]).kernel("scale", N=64)
class Array:
    dtype, shape = "float32", (4, 64)
    def data_ptr(self): return 4096
    def stride(self): return (64, 1)
kernel(Array(), 1, 1.0)
print(" ".join(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def test_launching_imports_nothing_heavy(hip_library: Path, bundle_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        hip.LIBRARY_VARIABLE: str(hip_library),
        "HIPTEST_DEVICES": MI300,
    }
    result = subprocess.run(
        [sys.executable, "-c", LEAN, str(bundle_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(result.stdout.split())
    assert {"runtime_loader", "zstandard"} <= loaded
    foreign = {"numpy", "torch", "click", "yaml", "rich", "flydsl", "flyc_cli", "mlir_passes"}
    assert loaded & foreign == set()
