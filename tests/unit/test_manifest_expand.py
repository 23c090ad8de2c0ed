"""Expansion: which specialisations a manifest asks for, in which order."""

from __future__ import annotations

import itertools
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flyc_cli.manifest import (
    MAX_REQUESTS,
    EnumValue,
    Kernel,
    ListValue,
    Manifest,
    ManifestError,
    ObjectValue,
    Request,
    Row,
    SelectionError,
    TensorArg,
    TupleValue,
    TypeValue,
    expand,
    load_manifest,
    parse_manifest,
)
from flyc_cli.manifest.model import params_key
from runtime_loader.target import Target

GFX942, GFX1201 = Target("gfx942"), Target("gfx1201")


def manifest(*kernels: Any, directory: Path = Path(), **top: Any) -> Manifest:
    data = {"flyc": 1, "name": "m", "targets": ["gfx942", "gfx1201"], **top}
    data["kernels"] = [{"name": f"k{i}", **kernel} for i, kernel in enumerate(kernels)]
    text = yaml.safe_dump(data, sort_keys=False)
    return parse_manifest(text.encode(), "m.yaml", directory)


def requests(kernel: Any, **top: Any) -> tuple[Request, ...]:
    return expand(manifest(kernel, **top))


def params(kernel: Any, **top: Any) -> list[dict[str, Any]]:
    return [r.params for r in requests(kernel, targets=["gfx942"], **top)]


def launcher(**keys: Any) -> dict[str, Any]:
    return {"launcher": "m:f", **keys}


def factory(**keys: Any) -> dict[str, Any]:
    return {"factory": "pkg.m:make.it", **keys}


def test_a_kernel_without_parameters() -> None:
    first, second = requests(launcher())
    assert (first.kernel, first.target, first.params) == ("k0", GFX942, {})
    assert second.target == GFX1201
    assert first.label() == "k0() for gfx942"
    assert first.key() == b"k0\0{}\0gfx942"


def test_sweeps_are_a_product_in_manifest_order() -> None:
    found = params(launcher(constexpr={"N": [4, 2], "fixed": 7, "dtype": ["bf16", "f16"]}))
    assert found == [
        {"N": n, "fixed": 7, "dtype": dtype} for n in (4, 2) for dtype in ("bf16", "f16")
    ]
    assert [list(p) for p in found] == [["N", "fixed", "dtype"]] * 4


def test_each_parameter_goes_where_it_was_named() -> None:
    (request,) = requests(
        factory(
            select="launch",
            kwargs={"tile": 64},
            constexpr={"stages": "$stages", "N": 8},
            params={"waves": "$waves"},
            matrix=[{"depth": 2, "stages": 3, "waves": 4}],
            hints={"waves_per_eu": "$waves"},
        ),
        targets=["gfx942"],
    )
    assert request.source.kind == "factory"
    assert (request.source.module, request.source.qualname) == ("pkg.m", "make.it")
    assert request.source.select == "launch"
    assert request.source.kwargs == {"tile": 64, "depth": 2}
    assert request.constexpr == {"stages": 3, "N": 8}
    assert request.params == {"tile": 64, "stages": 3, "N": 8, "waves": 4, "depth": 2}
    assert request.hints == {"waves_per_eu": 4}
    (request,) = requests(launcher(matrix=[{"N": 8}]), targets=["gfx942"])
    assert (request.source.kwargs, request.constexpr) == ({}, {"N": 8})


def test_rows_combine_with_sweeps_and_may_be_for_some_targets() -> None:
    kernel = factory(
        kwargs={"dtype": ["bf16", "f16"]},
        matrix=[{"m": 16, "n": 64}, {"n": 128, "m": 64, "targets": ["gfx942"]}],
    )
    assert [(r.params["dtype"], r.params["m"], str(r.target)) for r in requests(kernel)] == [
        ("bf16", 16, "gfx942"),
        ("bf16", 16, "gfx1201"),
        ("bf16", 64, "gfx942"),
        ("f16", 16, "gfx942"),
        ("f16", 16, "gfx1201"),
        ("f16", 64, "gfx942"),
    ]


