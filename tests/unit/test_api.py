"""The Python API: manifests as objects mean what their files mean, and cost nothing to import."""

from __future__ import annotations

import dataclasses
import enum
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import flyc_cli
from flyc_cli import Kernel, Manifest, Specialisation, plan
from flyc_cli.manifest import (
    ConstantArg,
    EnumValue,
    ListValue,
    ManifestError,
    ObjectValue,
    PointerArg,
    SelectionError,
    StructArg,
    TensorArg,
    TupleValue,
    TypeValue,
    expand,
    load_manifest,
)
from flyc_cli.manifest import Kernel as CheckedKernel
from flyc_cli.manifest.parse_kernel import KernelParser
from flyc_cli.manifest.source import parse_document
from flyc_cli.manifest.write import manifest_yaml
from runtime_loader.errors import FlycError

ROOT = Path(__file__).parents[2]


class Mode(enum.Enum):
    FAST = 1


class Tile(enum.IntEnum):
    SMALL = 16


def helper() -> None:
    raise AssertionError


GEMM = Kernel(
    "gemm",
    factory="gemms:make",
    kwargs={
        "tile": [(16, 64), (64, 128)],
        "mode": Mode.FAST,
        "dtype": {"type": "bf16"},
        "again": TypeValue("f16"),
        "helper": helper,
        "names": ListValue(("a", "017", "yes")),
        "object": ObjectValue("m", "a.b"),
        "enum": EnumValue("m", "A.B"),
        "pair": TupleValue((1, 2.5)),
        "nothing": None,
    },
    args={
        "x": TensorArg("$dtype", ("?", "?8"), align=16),
        "p": PointerArg("f32"),
        "s": StructArg({"n": PointerArg("i8", 16), "t": ConstantArg(TupleValue((1, 2)))}),
        "n": "i32",
        "stream": "stream",
    },
    hints={"waves_per_eu": 2},
)


def test_an_object_means_what_its_file_means(tmp_path: Path) -> None:
    manifest = Manifest("m", kernels=[GEMM], targets=["gfx942"], defaults={"args": {"align": 16}})
    path = manifest.write(tmp_path / "manifest.yaml")
    from_file = expand(load_manifest(path))
    from_object = plan(manifest, base=tmp_path)
    assert [vars(a) | {"where": 0} for a in from_file] == [
        vars(b) | {"where": 0} for b in from_object
    ]
    assert [request.source.kwargs for request in from_object] == [
        {
            "tile": TupleValue(tile),
            "mode": EnumValue(__name__, "Mode.FAST"),
            "dtype": TypeValue("bf16"),
            "again": TypeValue("f16"),
            "helper": ObjectValue(__name__, "helper"),
            "names": ListValue(("a", "017", "yes")),
            "object": ObjectValue("m", "a.b"),
            "enum": EnumValue("m", "A.B"),
            "pair": TupleValue((1, 2.5)),
            "nothing": None,
        }
        for tile in ((16, 64), (64, 128))
    ]
    assert [form.name for form in from_object[0].args] == ["x", "p", "s", "n", "stream"]


def test_rows_with_targets_and_plain_values_of_other_libraries(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    kernel = Kernel(
        "k",
        launcher="m:f",
        matrix=[
            Specialisation({"N": numpy.int64(64), "eps": numpy.float64(0.5)}),
            Specialisation({"N": 128, "eps": 1e-30}, targets=["gfx942"]),
            {"N": 256, "eps": 1, "targets": ["gfx950"]},
        ],
        exclude=[{"N": 64, "targets": ["gfx950"]}],
        python_path=[tmp_path],
    )
    requests = plan(Manifest("m", kernels=[kernel], targets=["gfx942", "gfx950"]))
    assert [(request.params, str(request.target)) for request in requests] == [
        ({"N": 64, "eps": 0.5}, "gfx942"),
        ({"N": 128, "eps": 1e-30}, "gfx942"),
        ({"N": 256, "eps": 1}, "gfx950"),
    ]
    assert requests[0].python_path[0] == str(tmp_path)


def test_patterns_and_targets_select(tmp_path: Path) -> None:
    kernels = [Kernel(name, launcher="m:f") for name in ("one", "two")]
    manifest = Manifest("m", kernels=kernels, targets=["gfx942", "gfx950"])
    (only,) = plan(manifest, kernels=["t*"], targets=["gfx950"])
    assert only.label() == "two() for gfx950"
    with pytest.raises(SelectionError, match="no kernel matches 'three'"):
        plan(manifest, kernels=["three"])
    with pytest.raises(FlycError, match="gfx94"):
        plan(manifest, targets=["gfx94"])


def test_what_is_wrong_is_said_as_for_a_file(tmp_path: Path) -> None:
    kernel = Kernel("k", launcher="m:f", constexpr={"N": 1}, args={"x": "i33"})
    with pytest.raises(ManifestError, match=r"manifest m:\d+:\d+: kernels\[0\]\.args\.x: 'i33' is"):
        plan(Manifest("m", kernels=[kernel], targets=["gfx942"]))
    with pytest.raises(ManifestError, match=r"a manifest needs the key .kernels."):
        plan(Manifest("m", kernels=[], targets=["gfx942"]))


@pytest.mark.parametrize("value", [object(), 1j, {1, 2}, b"x"])
def test_values_that_a_manifest_cannot_hold(value: Any) -> None:
    kernel = Kernel("k", launcher="m:f", constexpr={"N": value})
    with pytest.raises(FlycError, match=r"kernel k: constexpr\.N: a manifest cannot hold"):
        Manifest("m", kernels=[kernel]).to_yaml()


def test_numbers_that_a_manifest_cannot_hold() -> None:
    kernel = Kernel("k", launcher="m:f", constexpr={"N": math.inf})
    with pytest.raises(ManifestError, match="not a finite number"):
        plan(Manifest("m", kernels=[kernel], targets=["gfx942"]))


def test_an_integer_enum_member_is_passed_as_the_member() -> None:
    kernel = Kernel("k", launcher="m:f", constexpr={"tile": Tile.SMALL})
    assert "test_api:Tile.SMALL" in Manifest("m", kernels=[kernel]).to_yaml()


def test_kernels_have_every_key_of_the_file() -> None:
    fields = {field.name for field in dataclasses.fields(Kernel)}
    assert fields == set(KernelParser._KEYS)
    assert fields - {"rows"} == {f.name for f in dataclasses.fields(CheckedKernel)} - {"table"}


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")))
    | st.sampled_from(
        ["yes", "No", "~", "", "017", "1e3", "0x1f", "1_0", "null", "<<", "2020-01-01"]
    )
)
keys = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=6)
documents = st.dictionaries(
    keys,
    st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # the first draw loads Unicode's tables
@given(documents)
def test_what_is_written_is_read_back(document: dict[str, Any]) -> None:
    found = parse_document(manifest_yaml(document).encode(), "m.yaml").value
    assert repr(found) == repr(document)


def test_importing_it_is_cheap_and_keeps_build_a_function() -> None:
    code = (
        "import sys, flyc_cli\n"
        "heavy = {'yaml', 'click', 'rich', 'zstandard', 'flydsl', 'torch', 'numpy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "import flyc_cli.builder.build\n"
        "from flyc_cli import build\n"
        "assert build is flyc_cli.api.build\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    assert callable(flyc_cli.build)
