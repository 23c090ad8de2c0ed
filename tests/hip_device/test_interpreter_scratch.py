"""Compiled kernels with arrays in scratch, alone and through flat addresses that mix memories."""

from __future__ import annotations

import numpy as np
import pytest

from tests.hip_device.compile_mlir import compile_mlir
from tests.hip_device.interpreter.harness import fresh, launch_kernel
from tests.hip_device.interpreter.launch import CodeObjectProgram
from tests.hip_device.interpreter.scheduler import ALL_SCHEDULES
from tests.hip_device.interpreter.targets import PROCESSORS

pytestmark = [pytest.mark.compile, pytest.mark.device]

_LANES, _GROUPS, _SIZE = 128, 3, 8

# Each lane puts its 8 words somewhere, and takes them out rotated by its number. `place` is an
# address for them; accesses are volatile, or they would never leave the registers.
_KERNEL = """
    llvm.func @{name}(%in: !llvm.ptr<1>, %out: !llvm.ptr<1>, %spare: !llvm.ptr<1>)
        attributes {{gpu.kernel, rocdl.kernel, rocdl.flat_work_group_size = "128,128"}} {{
      %zero = llvm.mlir.constant(0 : i32) : i32
      %one = llvm.mlir.constant(1 : i32) : i32
      %mask = llvm.mlir.constant(7 : i32) : i32
      %size = llvm.mlir.constant(8 : i32) : i32
      %lanes = llvm.mlir.constant(128 : i32) : i32
      %local = rocdl.workitem.id.x : i32
      %group = rocdl.workgroup.id.x : i32
      %before = llvm.mul %group, %lanes : i32
      %lane = llvm.add %before, %local : i32
      %start = llvm.mul %lane, %size : i32
      %private = llvm.alloca %size x i32 : (i32) -> !llvm.ptr<5>
{place}
      llvm.br ^fill(%zero : i32)
    ^fill(%i: i32):
      %at = llvm.add %start, %i : i32
      %from = llvm.getelementptr %in[%at] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, i32
      %value = llvm.load %from : !llvm.ptr<1> -> i32
      %to = llvm.getelementptr %place[%i] : ({type}, i32) -> {type}, i32
      llvm.store volatile %value, %to : i32, {type}
      %next = llvm.add %i, %one : i32
      %more = llvm.icmp "slt" %next, %size : i32
      llvm.cond_br %more, ^fill(%next : i32), ^take(%zero : i32)
    ^take(%j: i32):
      %turned = llvm.add %j, %local : i32
      %index = llvm.and %turned, %mask : i32
      %of = llvm.getelementptr %place[%index] : ({type}, i32) -> {type}, i32
      %taken = llvm.load volatile %of : {type} -> i32
      %where = llvm.add %start, %j : i32
      %result = llvm.getelementptr %out[%where] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, i32
      llvm.store %taken, %result : i32, !llvm.ptr<1>
      %following = llvm.add %j, %one : i32
      %again = llvm.icmp "slt" %following, %size : i32
      llvm.cond_br %again, ^take(%following : i32), ^end
    ^end:
      llvm.return
    }}
"""
_PRIVATE = "      %place = llvm.bitcast %private : !llvm.ptr<5> to !llvm.ptr<5>"
# Of three lanes, one has its array in scratch, one in global memory, one in `third`.
_FLAT = """
      %three = llvm.mlir.constant(3 : i32) : i32
      %rest = llvm.urem %local, %three : i32
      %first = llvm.icmp "eq" %rest, %zero : i32
      %second = llvm.icmp "eq" %rest, %one : i32
      %flat_private = llvm.addrspacecast %private : !llvm.ptr<5> to !llvm.ptr
      %mine = llvm.getelementptr %spare[%start] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, i32
      %flat_global = llvm.addrspacecast %mine : !llvm.ptr<1> to !llvm.ptr
{third}
      %others = llvm.select %second, %flat_global, %flat_third : i1, !llvm.ptr
      %place = llvm.select %first, %flat_private, %others : i1, !llvm.ptr
"""
_GLOBAL_AGAIN = "      %flat_third = llvm.addrspacecast %mine : !llvm.ptr<1> to !llvm.ptr"
_LDS = """
      %all = llvm.mlir.addressof @shared : !llvm.ptr<3>
      %own = llvm.mul %local, %size : i32
      %part = llvm.getelementptr %all[%own] : (!llvm.ptr<3>, i32) -> !llvm.ptr<3>, i32
      %flat_third = llvm.addrspacecast %part : !llvm.ptr<3> to !llvm.ptr
"""
_SHARED = (
    "    llvm.mlir.global internal @shared() {addr_space = 3 : i32} : !llvm.array<1024 x i32>\n"
)
_KERNELS = ("private", "flat", "flat_lds")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CodeObjectProgram]:
    flat = "!llvm.ptr"
    body = _SHARED + "".join(
        [
            _KERNEL.format(name="private", place=_PRIVATE, type="!llvm.ptr<5>"),
            _KERNEL.format(name="flat", place=_FLAT.format(third=_GLOBAL_AGAIN), type=flat),
            _KERNEL.format(name="flat_lds", place=_FLAT.format(third=_LDS), type=flat),
        ]
    )
    made = compile_mlir(body, PROCESSORS, tmp_path_factory.mktemp("scratch"))
    return {name: CodeObjectProgram(code) for name, code in made.items()}


@pytest.mark.parametrize("kernel", _KERNELS)
@pytest.mark.parametrize("processor", PROCESSORS)
def test_arrays_in_scratch(
    programs: dict[str, CodeObjectProgram], processor: str, kernel: str
) -> None:
    program = programs[processor]
    count = _LANES * _GROUPS
    given = np.random.default_rng(7).integers(0, 1 << 32, (count, _SIZE), np.uint32)
    turned = (np.arange(count) % _LANES)[:, None] + np.arange(_SIZE)
    wanted = np.take_along_axis(given, turned % _SIZE, axis=1)
    metadata = program.image.kernels[kernel].metadata
    assert metadata[".private_segment_fixed_size"] >= 4 * _SIZE
    assert (metadata[".group_segment_fixed_size"] > 0) == (kernel == "flat_lds")
    for schedule in ALL_SCHEDULES:
        out, spare = fresh(given.shape, np.uint32), fresh(given.shape, np.uint32)
        grid, block = (_GROUPS, 1, 1), (_LANES, 1, 1)
        launch_kernel(program, kernel, grid, block, [given, out, spare], schedule)
        np.testing.assert_array_equal(out, wanted)
