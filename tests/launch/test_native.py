"""What is the native launcher's own: that it is there, which tensors it takes, and bound calls."""

from __future__ import annotations

import ctypes
import gc
import struct
import sys
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import runtime_loader as rt
from runtime_loader import native
from runtime_loader.native_kernel import NativeKernel
from runtime_loader.plan import Block, Branch, End, Launch, LaunchPlan, Op
from tests.hip_device.device import HipTestDevice, LaunchRecord
from tests.launch.samples import specialisation
from tests.launch.test_launch import Array

pytestmark = [pytest.mark.device, pytest.mark.compile]
ROCM, CPU = 10, 1


@pytest.fixture
def kernel(device: HipTestDevice, bundle_path: Path) -> rt.Kernel:
    return rt.load(bundle_path).kernel("scale", N=64)


def natively(kernel: rt.Kernel) -> int:
    """How many kernels it launched without Python code."""
    return kernel.native_launches if isinstance(kernel, NativeKernel) else 0


@pytest.fixture
def tensor(tensor_type: Any) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """Makes a tensor one of device 0."""
    tensor_type.place(ROCM, 0)
    yield lambda made: made.as_subclass(tensor_type)
    tensor_type.place(ROCM, 0)


def essence(launch: LaunchRecord) -> tuple[object, ...]:
    return launch.kernel, launch.grid, launch.block, launch.dynamic_lds, launch.kernarg


def test_the_switch(kernel: rt.Kernel, implementation: str) -> None:
    assert native.BUILT
    assert native.enabled() == isinstance(kernel, NativeKernel) == (implementation == "native")


def test_torch_tensors_come_through_the_exchange_api(
    device: HipTestDevice, kernel: rt.Kernel, tensor: Any, implementation: str
) -> None:
    storage = torch.zeros(100, 64)
    kernel(tensor(storage), 8, 1.5)
    kernel(tensor(storage[10:20]), parts=2, factor=2, stream=None)
    assert natively(kernel) == (4 if implementation == "native" else 0)
    first, _, third, _ = device.launches()
    assert first.kernarg == struct.pack("<Qif", storage.data_ptr(), 100, 1.5)
    assert third.kernarg == struct.pack("<Qif", storage.data_ptr() + 10 * 256, 10, 2.0)


def test_tensors_of_torchs_manner(
    device: HipTestDevice, kernel: rt.Kernel, implementation: str
) -> None:
    for _ in range(3):
        kernel(Array(4096, (100, 64)), 8, 1.5)
    # A dtype that is a text names itself; torch's is an object.
    assert natively(kernel) == (6 if implementation == "native" else 0)
    assert len({essence(launch) for launch in device.launches()}) == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.zeros(3, 65), r"wanted shape\[1\] = 64, found 65"),
        (lambda: torch.zeros(3, 64, dtype=torch.float64), "wanted elements of f32, found f64"),
        (lambda: torch.zeros(3, 128)[:, ::2], r"wanted stride\[0\].* = 64, found 128"),
        (lambda: torch.zeros(64), r"wanted 2 dimension\(s\)"),
        (lambda: torch.zeros(3 * 64 + 1)[1:].view(3, 64), "aligned to 16 bytes"),
        (lambda: torch.zeros(0, 64), "which is empty"),
    ],
)
def test_a_tensor_that_does_not_fit(
    device: HipTestDevice, kernel: rt.Kernel, tensor: Any, make: Any, message: str
) -> None:
    with pytest.raises(rt.ArgumentError, match=message):
        kernel(tensor(make()), 1, 1.0)
    assert device.launches() == ()
    assert natively(kernel) == 0


def test_a_tensor_elsewhere(
    device: HipTestDevice, kernel: rt.Kernel, tensor: Any, tensor_type: Any
) -> None:
    """The exchange API's word counts, and then the tensor's own, as for the Python binder."""
    with pytest.raises(rt.ArgumentError, match="found cpu memory"):
        kernel(torch.zeros(3, 64), 1, 1.0)
    there = tensor(torch.zeros(3, 64))
    tensor_type.place(ROCM, 1)
    there.device = SimpleNamespace(type="cuda", index=1)
    with pytest.raises(rt.ArgumentError, match="found memory of device 1"):
        kernel(there, 1, 1.0)
    assert device.launches() == ()


def test_a_type_that_comes_and_goes(kernel: rt.Kernel, device: HipTestDevice) -> None:
    """More types than are remembered, each dying after its call."""
    for number in range(40):
        made = type(f"Array{number}", (Array,), {})
        kernel(made(4096, (number + 1, 64)), 1, 1.0)
        del made
        gc.collect()
    assert [launch.grid[0] for launch in device.launches()[::2]] == list(range(1, 41))