def test_exclude_then_include() -> None:
    kernel = launcher(
        constexpr={"N": [1, 2, 3], "d": ["a", "b"], "fixed": 0},
        exclude=[
            {"N": 1, "d": "b"},
            {"N": 2, "targets": ["gfx1201"]},
            {"when": "${N > 2 and d == 'a'}"},
        ],
        include=[{"N": 1, "d": "b", "targets": ["gfx1201"]}, {"N": 9, "d": "z", "fixed": 5}],
    )
    found = [
        (r.params["N"], r.params["d"], r.params["fixed"], r.target.processor)
        for r in requests(kernel)
    ]
    assert found == [
        (1, "a", 0, "gfx942"),
        (1, "a", 0, "gfx1201"),
        (2, "a", 0, "gfx942"),
        (2, "b", 0, "gfx942"),
        (3, "b", 0, "gfx942"),
        (3, "b", 0, "gfx1201"),
        (1, "b", 0, "gfx1201"),
        (9, "z", 5, "gfx942"),
        (9, "z", 5, "gfx1201"),
    ]


def test_exclusions_distinguish_types() -> None:
    kernel = launcher(constexpr={"flag": [1, True, "1", 1.0]}, exclude=[{"flag": True}])
    assert params(kernel) == [{"flag": 1}, {"flag": "1"}, {"flag": 1.0}]


def test_derived_values_in_any_order() -> None:
    kernel = factory(
        kwargs={"bytes": "${2 * area}", "area": "${m * n}", "m": [2, 4], "n": 8, "note": "m=$m"}
    )
    assert params(kernel) == [
        {"bytes": 32, "area": 16, "m": 2, "n": 8, "note": "m=2"},
        {"bytes": 64, "area": 32, "m": 4, "n": 8, "note": "m=4"},
    ]


def test_typed_values() -> None:
    (request,) = requests(
        factory(
            kwargs={
                "t": {"type": "bf16"},
                "u": {"type": "$t"},
                "same": "$t",
                "e": {"enum": "modes:Outer.Mode.FAST"},
                "o": {"object": "pkg.layouts:ROW"},
                "pair": {"tuple": [1, {"list": ["$n", None]}]},
                "n": 3,
                "none": None,
            },
            args={"x": {"dtype": "$t", "shape": ["?"]}},
        ),
        targets=["gfx942"],
    )
    assert request.source.kwargs == {
        "t": TypeValue("bf16"),
        "u": TypeValue("bf16"),
        "same": TypeValue("bf16"),
        "e": EnumValue("modes", "Outer.Mode.FAST"),
        "o": ObjectValue("pkg.layouts", "ROW"),
        "pair": TupleValue((1, ListValue((3, None)))),
        "n": 3,
        "none": None,
    }
    assert request.params == {
        "t": "bf16",
        "u": "bf16",
        "same": "bf16",
        "e": "FAST",
        "o": "ROW",
        "pair": [1, [3, None]],
        "n": 3,
        "none": None,
    }
    assert request.args[0].to_json()["dtype"] == "bf16"


def test_a_list_of_lists_is_swept_with_tags() -> None:
    kernel = launcher(constexpr={"tile": [{"tuple": [16, 64]}, {"tuple": [64, 16]}]})
    assert params(kernel) == [{"tile": [16, 64]}, {"tile": [64, 16]}]


def test_targets_of_kernels_cover_more_specific_ones() -> None:
    top = {"targets": ["gfx942", "gfx942:xnack-", "gfx942:sramecc+:xnack-", "gfx1201"]}
    found = [str(r.target) for r in requests(launcher(targets=["gfx942:xnack-"]), **top)]
    assert found == ["gfx942:xnack-", "gfx942:sramecc+:xnack-"]
    found = [str(r.target) for r in requests(launcher(targets=["gfx942"]), **top)]
    assert found == ["gfx942", "gfx942:xnack-", "gfx942:sramecc+:xnack-"]
    found = [str(r.target) for r in requests(launcher(), defaults={"targets": ["gfx1201"]}, **top)]
    assert found == ["gfx1201"]


