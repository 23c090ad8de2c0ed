"""Launches on the HIP test device: what is refused and why, and what is recorded."""

from __future__ import annotations

import ctypes
import hashlib
import struct
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.hip_device.compile_sample import CompiledSample
from tests.hip_device.device import HipTestDevice, LaunchRecord, RunningLaunch
from tests.hip_device.launching import (
    SCALE_BYTES,
    SCALE_SIZES,
    ScaleKernel,
    as_extra,
    as_params,
)

pytestmark = [pytest.mark.device, pytest.mark.compile]


@pytest.fixture
def kernel(device: HipTestDevice, hsaco: bytes) -> ScaleKernel:
    return ScaleKernel.load(device, hsaco)


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint32 * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("lds", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint32),
    )


def _launch_configured(
    kernel: ScaleKernel, grid: tuple[int, int, int], *attributes: tuple[int, tuple[int, ...]]
) -> int:
    array = (_Attribute * len(attributes))()
    for slot, (identifier, words) in zip(array, attributes, strict=True):
        slot.id = identifier
        slot.value[: len(words)] = words
    config = _Config(grid, (64, 1, 1), 0, None, array, len(attributes))
    params = as_params([bytes(size) for size in SCALE_SIZES])
    return kernel.device.call(
        "hipDrvLaunchKernelEx", ctypes.byref(config), kernel.function, params, None
    )