def test_nothing_leaks(kernel: rt.Kernel, tensor: Any) -> None:
    x = tensor(torch.zeros(4, 64))
    stream = SimpleNamespace(cuda_stream=0)
    for value in (x, Array(4096, (4, 64))):
        kernel(value, 1, 1.0, stream=stream)
        before = sys.getrefcount(value), sys.getrefcount(stream), sys.getrefcount(kernel)
        for _ in range(50):
            kernel(value, 1, 1.0, stream=stream)
            with pytest.raises(rt.ArgumentError):
                kernel(value, 1, "x", stream=stream)
        after = sys.getrefcount(value), sys.getrefcount(stream), sys.getrefcount(kernel)
        assert before == after


def test_kernels_are_collected(device: HipTestDevice, bundle_path: Path) -> None:
    import weakref

    kernel = rt.load(bundle_path).kernel("scale", N=64)
    bound = kernel.bind(factor=1.0)
    seen = weakref.ref(kernel), weakref.ref(bound)
    del kernel, bound
    gc.collect()
    assert [ref() for ref in seen] == [None, None]


def test_bound_calls_launch_the_same(
    device: HipTestDevice, kernel: rt.Kernel, implementation: str
) -> None:
    x = Array(4096, (100, 64))
    kernel(x, 8, 1.5)
    expected = list(map(essence, device.take_launches()))
    bindings: list[tuple[rt.Bound, tuple[Any, ...], dict[str, Any]]] = [
        (kernel.bind(), (x, 8, 1.5), {}),
        (kernel.bind(x), (8, 1.5), {}),
        (kernel.bind(x, factor=1.5), (8,), {}),
        (kernel.bind(parts=8), (x,), {"factor": 1.5}),
        (kernel.bind(x, 8, 1.5), (), {}),
        (kernel.bind(x, 8, 1.5, None), (), {}),
        (kernel.bind(x, 8, stream=0), (1.5,), {}),
    ]
    for made, (bound, args, named) in enumerate(bindings, start=2):
        bound(*args, **named)
        assert list(map(essence, device.take_launches())) == expected, bound
        assert isinstance(bound, rt.Bound)
        assert natively(kernel) == (2 * made if implementation == "native" else 0)
        assert kernel.launch_count == 2 * made
    assert bindings[2][0].moving == ("parts", "stream")
    assert repr(bindings[2][0]).endswith("of (parts, stream)>")