def test_targets_may_be_given_by_the_kernels_alone() -> None:
    text = "flyc: 1\nname: m\nkernels: [{name: k, launcher: m:f, targets: [gfx950, gfx90a]}]\n"
    found = expand(parse_manifest(text.encode(), "m.yaml", Path()))
    assert [str(r.target) for r in found] == ["gfx950", "gfx90a"]


def test_defaults_and_what_overrides_them() -> None:
    first, second = expand(
        manifest(
            launcher(),
            launcher(
                hints={"fast_fp_math": None, "waves_per_eu": [1, "$w"]},
                env={"A": None, "B": "n=$w", "C": "$w"},
                params={"w": 4},
            ),
            targets=["gfx942"],
            defaults={
                "hints": {"fast_fp_math": True, "llvm_options": {"x": 3, "y": True, "z": "$$"}},
                "env": {"A": "1", "B": "2"},
            },
        )
    )
    options = {"x": 3, "y": True, "z": "$"}
    assert first.hints == {"fast_fp_math": True, "llvm_options": options}
    assert first.env == {"A": "1", "B": "2"}
    assert second.hints == {"llvm_options": options, "waves_per_eu": [1, 4]}
    assert second.env == {"B": "n=4", "C": "4"}


def test_paths_are_relative_to_the_manifest(tmp_path: Path) -> None:
    for name in ("a/kernels", "b", "rocm"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a" / "manifest.yaml").write_text(
        "flyc: 1\nname: m\ntargets: [gfx942]\npython_path: [., ../b]\ntoolchain: {rocm: ../rocm}\n"
        "kernels: [{name: k, launcher: m:f, python_path: [kernels]}]\n"
    )
    loaded = load_manifest(tmp_path / "a" / "manifest.yaml")
    (request,) = expand(loaded)
    assert request.python_path == tuple(str(tmp_path / p) for p in ("a/kernels", "a", "b"))
    assert loaded.toolchain.rocm == tmp_path / "rocm"
    assert request.where.line == 6
    assert len(loaded.sha256) == 64
    assert loaded == load_manifest(str(tmp_path / "a" / "manifest.yaml"))


def test_selection_by_pattern_and_target() -> None:
    both = manifest(launcher(), launcher(constexpr={"N": [1, 2]}, targets=["gfx942"]))
    assert {r.kernel for r in expand(both)} == {"k0", "k1"}
    assert [r.kernel for r in expand(both, ["k1"])] == ["k1", "k1"]
    assert len(expand(both, ["k*"], [GFX942])) == 3
    assert [r.kernel for r in expand(both, None, [GFX1201])] == ["k0"]
    with pytest.raises(SelectionError, match=r"no kernel matches 'kk0'; did you mean 'k0'\?"):
        expand(both, ["k0", "kk0"])
    with pytest.raises(SelectionError, match=r"nothing here is for target gfx1201.* gfx942"):
        expand(both, ["k1"], [GFX1201])
    with pytest.raises(SelectionError, match="nothing here is for target gfx950"):
        expand(both, None, [GFX942, Target("gfx950")])


def test_selecting_a_target_keeps_exclusions_of_others_valid() -> None:
    one = manifest(
        launcher(constexpr={"N": [1, 2]}, exclude=[{"N": 1, "targets": ["gfx1201"]}]),
    )
    assert [r.params["N"] for r in expand(one, None, [GFX942])] == [1, 2]


