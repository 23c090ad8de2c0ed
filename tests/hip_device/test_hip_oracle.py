"""FlyDSL's own runtime on the HIP test device: its host launcher is recorded faithfully."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.hip_device.compile_sample import CompiledSample
from tests.hip_device.oracle import (
    FlyDslOracle,
    OracleDiedError,
    OracleError,
    OracleHipError,
)

pytestmark = [pytest.mark.device, pytest.mark.compile]

Compile = Callable[[str, str], CompiledSample]


@pytest.fixture(scope="module")
def oracle(hip_library: Path) -> Iterator[FlyDslOracle]:
    with FlyDslOracle(hip_library, ["gfx942:sramecc+:xnack-", "gfx942:sramecc+:xnack-"]) as running:
        yield running


def _tensor(pointer: int, shape: tuple[int, int], stride: int) -> list[bytes]:
    return [struct.pack("<Q", pointer), struct.pack("<iiq", *shape, stride)]


def _i32(value: int) -> bytes:
    return struct.pack("<i", value)


def _pointer(value: int) -> bytes:
    return struct.pack("<Q", value)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50
)
@given(
    pointer=st.integers(0, 2**64 - 1),
    shape=st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1)),
    stride=st.integers(-(2**63), 2**63 - 1),
    factor=st.floats(width=32),
    rows=st.integers(1, 60000),
    parts=st.integers(1, 50),
)
def test_arguments_and_sizes_arrive(
    oracle: FlyDslOracle,
    sample: Compile,
    pointer: int,
    shape: tuple[int, int],
    stride: int,
    factor: float,
    rows: int,
    parts: int,
) -> None:
    scale = sample("scale", "gfx942")
    explicit = [*_tensor(pointer, shape, stride), struct.pack("<f", factor), _i32(rows)]
    slots = [*explicit, _i32(parts), _pointer(0)]
    if rows < parts:
        with pytest.raises(OracleHipError) as refused:
            oracle.launches(scale.mlir, scale.entry, slots)
        assert refused.value.code == 1
        return
    (launch,) = oracle.launches(scale.mlir, scale.entry, slots)
    assert launch.kernel == "scale_kernel_0"
    assert launch.grid == (rows // parts, parts, 1)
    assert launch.block == (64, 1, 1)
    assert (launch.dynamic_lds, launch.stream, launch.device) == (1024, 0, 0)
    assert launch.kernarg == b"".join(explicit)
    assert launch.code_sha256 == hashlib.sha256(scale.hsaco).hexdigest()


def test_streams_and_several_launches(oracle: FlyDslOracle, sample: Compile) -> None:
    twice = sample("scale_twice", "gfx942")
    stream = oracle.create_stream()
    slots = [*_tensor(4096, (8, 64), 64), struct.pack("<f", 1), _i32(8), _pointer(stream)]
    launches = oracle.launches(twice.mlir, twice.entry, slots)
    assert [launch.grid for launch in launches] == [(8, 1, 1), (9, 1, 1)]
    assert {launch.stream for launch in launches} == {stream}
    assert [launch.kernarg[-4:] for launch in launches] == [_i32(8), _i32(9)]


def test_a_stream_of_another_device_is_refused(oracle: FlyDslOracle, sample: Compile) -> None:
    twice = sample("scale_twice", "gfx942")
    stream = oracle.create_stream(device=1)
    slots = [*_tensor(4096, (8, 64), 64), struct.pack("<f", 1), _i32(8), _pointer(stream)]
    with pytest.raises(OracleHipError) as refused:
        oracle.launches(twice.mlir, twice.entry, slots)
    assert refused.value.code == 400


def test_a_crash_is_reported_and_survived(oracle: FlyDslOracle, sample: Compile) -> None:
    scale = sample("scale", "gfx942")
    slots = [*_tensor(4096, (8, 64), 64), struct.pack("<f", 1), _i32(8)]
    with pytest.raises(OracleDiedError) as died:
        oracle.launches(scale.mlir, scale.entry, [*slots, _i32(0), _pointer(0)])
    assert died.value.returncode < 0
    assert len(oracle.launches(scale.mlir, scale.entry, [*slots, _i32(1), _pointer(0)])) == 1


def test_text_that_is_no_module_is_an_error(oracle: FlyDslOracle) -> None:
    with pytest.raises(OracleError, match="MLIRError"):
        oracle.launches("module { nonsense }", "entry", [])


def test_clusters_and_other_targets(hip_library: Path, sample: Compile) -> None:
    clustered = sample("scale_in_clusters", "gfx1250")
    slots = [*_tensor(4096, (8, 64), 64), struct.pack("<f", 1), _i32(8), _pointer(0)]
    with FlyDslOracle(hip_library, ["gfx1201"]) as oracle:
        with pytest.raises(OracleHipError) as refused:
            oracle.launches(clustered.mlir, clustered.entry, slots)
        assert refused.value.code == 209
        oracle.configure(["gfx1250"])
        (launch,) = oracle.launches(clustered.mlir, clustered.entry, slots)
    assert (launch.grid, launch.cluster) == ((8, 1, 1), (2, 1, 1))