def test_each(device: HipTestDevice, kernel: rt.Kernel) -> None:
    bound = kernel.bind(Array(4096, (100, 64)), stream=None)
    assert bound.each((parts, 0.5) for parts in range(1, 5)) == 4
    grids = [launch.grid[0] for launch in device.take_launches()[::2]]
    assert grids == [100, 50, 34, 25]
    assert kernel.bind(Array(4096, (100, 64)), factor=1.0, stream=None).each(range(1, 3)) == 2
    with pytest.raises(rt.PlanError, match="divided by zero"):
        bound.each([(1, 0.5), (0, 0.5), (2, 0.5)])
    with pytest.raises(TypeError):
        bound.each(5)  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        bound.each((1 // parts, 0.5) for parts in (1, 0))


def packed(rows: list[tuple[int, ...]]) -> memoryview:
    flat = memoryview(array("q", [value for row in rows for value in row]))
    return flat.cast("B").cast("q", (len(rows), len(rows[0])))


def test_each_row_of_a_buffer(
    device: HipTestDevice, kernel: rt.Kernel, implementation: str
) -> None:
    x = Array(4096, (100, 64))
    stream = device.create("hipStreamCreate")
    whole = kernel.bind(x, factor=0.5)
    one = kernel.bind(x, factor=0.5, stream=0)
    parts = range(1, 2000)
    for bound, buffer, made, used in (
        (one, array("q", parts), parts, 0),
        (whole, array("q", parts), parts, 0),  # the stream is left out
        (whole, packed([(n, stream) for n in parts]), parts, stream),
        (kernel.bind(x, stream=0), packed([(4, 2)]), [4], 0),  # a float takes an int
        (one, array("i", [3, 4]), [3, 4], 0),  # iterated
        (one, array("q"), [], 0),
    ):
        assert bound.each(buffer) == len(made)
        launches = device.take_launches()[::2]
        assert [launch.grid[0] for launch in launches] == [-(-100 // n) for n in made]
        assert {launch.stream for launch in launches} <= {used}
    assert natively(kernel) == (2 * (3 * 1999 + 3) if implementation == "native" else 0)


def test_what_each_refuses_of_a_buffer(device: HipTestDevice, kernel: rt.Kernel) -> None:
    x = Array(4096, (100, 64))
    bound = kernel.bind(x, factor=0.5)
    with pytest.raises(rt.PlanError, match="divided by zero"):
        bound.each(array("q", [1, 2, 0, 3]))
    with pytest.raises(rt.ArgumentError, match="wanted i32, found int 2147483648"):
        bound.each(packed([(1, 0), (1 << 31, 0)]))
    with pytest.raises(rt.ArgumentError, match="stream"):
        bound.each(packed([(1, 0), (1, -5)]))
    with pytest.raises(rt.ArgumentError, match=r"takes \(parts, stream=None\)"):
        bound.each(packed([(1, 0, 0)]))
    assert len(device.take_launches()) == 2 * (2 + 1 + 1)
    device.fail("hipModuleLaunchKernel", 719, nth=6)
    with pytest.raises(rt.HipError, match=r"hipErrorLaunchFailure.* while launching pair of"):
        bound.each(array("q", range(1, 9)))
    assert len(device.take_launches()) == 5


def test_each_makes_the_calls_before_one_that_fails(
    device: HipTestDevice, kernel: rt.Kernel
) -> None:
    bound = kernel.bind(Array(4096, (100, 64)), stream=0)
    for wrong, error in (((1, "a"), rt.ArgumentError), ((0, 0.5), rt.PlanError)):
        for before in (0, 1, 3, 4, 5, 9):
            with pytest.raises(error):
                bound.each([*[(1, 0.5)] * before, wrong, (1, 0.5)])
            assert len(device.take_launches()) == 2 * before


def test_what_binding_refuses(device: HipTestDevice, kernel: rt.Kernel) -> None:
    with pytest.raises(rt.ArgumentError, match=r"argument 'x': wanted a f32 tensor"):
        kernel.bind(x="no")
    with pytest.raises(rt.ArgumentError, match="no argument 'part'; did you mean 'parts'"):
        kernel.bind(part=1)
    with pytest.raises(rt.ArgumentError, match="given twice"):
        kernel.bind(Array(4096, (1, 64)), x=1)
    bound = kernel.bind(Array(4096, (100, 64)))
    with pytest.raises(rt.ArgumentError, match=r"takes \(parts, factor, stream=None\); missing: f"):
        bound(1)
    with pytest.raises(rt.ArgumentError, match="wanted i32, found str 'a'"):
        bound("a", 1.0)
    with pytest.raises(rt.PlanError, match=r"divided by zero.*x.shape\[0\] = 100, parts = 0"):
        bound(0, 1.0)
    zero = kernel.bind(Array(4096, (100, 64)), 0, 1.0)
    with pytest.raises(rt.PlanError, match="divided by zero"):
        zero()
    assert device.launches() == ()


def test_bound_calls_check_the_device(device: HipTestDevice, kernel: rt.Kernel) -> None:
    bound = kernel.bind(Array(4096, (100, 64)), 1, 1.0)
    device.check("hipSetDevice", 1)
    stream = device.create("hipStreamCreate")
    with pytest.raises(rt.ArgumentError, match="current device is 1"):
        bound()
    device.check("hipSetDevice", 0)
    with pytest.raises(rt.ArgumentError, match="belongs to device 1"):
        bound(stream=stream)
    assert device.launches() == ()
    device.fail("hipModuleLaunchKernel", 719, nth=2)
    with pytest.raises(rt.HipError, match=r"hipErrorLaunchFailure.* while launching pair of"):
        bound()
    assert [launch.kernel for launch in device.launches()] == ["scale"]


def test_branches_at_run_time(
    device: HipTestDevice,
    make_bundle: Callable[..., Path],
    code_objects: dict[str, bytes],
    implementation: str,
) -> None:
    """A launch only when parts is positive, and another in any case."""
    arguments = ((0,), (1,), (3,))
    entry = (
        Op("const", "i32", constant=0),  # 5
        Op("const", "i32", constant=1),  # 6
        Op("icmp.sgt", "i1", (2, 5)),  # 7
    )
    plan = LaunchPlan(
        ("ptr", "i32", "i32", "f32", "ptr"),
        (
            Block((), entry, End(7, (Branch(1, (2,)), Branch(2)))),
            Block(
                ("i32",), (Launch(0, (8, 6, 6), (6, 6, 6), 4, arguments),), End(None, (Branch(2),))
            ),
            Block((), (Launch(0, (6, 6, 6), (6, 6, 6), 4, arguments),), End()),
        ),
    )
    path = make_bundle(specialisation("gfx942", code_objects["gfx942"], plan=plan))
    kernel = rt.load(path).kernel("scale")
    for parts, launched in ((3, 2), (0, 1), (-1, 1), (200, 2)):
        kernel(Array(4096, (7, 64)), parts, 1.0)
        assert len(device.take_launches()) == launched
    assert natively(kernel) == (6 if implementation == "native" else 0)
    bound = kernel.bind(Array(4096, (7, 64)), factor=1.0)
    bound.each([3, 0])
    assert len(device.take_launches()) == 3


def test_c_void_p_streams_and_pointers(device: HipTestDevice, kernel: rt.Kernel) -> None:
    stream = device.create("hipStreamCreate")
    kernel(Array(4096, (7, 64)), 1, 1.0, ctypes.c_void_p(stream))
    kernel(Array(4096, (7, 64)), 1, 1.0, stream)
    assert {launch.stream for launch in device.launches()} == {stream}
