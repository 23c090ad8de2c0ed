"""Launchers that compute, choose and repeat, and every way to call one: as FlyDSL itself does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flyc_cli.builder.supervisor import Built, compile_all
from flyc_cli.manifest import expand, load_manifest
from mlir_passes.toolkit import assemble_toolkit
from runtime_loader import hip
from runtime_loader.errors import ArgumentError, HipError, PlanError
from runtime_loader.kernel import Kernel
from runtime_loader.loader import load
from tests.hip_device.device import HipTestDevice, LaunchRecord
from tests.hip_device.oracle import OracleHipError
from tests.launch.flydsl_calls import FlyDslCalls
from tests.launch.oracle_bench import bundle_of

pytestmark = [pytest.mark.compile, pytest.mark.device]

TARGET = "gfx942"
KERNELS = Path(__file__).parent / "kernels"
TWO_NUMBERS = {"out": {"pointer": "i32"}, "n": "i32", "m": "i32"}
COMPUTING = ("shared_values", "divides", "chooses", "repeats", "moves_pointers")
COMPILE_TIME = {
    "number": 6,
    "flag": True,
    "text": "four",
    "ratio": 1.5,
    "mode": {"enum": "calls:Mode.LARGE"},
    "shape": {"tuple": [2, 3]},
    "rule": {"object": "calls:tripled"},
    "dtype": {"type": "bf16"},
}
OUT = "flyc.from_c_void_p(fx.Int32, 4096)"
OPTIONAL = {
    "bias": (8192, "flyc.from_c_void_p(fx.Float32, 8192)"),
    "n": (41, "41"),
    "scale": (-2.25, "-2.25"),
    "flag": (False, "False"),
    "wide": (5, "fx.Uint64(5)"),
    "config": (
        {"count": 11, "offset": 3},
        "kernels.Config(count=11, width=4, rule=kernels.DOUBLED, offset=3)",
    ),
}


def _manifest() -> dict[str, Any]:
    config = {
        "count": "i32",
        "offset": "u8",
        "width": {"constexpr": 4},
        "rule": {"constexpr": {"object": "calls:DOUBLED"}},
    }
    optional = {
        "bias": {"pointer": "f32"},
        "n": "i32",
        "scale": "f32",
        "flag": "i1",
        "wide": "u64",
        "config": {"struct": config},
    }
    entries: dict[str, dict[str, Any]] = {
        **{name: {"args": TWO_NUMBERS} for name in COMPUTING},
        "takes_addresses": {"args": {**TWO_NUMBERS, "out": "i64"}},
        "with_defaults": {"args": {"out": {"pointer": "i32"}, **optional}},
        "compile_time": {"args": {"out": {"pointer": "i32"}}, "constexpr": COMPILE_TIME},
        "model.launch": {"args": {"out": {"pointer": "i32"}, "n": "i32"}},
    }
    return {
        "flyc": 1,
        "name": "calls",
        "targets": [TARGET],
        "python_path": [str(KERNELS)],
        "kernels": [
            {"name": name.replace(".", "_"), "launcher": f"calls:{name}", **entry}
            for name, entry in entries.items()
        ],
    }


class Calls:
    """The launchers, built by us into a bundle, and FlyDSL with the same module."""

    def __init__(self, library: Path, directory: Path) -> None:
        toolkit = assemble_toolkit(directory / "toolkit")
        (directory / "manifest.yaml").write_text(yaml.safe_dump(_manifest()))
        requests = expand(load_manifest(directory / "manifest.yaml"))
        outcomes = compile_all(requests, toolkit=toolkit, jobs=2)
        assert not [o.message for o in outcomes if not isinstance(o, Built)]
        built = [outcome for outcome in outcomes if isinstance(outcome, Built)]
        with bundle_of(directory / "bundle", built) as bundle:
            self.path = Path(bundle.path)
        self.flydsl = FlyDslCalls(library, toolkit.directory, KERNELS, "calls", TARGET)
        self.device = HipTestDevice(library)


@pytest.fixture(scope="module")
def calls(hip_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    made = Calls(hip_library, tmp_path_factory.mktemp("calls"))
    with made.flydsl:
        yield made
    made.device.reset()


@pytest.fixture
def device(calls: Calls, hip_library: Path, monkeypatch: pytest.MonkeyPatch) -> HipTestDevice:
    monkeypatch.setenv(hip.LIBRARY_VARIABLE, str(hip_library))
    monkeypatch.setattr(hip, "_runtime", None)
    calls.device.configure(TARGET)
    return calls.device


def _plain(records: tuple[LaunchRecord, ...]) -> list[LaunchRecord]:
    return [replace(record, sequence=0, module_id=0) for record in records]


def _launched(
    device: HipTestDevice, kernel: Kernel, *args: Any, **named: Any
) -> list[LaunchRecord]:
    device.take_launches()
    kernel(*args, **named)
    return _plain(device.take_launches())


NUMBERS = st.one_of(
    st.integers(-3, 300), st.sampled_from([-(2**31), 2**31 - 1, 2**16]), st.integers(-9999, 9999)
)


@pytest.mark.parametrize("name", [*COMPUTING, "takes_addresses"])
def test_what_launchers_compute(name: str, calls: Calls, device: HipTestDevice) -> None:
    address = "fx.Int64({})" if name == "takes_addresses" else "flyc.from_c_void_p(fx.Int32, {})"
    launches = 0

    def written(out: int, n: int, m: int) -> dict[str, str]:
        return {"out": address.format(out), "n": f"fx.Int32({n})", "m": f"fx.Int32({m})"}

    calls.flydsl.compile(name, written(4096, 1, 1))
    with load(calls.path) as bundle:
        kernel = bundle.kernel(name)

        @settings(max_examples=40, derandomize=True, deadline=None)
        @given(
            st.integers(1, 2**60).map(lambda number: number * 4),
            st.integers(-3, 40) if name == "repeats" else NUMBERS,
            NUMBERS,
        )
        def compare(out: int, n: int, m: int) -> None:
            nonlocal launches
            try:
                ours = _launched(device, kernel, out, n, m)
            except PlanError:
                return  # FlyDSL's process would end, or compute what LLVM leaves undefined
            except (ArgumentError, HipError):
                with pytest.raises(OracleHipError):
                    calls.flydsl.launches(name, written(out, n, m))
                return
            assert ours == _plain(calls.flydsl.launches(name, written(out, n, m)))
            launches += len(ours)

        compare()
    assert launches


@settings(max_examples=25, derandomize=True, deadline=None)
@given(given_names=st.sets(st.sampled_from(sorted(OPTIONAL))))
def _compare_defaults(
    calls: Calls, device: HipTestDevice, kernel: Kernel, given_names: set[str]
) -> None:
    ours = _launched(device, kernel, 4096, **{name: OPTIONAL[name][0] for name in given_names})
    written = {"out": OUT, **{name: OPTIONAL[name][1] for name in given_names}}
    assert ours == _plain(calls.flydsl.call("with_defaults", written))
    # The same by position, as far as that goes.
    names = [name for name in OPTIONAL if name in given_names]
    if names == list(OPTIONAL)[: len(names)]:
        values = [OPTIONAL[name][0] for name in names]
        assert _launched(device, kernel, 4096, *values) == ours


def test_what_has_a_default_may_be_left_out(calls: Calls, device: HipTestDevice) -> None:
    with load(calls.path) as bundle:
        kernel = bundle.kernel("with_defaults")
        _compare_defaults(calls, device, kernel)
        null = _launched(device, kernel, 4096, bias=None)
        assert null == _launched(device, kernel, 4096)
        assert null == _launched(device, kernel.bind(out=4096))
        message = r"takes \(out, bias=\.\.\., n=\.\.\., scale=\.\.\., flag=\.\.\., wide=\.\.\., "
        message += r"config=\.\.\., "
        with pytest.raises(ArgumentError, match=message + r"stream=None\); missing: out"):
            kernel(n=3)


def test_compile_time_values_of_every_kind(calls: Calls, device: HipTestDevice) -> None:
    values = {
        "number": "6",
        "flag": "True",
        "text": "'four'",
        "ratio": "1.5",
        "rule": "kernels.tripled",
        "mode": "kernels.Mode.LARGE",
        "shape": "(2, 3)",
        "dtype": "fx.BFloat16",
    }
    with load(calls.path) as bundle:
        ours = _launched(device, bundle.kernel("compile_time"), 4096)
    # The code object too is the same: the values are in it.
    assert ours == _plain(calls.flydsl.call("compile_time", {"out": OUT, **values}))
    other = calls.flydsl.call("compile_time", {"out": OUT, **values, "dtype": "fx.Float32"})
    assert other[0].code_sha256 != ours[0].code_sha256


def test_a_method_of_an_object(calls: Calls, device: HipTestDevice) -> None:
    with load(calls.path) as bundle:
        ours = _launched(device, bundle.kernel("model_launch"), 4096, n=3)
    assert ours == _plain(calls.flydsl.call("model.launch", {"out": OUT, "n": "3"}))
    assert ours[0].grid == (5, 1, 1)
