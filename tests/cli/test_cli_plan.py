"""`flyc plan`, and every manifest that is refused before anything is compiled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.samples import MANIFEST


def test_a_row_for_each_specialisation(invoke, project: Path) -> None:
    result = invoke("plan", project / "manifest.yaml")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["kernel", "parameters", "target", "arguments"]
    assert [line.split()[:3] for line in lines[1:5]] == [
        ["scale", "N=64", "gfx942"],
        ["scale", "N=64", "gfx1201"],
        ["scale", "N=128", "gfx942"],
        ["scale", "N=128", "gfx1201"],
    ]
    assert lines[1].endswith("x: pointer to f32 align 16, factor: f32")
    assert lines[5:] == ["4 specialisations of 1 kernel for 2 targets"]


def test_json(invoke, project: Path) -> None:
    found = json.loads(invoke("plan", project / "manifest.yaml", "--json").stdout)
    assert found["name"] == "samples"
    assert [(s["params"], s["target"]) for s in found["specialisations"]] == [
        ({"N": 64}, "gfx942"),
        ({"N": 64}, "gfx1201"),
        ({"N": 128}, "gfx942"),
        ({"N": 128}, "gfx1201"),
    ]
    assert found["specialisations"][0]["launcher"] == "kernels:scale"


def test_narrowed(invoke, project: Path) -> None:
    args = ("--kernel", "sc*", "--target", "gfx1201", "--json")
    found = json.loads(invoke("plan", project / "manifest.yaml", *args).stdout)
    assert {s["target"] for s in found["specialisations"]} == {"gfx1201"}


WRONG = {
    "malformed": ("flyc: 1\nname: [", "manifest.yaml:2:8: "),
    "unknown key": (MANIFEST.replace("constexpr:", "constexp:"), "constexpr"),
    "wrong type": (MANIFEST.replace("name: samples", "name: [samples]"), "manifest.yaml:2:7: "),
    "unsupported target": (MANIFEST.replace("gfx1201", "gfx1200"), "gfx1200"),
    "empty expansion": (MANIFEST.replace("[64, 128]", "[]"), "manifest.yaml:"),
    "no version": (MANIFEST.replace("flyc: 1\n", ""), "flyc"),
    "future version": (MANIFEST.replace("flyc: 1\n", "flyc: 2\n"), "flyc"),
    "unknown type": (MANIFEST.replace("factor: f32", "factor: f33"), "f32"),
    "twice": (MANIFEST.replace("[64, 128]", "[64, 64]"), "manifest.yaml:"),
}


@pytest.mark.parametrize("command", ["plan", "build", "inspect"])
@pytest.mark.parametrize("case", WRONG)
def test_wrong_manifests(invoke, tmp_path: Path, command: str, case: str) -> None:
    text, said = WRONG[case]
    path = tmp_path / "manifest.yaml"
    path.write_text(text)
    result = invoke(command, path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    report = invoke(command, path, "--json")
    assert (report.exit_code, report.stderr) == (2, "")
    error = json.loads(report.stdout)["error"]
    assert (error["kind"], error["exit_code"]) == ("ManifestError", 2)
    assert error["file"] == str(path)
    assert error["line"] >= 1
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--kernel", "scal"), "did you mean"),
        (("--kernel", "norm*"), "no kernel matches 'norm*'"),
        (("--target", "gfx950"), "its targets are"),
        (("--target", "gfx1103"), "flyc does not build for gfx1103"),
        (("--target", "mi300"), "not a target ID"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "build"])
def test_selections_that_match_nothing(invoke, project, tmp_path, command, args, said) -> None:
    where = ("-o", tmp_path / "out") if command == "build" else ()
    result = invoke(command, project / "manifest.yaml", *args, *where)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_manifest_that_is_not_there(invoke, tmp_path: Path) -> None:
    for command in ("plan", "build", "inspect"):
        result = invoke(command, tmp_path / "nothing.yaml")
        assert result.exit_code == 2
        assert "nothing.yaml" in result.stderr
