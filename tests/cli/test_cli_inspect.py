"""`flyc inspect` on bundles: what is shown, what is refused, and that no compiler is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flyc_cli.bundle_writer import write_bundle
from tests.cli.samples import STAGES, specialisation
from tests.unit.test_table import ROWS, table_contents

ONE = ("rmsnorm", "N=4096", "dtype=bf16", "--target", "gfx942")


def test_a_bundle(invoke, bundle: Path) -> None:
    result = invoke("inspect", bundle)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("made-up ")
    assert "10 specialisations, 2 kernels, 10 code objects" in lines[0]
    text = result.stdout
    assert "toolkit linker  a linker" in text
    assert ["gelu", "eps=0.5", "fast=true", "gfx942", "gfx942:xnack-", "2"] in map(str.split, lines)
    assert ["rmsnorm", "dtype", "N", "gfx942", "gfx950", "8"] in map(str.split, lines)


def test_a_kernel_as_a_table(invoke, bundle: Path) -> None:
    rows = [line.split() for line in invoke("inspect", bundle, "rmsnorm").stdout.splitlines()]
    assert rows[1][:6] == ["dtype", "N", "target", "size", "VGPR", "SGPR"]
    assert len(rows) == 2 + 8
    size = f"{len(specialisation('rmsnorm', 'gfx950', N=4096, dtype='f16')[1]):,}"
    shown = ["f16", "4096", "gfx950", size, "24", "18", "4", "512", "0", "0", "8", "256x1x1"]
    assert shown in rows


def test_spills_and_several_launched_kernels(invoke, bundle: Path) -> None:
    text = invoke("inspect", bundle, "gelu").stdout
    assert text.count("gelu_0") == 3
    assert "3 VGPR 1 SGPR" in text
    assert "at most 256" in text


def test_one_specialisation_in_full(invoke, bundle: Path) -> None:
    result = invoke("inspect", bundle, *ONE)
    assert result.exit_code == 0
    text = result.stdout
    assert text.startswith("rmsnorm dtype=bf16 N=4096 for gfx942\n")
    assert "waves_per_eu=2" in text
    assert "bf16[?, 4096] strides [?8, 1] align 16" in text
    assert "kernarg of rmsnorm_0: 32 bytes of arguments, 288 in all" in text
    assert "%8 = icmp slt i32 %7, %rows" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["8", "12", "by_value", "{%x.shape[0],", "%x.stride[0]}"] in rows


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    contents = table_contents(ROWS, ("N", "dtype"), ("M",))
    return write_bundle(tmp_path_factory.mktemp("tuned"), contents).path


def test_a_bundle_says_how_its_tables_are_looked_up(invoke, tuned: Path) -> None:
    line = ["table", "of", "gemm", "7", "rows,", "by", "N,", "dtype,", "M", "(nearest)"]
    assert line in map(str.split, invoke("inspect", tuned).stdout.splitlines())
    (table,) = json.loads(invoke("inspect", tuned, "--json").stdout)["tables"].items()
    assert table == ("gemm", {"keys": ["N", "dtype", "M"], "nearest": ["M"], "rows": 7})


def test_rows_of_a_table(invoke, tuned: Path) -> None:
    lines = invoke("inspect", tuned, "gemm", "N=64", "dtype=bf16", "--table").stdout.splitlines()
    rows = [line.split() for line in lines]
    assert rows[1] == ["target", "N", "dtype", "M", "tile"]
    assert rows[2:] == [
        ["gfx942", "64", "bf16", "16", "1"],
        ["gfx942", "64", "bf16", "64", "2"],
        ["gfx942", "64", "bf16", "256", "4"],
        ["gfx942:xnack-", "64", "bf16", "64", "7"],
    ]
    found = json.loads(invoke("inspect", tuned, "gemm", "M=-5", "--table", "--json").stdout)
    assert found["found"] == [
        {"target": "gfx942", "keys": {"N": 64, "dtype": "i8", "M": -5}, "params": {"tile": 5}}
    ]


def test_a_table_that_is_not_there(invoke, tuned: Path, bundle: Path) -> None:
    result = invoke("inspect", tuned, "gemm", "M=3", "--table")
    assert result.exit_code == 4
    assert "looked up with N, dtype, M and has 7 rows" in result.stderr
    assert invoke("inspect", bundle, "gelu", "--table").exit_code == 4


def test_only_the_plan(invoke, bundle: Path) -> None:
    assert invoke("inspect", bundle, *ONE, "--plan").stdout.splitlines() == [
        "  %7 = add i32 %rows, -1",
        "  %8 = icmp slt i32 %7, %rows",
        "  if %8 go to block 1(%7) else block 2()",
        "block 1(i32 %9):",
        "  %10 = sext i32 %9 to i64",
        "  launch rmsnorm_0 grid(%9, 1, 1) block(256, 1, 1) lds(256) stream(%stream) "
        "args(%x, {%x.shape[0], %x.stride[0]}, %out)",
        "  go to block 2()",
        "block 2():",
        "  return",
    ]


def test_the_exact_target_goes_before_the_more_specific(invoke, bundle: Path) -> None:
    exact = json.loads(invoke("inspect", bundle, "gelu", "--target", "gfx942", "--json").stdout)
    assert exact["target"] == "gfx942"
    other = invoke("inspect", bundle, "gelu", "--target", "gfx942:xnack-", "--json").stdout
    assert json.loads(other)["target"] == "gfx942:xnack-"


def test_summary_for_one_target(invoke, bundle: Path) -> None:
    kernels = json.loads(invoke("inspect", bundle, "--target", "gfx950", "--json").stdout)[
        "kernels"
    ]
    assert [record["kernel"] for record in kernels] == ["rmsnorm"]
    assert invoke("inspect", bundle, "--target", "gfx1100").exit_code == 4


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("rmsnorm",),
        ONE,
        (*ONE, "--plan"),
        (*ONE, "--stages"),
        (*ONE, "--stage", "isa"),
        (*ONE, "--diff"),
    ],
)
def test_json_is_one_document(invoke, staged_bundle: Path, args: tuple[str, ...]) -> None:
    result = invoke("inspect", staged_bundle, *args, "--json")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert isinstance(json.loads(result.stdout), dict)


def test_stages(invoke, staged_bundle: Path, tmp_path: Path) -> None:
    listed = invoke("inspect", staged_bundle, *ONE, "--stages").stdout.split()
    assert [name for name, _ in STAGES if name in listed] == [name for name, _ in STAGES]
    assert invoke("inspect", staged_bundle, *ONE, "--stage", "isa").stdout == "\ts_endpgm\n"
    diff = invoke("inspect", staged_bundle, *ONE, "--diff").stdout
    assert "-  old\n+  new\n" in diff
    assert "== cse changed nothing\n" in diff
    written = invoke("inspect", staged_bundle, *ONE, "-o", tmp_path / "new").stdout.splitlines()
    assert {Path(line) for line in written} == set((tmp_path / "new").iterdir())
    assert (tmp_path / "new" / "03-isa.s").read_text() == "\ts_endpgm\n"
    code = specialisation("rmsnorm", "gfx942", N=4096, dtype="bf16")[1]
    assert (tmp_path / "new" / "code-object.hsaco").read_bytes() == code


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("rmsnrm",), 4, "did you mean 'rmsnorm'?"),
        (("rmsnorm", "N=4000"), 4, "values of N: 2048, 4096\n  nearest: rmsnorm N=4096 dtype=bf16"),
        (("rmsnorm", "M=1"), 4, "no parameter 'M'"),
        (("rmsnorm", "dtype=bf16", "--target", "gfx1100"), 4, "it has rmsnorm dtype=bf16 for"),
        (("rmsnorm", "N=4096", "--stage", "isa"), 2, "needs one specialisation, and 4 fit"),
        (("--stage", "isa"), 2, "kernel gelu"),
        ((*ONE, "--stage", "isa"), 4, "build --stages"),
        ((*ONE, "--diff"), 4, "flyc inspect MANIFEST rmsnorm"),
        ((*ONE, "--stage", "isa", "--diff"), 2, "exclude each other"),
        (("rmsnorm", "N"), 2, "'N' is not NAME=VALUE"),
        (("rmsnorm", "N=1", "N=2"), 2, "N is given twice"),
        (("rmsnorm", "--target", "gfx9000"), 2, "flyc does not build for gfx9000"),
        (("rmsnorm", "--target", "gfx1100:xnack+"), 2, "no feature xnack"),
    ],
)
def test_what_cannot_be_shown(invoke, bundle: Path, args, code: int, said: str) -> None:
    result = invoke("inspect", bundle, *args)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("Error: ")
    assert said in result.stderr
    report = invoke("inspect", bundle, *args, "--json")
    assert (report.exit_code, report.stderr) == (code, "")
    assert said in json.loads(report.stdout)["error"]["message"]


def test_a_stage_that_is_not_there(invoke, staged_bundle: Path) -> None:
    result = invoke("inspect", staged_bundle, *ONE, "--stage", "iso")
    assert result.exit_code == 4
    assert "did you mean 'isa'?" in result.stderr
    assert "traced, canonicalize, cse, isa" in result.stderr


def test_files_that_are_no_bundles(invoke, bundle: Path, tmp_path: Path) -> None:
    data = bundle.read_bytes()
    flipped = bytearray(data)
    flipped[70] ^= 1
    cases = {
        "truncated": data[:-64],
        "flipped": bytes(flipped),
        "longer": data + bytes(64),
        "foreign": b"\x7fELF" + bytes(200),
        "empty": b"",
    }
    for name, content in cases.items():
        path = tmp_path / f"{name}.flybundle"
        path.write_bytes(content)
        result = invoke("inspect", path)
        assert result.exit_code == 2, name
        assert str(path) in result.stderr, name
    for path in (tmp_path / "nothing.flybundle", tmp_path):
        result = invoke("inspect", path)
        assert result.exit_code == 2
        assert str(path) in result.stderr


def test_damage_that_only_reading_finds(invoke, staged_bundle: Path, tmp_path: Path) -> None:
    data = bytearray(staged_bundle.read_bytes())
    data[-200] ^= 0xFF  # the stages come last
    path = tmp_path / "damaged.flybundle"
    path.write_bytes(data)
    codes = [
        invoke(
            "inspect", path, "rmsnorm", f"N={n}", f"dtype={d}", "--target", t, "--diff"
        ).exit_code
        for n in (2048, 4096)
        for d in ("bf16", "f16")
        for t in ("gfx942", "gfx950")
    ]
    assert set(codes) <= {0, 2}
    assert 2 in codes


def test_names_cannot_drive_the_terminal(invoke, tmp_path: Path) -> None:
    from flyc_cli.bundle_writer import BundleContents, write_bundle

    for kernel, dtype in (("evil\x1b[2J", "bf16"), ("evil", "\x1b[2J[bold]")):
        spec, code = specialisation(kernel, "gfx942", dtype=dtype)
        contents = BundleContents("evil", {}, [spec], {spec.code_object: code})
        path = write_bundle(tmp_path, contents).path
        for args in ((), (kernel,), (kernel, "--stage", "isa")):
            output = invoke("inspect", path, *args).output
            assert "\x1b" not in output
            assert "\\x1b[2J" in output


BLOCKED = """
import sys
for name in ("flydsl", "torch", "mlir", "iree", "numpy"):
    sys.modules[name] = None
"""


def test_bundles_and_plans_need_no_compiler(flyc, staged_bundle: Path, project: Path) -> None:
    for args in (
        ("inspect", staged_bundle),
        ("inspect", staged_bundle, *ONE),
        ("inspect", staged_bundle, *ONE, "--stage", "isa"),
        ("plan", project / "manifest.yaml"),
        ("targets",),
        ("--help",),
    ):
        result = flyc(*args, prelude=BLOCKED)
        assert (result.returncode, result.stderr) == (0, ""), args


def test_help_imports_nothing_heavy(flyc) -> None:
    check = """
import atexit, sys
heavy = {"rich", "yaml", "flyc_cli.manifest", "flyc_cli.builder.build", "subprocess"}
atexit.register(lambda: print("heavy:", sorted(heavy & set(sys.modules))))
"""
    assert flyc("--help", prelude=check).stdout.endswith("heavy: []\n")