def test_the_python_api_expands_like_a_file() -> None:
    made = Manifest(
        name="m",
        targets=(GFX942,),
        kernels=(
            Kernel(
                name="k",
                factory="m:make",
                kwargs={"N": (2, 4)},
                matrix=(Row({"tile": 8}),),
                args={"x": TensorArg("f32", ("?", "$N"))},
            ),
        ),
    )
    text = (
        "flyc: 1\nname: m\ntargets: [gfx942]\nkernels:\n- name: k\n  factory: m:make\n"
        "  kwargs: {N: [2, 4]}\n  matrix: [{tile: 8}]\n"
        "  args: {x: {dtype: f32, shape: ['?', $N]}}\n"
    )
    read = parse_manifest(text.encode(), "m.yaml", Path())
    assert [r.key() for r in expand(made)] == [r.key() for r in expand(read)]
    assert [r.args for r in expand(made)] == [r.args for r in expand(read)]
    wrong = Manifest("m", (Kernel("k", launcher="m:f", args={"x": TensorArg("f3", ("?",))}),))
    with pytest.raises(ManifestError, match="expands to nothing"):
        expand(wrong)
    wrong = Manifest("m", wrong.kernels, (GFX942,))
    with pytest.raises(ManifestError, match=r"kernels\[0\].args.x.dtype: 'f3' is not an element"):
        expand(wrong)


def test_huge_sweeps_are_refused_before_they_are_expanded() -> None:
    side = list(range(64))
    kernel = launcher(constexpr=dict.fromkeys("abcdef", side))
    with pytest.raises(ManifestError, match=f"137,438,953,472 .* at most {MAX_REQUESTS:,}"):
        requests(kernel)


def test_requests_and_errors_can_be_sent_to_workers() -> None:
    (request,) = requests(launcher(constexpr={"t": {"type": "f32"}}), targets=["gfx942"])
    assert pickle.loads(pickle.dumps(request)) == request
    with pytest.raises(ManifestError) as caught:
        requests(launcher(constexpr={"t": []}))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.place) == (str(caught.value), caught.value.place)


_NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
_VALUES = st.integers(-3, 9) | st.booleans() | st.sampled_from(["bf16", "f16", ""]) | st.none()


@st.composite
def kernels(draw: st.DrawFn) -> dict[str, Any]:
    swept = draw(
        st.dictionaries(
            _NAMES,
            st.lists(_VALUES, min_size=1, max_size=3, unique_by=lambda v: (type(v), v)),
            max_size=3,
        )
    )
    kernel: dict[str, Any] = {"launcher": "m:f", "constexpr": swept}
    if draw(st.booleans()):
        columns = draw(st.sets(st.sampled_from(["p", "q"]), min_size=1))
        rows = st.fixed_dictionaries(dict.fromkeys(sorted(columns), _VALUES))
        kernel["matrix"] = draw(
            st.lists(rows, min_size=1, max_size=3, unique_by=lambda row: params_key(row))
        )
    return kernel


@settings(deadline=None)
@given(kernels(), st.permutations(["gfx942", "gfx1201", "gfx950"]), st.integers(1, 3))
def test_random_manifests(kernel: dict[str, Any], targets: list[str], count: int) -> None:
    text = yaml.safe_dump(
        {
            "flyc": 1,
            "name": "m",
            "targets": targets[:count],
            "kernels": [{"name": "k", **kernel}],
        },
        sort_keys=False,
    ).encode()
    found = expand(parse_manifest(text, "m.yaml", Path()))
    assert found == expand(parse_manifest(text, "m.yaml", Path()))
    swept, rows = kernel["constexpr"], kernel.get("matrix", [{}])
    assert len(found) == math.prod(map(len, swept.values())) * len(rows) * count
    assert len({request.key() for request in found}) == len(found)
    expected = [
        ({**dict(zip(swept, values, strict=True)), **row}, target)
        for values in itertools.product(*swept.values())
        for row in rows
        for target in targets[:count]
    ]
    assert [(r.params, str(r.target)) for r in found] == expected
    assert all(r.constexpr == r.params for r in found)
