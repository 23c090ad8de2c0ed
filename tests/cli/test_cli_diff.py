"""`flyc diff` on made-up bundles, and budgets of real ones."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from flyc_cli.builder.budgets import over_budget
from flyc_cli.builder.outcomes import Built
from flyc_cli.bundle_writer import BundleContents, write_bundle
from flyc_cli.manifest.model import Budget, Budgets
from runtime_loader.code_object import machine_code, read_code_object
from runtime_loader.records import replace
from runtime_loader.target import Target
from tests.cli.samples import specialisation

GFX942, XNACK = Target.parse("gfx942"), Target.parse("gfx942:xnack-")


def written(directory: Path, *pairs: Any) -> Path:
    contents = BundleContents(
        "made-up", {}, [s for s, _ in pairs], {s.code_object: code for s, code in pairs}
    )
    return write_bundle(directory, contents).path


def test_what_changed(invoke, tmp_path: Path) -> None:
    same, other, gone, fresh = (
        specialisation("rmsnorm", "gfx942", N=n, dtype="bf16") for n in (64, 128, 256, 512)
    )
    spec, code = other
    (kernel,) = spec.kernels
    heavier = replace(kernel.resources, vgprs=99, vgpr_spills=7)
    changed = replace(spec, kernels=(replace(kernel, resources=heavier),))
    image = code + b"more"
    changed = replace(changed, code_object=hashlib.sha256(image).hexdigest())
    old = written(tmp_path / "old", same, other, gone)
    new = written(tmp_path / "new", same, (changed, image), fresh)
    result = invoke("diff", old, new)
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[2][:5] == ["rmsnorm", "N=256", "dtype=bf16", "gfx942", "removed"]
    assert "1 identical" in result.stdout.splitlines()[-1]
    found = json.loads(invoke("diff", old, new, "--json").stdout)
    changes = {one["params"]["N"]: one["change"] for one in found["specialisations"]}
    assert changes == {64: "identical", 128: "changed", 256: "removed", 512: "added"}
    assert found["counts"] == {"changed": 1, "removed": 1, "added": 1, "identical": 1}
    assert invoke("diff", old, new, "--exit-code").exit_code == 1
    assert invoke("diff", old, old, "--exit-code").exit_code == 0


def test_another_interface(invoke, tmp_path: Path) -> None:
    spec, code = specialisation("rmsnorm", "gfx942", N=64, dtype="bf16")
    form = replace(spec.signature[0], align=32)
    wider = replace(spec, signature=(form, *spec.signature[1:]))
    old = written(tmp_path / "old", (spec, code))
    new = written(tmp_path / "new", (wider, code))
    assert "1 interface" in invoke("diff", old, new).stdout


def test_what_is_no_bundle(invoke, tmp_path: Path) -> None:
    result = invoke("diff", tmp_path / "a", tmp_path / "b")
    assert result.exit_code == 2
    assert "there is no such bundle" in result.stderr


def test_the_nearest_budget_holds() -> None:
    budgets = Budgets(
        Budget(vgprs=64, spills=0), {GFX942: Budget(vgprs=96, lds=10), XNACK: Budget(lds=20)}
    )
    assert budgets.of(Target.parse("gfx1201")) == Budget(vgprs=64, spills=0)
    assert budgets.of(GFX942) == Budget(vgprs=96, spills=0, lds=10)
    assert budgets.of(XNACK) == Budget(vgprs=96, spills=0, lds=20)
    assert Budget(lds=1).or_else(budgets.of(XNACK)) == Budget(vgprs=96, spills=0, lds=1)


@pytest.mark.compile
def test_builds_that_exceed_a_budget(tmp_path: Path) -> None:
    from flyc_cli.builder.build import build, compile_planned, plan
    from flyc_cli.builder.failures import OverBudgetError
    from tests.store import project

    project.write_kernel(tmp_path, "scale", "def value():\n    return 3\n")
    (one,) = compile_planned(plan(project.write_manifest(tmp_path, ["scale"]))).built
    assert isinstance(one, Built)
    (symbol,) = read_code_object(one.code_object).kernels
    size = len(machine_code(one.code_object)[symbol])
    resources = one.specialisation.kernels[0].resources
    assert size % 4 == 0
    assert size > 16

    kept = f"budgets: {{vgprs: {resources.vgprs}, code_size: {size}, spills: 0, waves: 1}}\n"
    written = build(project.write_manifest(tmp_path, ["scale"], kept), tmp_path / "out")
    before = sorted((tmp_path / "out").iterdir())
    tight = (
        f"budgets: {{vgprs: {resources.vgprs - 1}, waves: {resources.waves_per_simd + 1}, "
        f"targets: {{gfx942: {{code_size: {size - 1}}}}}}}\n"
    )
    manifest = project.write_manifest(tmp_path, ["scale"], tight)
    with pytest.raises(OverBudgetError) as caught:
        build(manifest, tmp_path / "out")
    text = str(caught.value)
    assert "scale() for gfx942 exceeds its budget" in text
    assert (
        f"{symbol}: {resources.vgprs} VGPRs, and the budget is at most {resources.vgprs - 1} "
        f"(the previous bundle: {resources.vgprs})"
    ) in text
    assert f"the budget is at least {resources.waves_per_simd + 1}" in text
    assert f"{size:,} bytes of code, and the budget is at most {size - 1:,}" in text
    assert text.endswith("1 of 1 specialisation take more than their budget; nothing was written")
    assert sorted((tmp_path / "out").iterdir()) == before
    assert written.path.exists()
    assert over_budget([one], tmp_path / "nothing.flybundle") == []