def test_a_launch_is_recorded(kernel: ScaleKernel, hsaco: bytes) -> None:
    segment = bytes(range(SCALE_BYTES))
    assert kernel.launch(grid=(3, 2, 1), block=(32, 2, 1), lds=512, segment=segment) == 0
    assert kernel.device.launches() == (
        LaunchRecord(
            sequence=0,
            kernel="scale_kernel_0",
            grid=(3, 2, 1),
            block=(32, 2, 1),
            cluster=(1, 1, 1),
            dynamic_lds=512,
            static_lds=0,
            stream=0,
            graph_exec=0,
            device=0,
            cooperative=False,
            kernarg=segment,
            kernarg_size=SCALE_BYTES,
            code_sha256=hashlib.sha256(hsaco).hexdigest(),
            module_id=1,
        ),
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(values=st.tuples(*(st.binary(min_size=size, max_size=size) for size in SCALE_SIZES)))
def test_both_argument_forms_give_the_same_bytes(
    kernel: ScaleKernel, values: tuple[bytes, ...]
) -> None:
    device = kernel.device
    sizes = (kernel.function, 1, 1, 1, 64, 1, 1, 0, None)
    device.check("hipModuleLaunchKernel", *sizes, as_params(values), None)
    device.check("hipModuleLaunchKernel", *sizes, None, as_extra(b"".join(values)))
    first, second = device.take_launches()
    assert first.kernarg == second.kernarg == b"".join(values)


@pytest.mark.parametrize(
    ("sizes", "code"),
    [
        pytest.param({"grid": (0, 1, 1)}, 1, id="empty grid"),
        pytest.param({"grid": (1, 1, 0)}, 1, id="empty grid in z"),
        pytest.param({"block": (64, 0, 1)}, 1, id="empty block"),
        pytest.param({"block": (65, 1, 1)}, 719, id="more than the kernel's bound"),
        pytest.param({"block": (1025, 1, 1)}, 1, id="more than a block can have"),
        pytest.param({"block": (2**31, 2**31, 4)}, 1, id="block whose product wraps"),
        pytest.param({"grid": (2**26, 1, 1)}, 1, id="2^32 work-items in x"),
        pytest.param({"grid": (2**26 - 1, 1, 1)}, 0, id="just below 2^32 work-items"),
        pytest.param({"grid": (2**31, 1, 1), "block": (1, 1, 1)}, 1, id="2^31 workgroups"),
        pytest.param({"grid": (1, 65537, 1)}, 1, id="too many in y"),
        pytest.param({"grid": (1, 65536, 65536)}, 0, id="the most in y and z"),
        pytest.param({"lds": 65536}, 0, id="all of LDS"),
        pytest.param({"lds": 65537}, 1, id="more than LDS"),
        pytest.param({"stream": 0x1230}, 709, id="not a stream"),
    ],
)
def test_sizes(kernel: ScaleKernel, sizes: dict[str, object], code: int) -> None:
    assert kernel.launch(**sizes) == code  # type: ignore[arg-type]
    assert len(kernel.device.launches()) == (code == 0)


def test_lds_limit_is_that_of_the_target(
    device: HipTestDevice, sample: Callable[[str, str], CompiledSample]
) -> None:
    device.configure("gfx950:sramecc+:xnack-")
    kernel = ScaleKernel.load(device, sample("scale", "gfx950").hsaco)
    assert kernel.launch(lds=160 << 10) == 0
    assert kernel.launch(lds=(160 << 10) + 1) == 1


def test_argument_forms_that_hip_refuses(kernel: ScaleKernel) -> None:
    call = kernel.device.call
    sizes = (kernel.function, 1, 1, 1, 64, 1, 1, 0, None)
    params = as_params([bytes(size) for size in SCALE_SIZES])
    whole = as_extra(bytes(SCALE_BYTES))
    assert call("hipModuleLaunchKernel", *sizes, params, whole) == 1
    assert call("hipModuleLaunchKernel", *sizes, None, None) == 1
    assert call("hipModuleLaunchKernel", *sizes, None, as_extra(bytes(SCALE_BYTES - 1))) == 1
    whole[4] = 0
    assert call("hipModuleLaunchKernel", *sizes, None, whole) == 1
    params[2] = None
    assert call("hipModuleLaunchKernel", *sizes, params, None) == 1
    assert kernel.device.launches() == ()


def test_functions_that_hip_refuses(kernel: ScaleKernel) -> None:
    device = kernel.device
    rest = (1, 1, 1, 64, 1, 1, 0, None, None, as_extra(bytes(SCALE_BYTES)))
    assert device.call("hipModuleLaunchKernel", 0, *rest) == 400
    assert device.call("hipModuleLaunchKernel", kernel.module, *rest) == 400
    device.check("hipModuleUnload", kernel.module)
    assert device.call("hipModuleLaunchKernel", kernel.function, *rest) == 400


def test_device_stream_and_module_have_to_agree(kernel: ScaleKernel) -> None:
    device = kernel.device
    device.check("hipSetDevice", 1)
    other_stream = device.create("hipStreamCreate")
    assert kernel.launch() == 101
    assert kernel.launch(stream=other_stream) == 101
    device.check("hipSetDevice", 0)
    assert kernel.launch(stream=other_stream) == 400
    own_stream = device.create("hipStreamCreate")
    assert kernel.launch(stream=own_stream) == 0
    device.check("hipStreamDestroy", own_stream)
    assert kernel.launch(stream=own_stream) == 709
    (record,) = device.launches()
    assert (record.stream, record.device) == (own_stream, 0)


def test_cooperative_launches_have_to_be_resident(kernel: ScaleKernel) -> None:
    device = kernel.device
    params = as_params([bytes(size) for size in SCALE_SIZES])

    def launch(blocks: int, lds: int) -> int:
        name = "hipModuleLaunchCooperativeKernel"
        return device.call(name, kernel.function, blocks, 1, 1, 64, 1, 1, lds, None, params)

    compute_units = 304
    assert launch(compute_units, 65536) == 0
    assert launch(compute_units + 1, 65536) == 720
    assert [record.cooperative for record in device.launches()] == [True]
    assert _launch_configured(kernel, (4, 1, 1), (2, (1,))) == 0
    assert device.launches()[-1].cooperative


def test_clusters_need_a_target_that_has_them(kernel: ScaleKernel) -> None:
    assert _launch_configured(kernel, (4, 1, 1), (4, (1, 1, 1))) == 0
    assert _launch_configured(kernel, (4, 1, 1), (4, (2, 1, 1))) == 1054
    assert _launch_configured(kernel, (4, 1, 1), (77, (1,))) == 9
    assert _launch_configured(kernel, (0, 1, 1)) == 9


def test_clusters_divide_the_grid(
    device: HipTestDevice, sample: Callable[[str, str], CompiledSample]
) -> None:
    device.configure("gfx1250")
    kernel = ScaleKernel.load(device, sample("scale_in_clusters", "gfx1250").hsaco)
    assert _launch_configured(kernel, (8, 4, 1), (4, (2, 4, 1))) == 0
    assert _launch_configured(kernel, (8, 4, 1), (4, (3, 1, 1))) == 1054
    assert _launch_configured(kernel, (32, 4, 1), (4, (32, 1, 1))) == 1054
    assert _launch_configured(kernel, (8, 4, 1), (4, (2, 0, 1))) == 1054
    (record,) = device.launches()
    assert record.cluster == (2, 4, 1)


def test_extra_does_not_reach_a_configured_launch(kernel: ScaleKernel) -> None:
    config = _Config((1, 1, 1), (64, 1, 1), 0, None, None, 0)
    extra = as_extra(bytes(SCALE_BYTES))
    name = "hipDrvLaunchKernelEx"
    assert kernel.device.call(name, ctypes.byref(config), kernel.function, None, extra) == 1


def test_without_recording_only_the_obvious_is_checked(kernel: ScaleKernel) -> None:
    kernel.device.set_recording(False)
    assert kernel.launch() == 0
    assert kernel.launch(grid=(0, 1, 1)) == 1
    kernel.device.set_recording(True)
    assert kernel.device.launches() == ()
    assert kernel.launch() == 0
    assert len(kernel.device.launches()) == 1


def test_a_hook_sees_the_whole_launch(
    device: HipTestDevice, sample: Callable[[str, str], CompiledSample]
) -> None:
    hsaco = sample("sizes", "gfx942").hsaco
    module = device.create("hipModuleLoadData", hsaco)
    function = device.create("hipModuleGetFunction", module, b"sizes_kernel_0")
    seen: list[RunningLaunch] = []
    descriptors: list[bytes] = []

    def hook(launch: RunningLaunch) -> int:
        seen.append(launch)
        descriptors.append(ctypes.string_at(launch.load_base, launch.load_size))
        device.check("hipGetDevice", ctypes.byref(ctypes.c_int()))  # the lock is not held
        return 0

    device.set_hook(hook)
    explicit = bytes(range(28))
    arguments = as_extra(explicit)
    device.check("hipModuleLaunchKernel", function, 5, 3, 1, 32, 2, 1, 0, None, None, arguments)
    (launch,) = seen
    assert launch.code_object == hsaco
    assert launch.record == device.launches()[0]
    assert launch.record.kernarg == explicit
    # hidden_block_count_x/y/z at 32, hidden_group_size_x/y/z at 44, hidden_grid_dims at 96
    assert struct.unpack_from("<3I3H", launch.segment, 32) == (5, 3, 1, 32, 2, 1)
    assert struct.unpack_from("<H", launch.segment, 96) == (3,)
    assert hsaco[:64] == descriptors[0][:64]


def test_a_hook_decides_the_result(kernel: ScaleKernel) -> None:
    device = kernel.device
    device.set_hook(lambda launch: 801)
    assert kernel.launch() == 801
    device.set_hook(lambda launch: 700)
    assert kernel.launch() == 700
    device.forget_hook()
    assert kernel.launch() == 700
    device.clear_failures()
    assert kernel.launch() == 0


def test_a_hook_that_raises_fails_the_launch(
    kernel: ScaleKernel, capsys: pytest.CaptureFixture[str]
) -> None:
    def hook(launch: RunningLaunch) -> int:
        raise ArithmeticError(launch.record.kernel)

    kernel.device.set_hook(hook)
    assert kernel.launch() == 999
    assert "ArithmeticError: scale_kernel_0" in capsys.readouterr().err
