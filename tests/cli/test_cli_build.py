"""`flyc build`, and `flyc inspect` on a manifest, with FlyDSL's compiler."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flyc_cli.builder.toolchain import flyc_version
from runtime_loader.bundle_file import BundleFile
from runtime_loader.format import RAW
from tests.cli.samples import MANIFEST

pytestmark = pytest.mark.compile

ONE = ("scale", "N=64", "--target", "gfx942")


def manifest_of(directory: Path, *names: str) -> Path:
    """A manifest for gfx942 beside the project's kernel module; entries like that of `scale`."""
    head, _, entry = MANIFEST.replace(", gfx1201", "").replace("[64, 128]", "64").partition("  - ")
    entries = [f"  - {entry.replace('scale', name)}" for name in names]
    path = directory / "manifest.yaml"
    path.write_text(head + "".join(entries))
    return path


@pytest.fixture
def workplace(project: Path, tmp_path: Path) -> Path:
    """A fresh directory with the project's kernel module."""
    (tmp_path / "kernels.py").write_bytes((project / "kernels.py").read_bytes())
    return tmp_path


def test_the_transcript(built) -> None:
    out, run = built
    assert (run.returncode, run.stderr) == (0, "")
    progress, line, last = run.stdout.splitlines()
    assert progress == "  scale  gfx942 gfx1201  4 specialisations  done"
    path = next(path for path in out.iterdir() if not path.is_symlink())
    size = f"{path.stat().st_size / 1000:.1f} kB"
    assert line == f"  {path}   4 specialisations, 1 kernel, 4 code objects (dedup 0), {size}"
    said = r"flyc build: ok, 4 built \(4 compiled, 0 from the store\), 0 failed, \d+\.\d s"
    assert re.fullmatch(said, last)
    assert (out / "samples.flybundle").resolve() == path
    assert set(out.iterdir()) == {path, out / "samples.flybundle"}


def test_provenance_tells_the_tools_and_not_the_machine(built, project: Path) -> None:
    out, _ = built
    file = BundleFile.open(out / "samples.flybundle")
    origin = file.meta["provenance"]
    assert origin["flyc"] == flyc_version()
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", origin["flydsl"])
    assert re.fullmatch(r"[0-9a-f]{64}", origin["llvm"]["sha256"])
    assert "iree-lld" in origin["toolkit"]["linker"]
    text = json.dumps(file.meta)
    assert str(project) not in text
    assert str(out) not in text
    file.close()


def test_same_manifest_same_bundle(flyc, built, project: Path, tmp_path: Path) -> None:
    out, _ = built
    args = ("build", project / "manifest.yaml", "-o", tmp_path, "-j", 1, "--json", "--no-cache")
    run = flyc(*args, env={"PYTHONHASHSEED": "7"})
    assert (run.returncode, run.stderr) == (0, "")
    *events, last = map(json.loads, run.stdout.splitlines())
    bundle = last["bundle"]
    assert [event["event"] for event in events] == ["begin", "expect", *["start", "built"] * 4]
    assert events[3]["kernel"] == "scale"
    assert events[3]["origin"] == "compiled"
    # Stages are outside of the id, so the bundle that was built with them has the same.
    assert BundleFile.open(out / "samples.flybundle").id == bundle["id"]
    assert Path(bundle["path"]).stat().st_size == bundle["size"]
    counts = [bundle[name] for name in ("specialisations", "kernels", "code_objects")]
    assert counts == [4, 1, 4]


def test_code_objects_stored_raw(flyc, built, project: Path, tmp_path: Path) -> None:
    run = flyc("build", project / "manifest.yaml", "-o", tmp_path, "--compression", "raw")
    assert run.returncode == 0
    raw = BundleFile.open(tmp_path / "samples.flybundle", verify="open")
    refs = [json.loads(record).get("blob") for _, record in raw.scan()]
    assert {ref[4] for ref in refs if ref} == {RAW}


def test_quiet_and_narrowed(flyc, project: Path, tmp_path: Path) -> None:
    args = ("--target", "gfx942", "--kernel", "sc*", "-q")
    run = flyc("build", project / "manifest.yaml", "-o", tmp_path, *args)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert BundleFile.open(tmp_path / "samples.flybundle").meta["targets"] == ["gfx942"]


def test_failures_are_all_told_with_their_source(flyc, workplace: Path) -> None:
    manifest = manifest_of(workplace, "scale", "raises", "aborts", "too_large")
    run = flyc("build", manifest, "-o", workplace / "out", cwd=workplace)
    assert run.returncode == 1
    assert "  raises     gfx942  1 specialisation   1 failed" in run.stdout.splitlines()
    (scale,) = (line for line in run.stdout.splitlines() if line.startswith("  scale "))
    assert re.fullmatch(r"  scale      gfx942  1 specialisation   done(, 1 from the store)?", scale)
    assert run.stdout.splitlines()[-1].startswith("flyc build: failed, 1 built (")
    errors = run.stderr
    assert "raises(N=64) for gfx942 failed at stage trace" in errors
    line = (workplace / "kernels.py").read_text().splitlines().index(
        '    raise ValueError(f"no tiling for N={N}")'
    )  # fmt: skip
    assert (
        "  ValueError: no tiling for N=64\n"
        f"  kernels.py:{line + 1}\n"
        '      raise ValueError(f"no tiling for N={N}")\n'
    ) in errors
    assert "aborts(N=64) for gfx942 failed at stage trace\n  the worker died (SIGABRT)" in errors
    assert "too_large(N=64) for gfx942 failed at stage" in errors
    assert errors.endswith("3 of 4 specialisations failed to compile; nothing was written\n")
    assert not (workplace / "out").exists()


def test_failures_as_json(flyc, workplace: Path) -> None:
    manifest = manifest_of(workplace, "scale", "raises")
    run = flyc("build", manifest, "-o", workplace / "out", "--json")
    assert (run.returncode, run.stderr) == (1, "")
    *events, last = map(json.loads, run.stdout.splitlines())
    (failed,) = (event for event in events if event["event"] == "failed")
    assert failed["kernel"] == "raises"
    error = last["error"]
    assert (error["kind"], error["exit_code"]) == ("BuildError", 1)
    (failure,) = error["failures"]
    assert failure["kernel"] == "raises"
    assert failure["params"] == {"N": 64}
    assert failure["source"][0]["text"] == 'raise ValueError(f"no tiling for N={N}")'


def test_report_timeline_and_annotations(flyc, workplace: Path) -> None:
    manifest = manifest_of(workplace, "scale", "raises")
    out = workplace / "out"
    files = ("--report", workplace / "report.json", "--timeline", workplace / "trace.json")
    services = {"GITHUB_ACTIONS": "true", "GITLAB_CI": "true"}
    run = flyc("build", manifest, "-o", out, "--no-cache", *files, cwd=workplace, env=services)
    assert run.returncode == 1
    line = (workplace / "kernels.py").read_text().splitlines().index(
        '    raise ValueError(f"no tiling for N={N}")'
    ) + 1  # fmt: skip
    assert (
        f"::error file=kernels.py,line={line},title=raises(N=64) for gfx942::"
        "ValueError: no tiling for N=64"
    ) in run.stdout.splitlines()
    (issue,) = json.loads((out / "gl-code-quality-report.json").read_text())
    assert issue["location"] == {"path": "kernels.py", "lines": {"begin": line}}
    report = json.loads((workplace / "report.json").read_text())
    assert report["bundle"] is None
    assert report["counts"] == {"asked": 2, "failed": 1, "compiled": 1}
    built = next(one for one in report["specialisations"] if one["origin"] == "compiled")
    assert built["kernel"] == "scale"
    assert sum(built["seconds"].values()) > 0
    assert built["kernels"]["scale_kernel_0"]["vgprs"] > 0
    trace = json.loads((workplace / "trace.json").read_text())["traceEvents"]
    slices = [event for event in trace if event["ph"] == "X"]
    assert {"scale(N=64) for gfx942", "raises(N=64) for gfx942"} <= {s["name"] for s in slices}
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in slices)

    good = flyc("build", manifest_of(workplace, "scale"), "-o", out, *files[:2], "-q")
    assert good.returncode == 0
    report = json.loads((workplace / "report.json").read_text())
    assert report["bundle"]["specialisations"] == 1


def test_a_report_that_cannot_be_written_hides_nothing(flyc, workplace: Path) -> None:
    """Told before the work where that can be known; otherwise beside what became of the build."""
    manifest = manifest_of(workplace, "scale", "raises")
    nowhere = flyc("build", manifest, "-o", workplace / "out", "--report", workplace / "no" / "r")
    assert nowhere.returncode == 3
    assert "No such file or directory" in nowhere.stderr
    full = flyc("build", manifest, "-o", workplace / "out", "--report", "/dev/full")
    assert full.returncode == 1
    assert "No space left on device" in full.stderr
    assert "ValueError: no tiling for N=64" in full.stderr
    assert full.stdout.splitlines()[-1].startswith("flyc build: failed, 1 built (")


def test_what_exceeds_its_budget_is_told_everywhere(flyc, workplace: Path) -> None:
    manifest = manifest_of(workplace, "scale")
    manifest.write_text(manifest.read_text() + "budgets: {vgprs: 1}\n")
    report = workplace / "report.json"
    run = flyc("build", manifest, "-o", workplace / "out", "--json", "--report", report)
    assert run.returncode == 1
    *events, last = map(json.loads, run.stdout.splitlines())
    assert [event["event"] for event in events][-2:] == ["built", "failed"]
    assert events[-1]["kind"] == last["error"]["failures"][0]["kind"] == "budget"
    told = json.loads(report.read_text())
    assert told["counts"] == {"asked": 1, "failed": 1}
    assert told["specialisations"][0]["failure"]["kind"] == "budget"
    plain = flyc("build", manifest, "-o", workplace / "out")
    assert ", 0 built (0 compiled, 0 from the store), 1 failed, " in plain.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("kernels:scale", "no_such_module:scale", "no module named no_such_module"),
        ("kernels:scale", "kernels:scael", "kernels has no scael; its launchers are scale"),
        ("kernels:scale", "kernels:WIDTHS", "not a @flyc.jit launcher"),
        ("      factor: f32\n", "", "argument factor"),
        ("factor: f32", "factor: f32\n      more: i32", "the launcher has no parameter more"),
        ("constexpr: {N: [64, 128]}", "params: {M: [64]}", "compile-time parameter N"),
        ("factor: f32", "factor: i32", "argument factor is i32 in the manifest"),
    ],
)
def test_manifests_that_their_modules_contradict(flyc, workplace: Path, old, new, said) -> None:
    path = workplace / "manifest.yaml"
    path.write_text(MANIFEST.replace(old, new).replace(", gfx1201", ""))
    run = flyc("build", path, "-o", workplace / "out")
    assert run.returncode == 2
    assert said in run.stderr
    assert not (workplace / "out").exists()


def test_a_rocm_that_is_none(flyc, project: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = flyc("build", project / "manifest.yaml", "-o", out, "--rocm", tmp_path)
    assert run.returncode == 3
    assert "is not a usable ROCm installation" in run.stderr
    assert not out.exists()


def test_a_place_that_cannot_be_written(flyc, project: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    args = ("--target", "gfx942", "-o")
    used = flyc("build", project / "manifest.yaml", *args, tmp_path / "file")
    assert used.returncode == 2
    below = flyc("build", project / "manifest.yaml", *args, tmp_path / "file" / "out")
    assert below.returncode == 3
    assert "cannot write the bundle into" in below.stderr


def test_an_interrupt_leaves_nothing(workplace: Path) -> None:
    path = workplace / "manifest.yaml"
    path.write_text(MANIFEST.replace("[64, 128]", "[" + ", ".join(map(str, range(1, 257))) + "]"))
    process = subprocess.Popen(
        [sys.executable, "-m", "flyc_cli", "build", path, "-o", workplace / "out", "-j", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(workplace), "PYTHONUNBUFFERED": "1"},
        # A shell's background job ignores SIGINT, and so would everything that it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not list(workplace.glob("flyc-*/0/stage")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (130, "")
    assert stderr.splitlines()[-1] == "interrupted"
    assert "Traceback" not in stderr
    assert {path.name for path in workplace.iterdir()} == {"kernels.py", "manifest.yaml"}


def test_the_bars_of_a_terminal(project: Path, tmp_path: Path) -> None:
    import pty

    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "flyc_cli", "build", project / "manifest.yaml", "-o", tmp_path],
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            part = os.read(leader, 4096)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(leader)
    assert process.wait() == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert "scale  gfx942 gfx1201  4 specialisations  ████████ done" in text
    assert "4 specialisations, 1 kernel, 4 code objects" in text


def test_stages_in_a_bundle_and_from_a_manifest_are_the_same(flyc, built, project: Path) -> None:
    out, _ = built
    bundle, manifest = out / "samples.flybundle", project / "manifest.yaml"
    for stage in ("traced", "llvm-ir", "isa"):
        kept = flyc("inspect", bundle, *ONE, "--stage", stage)
        fresh = flyc("inspect", manifest, *ONE, "--stage", stage)
        assert (kept.returncode, fresh.returncode) == (0, 0), kept.stderr + fresh.stderr
        assert kept.stdout == fresh.stdout
    assert "scale_kernel" in kept.stdout
    assert "s_endpgm" in kept.stdout


def test_inspecting_and_programs_use_the_store(flyc, workplace: Path) -> None:
    """What one of them compiled, the others find: nothing is compiled twice."""
    import flyc_cli

    store = workplace / "store"
    manifest = manifest_of(workplace, "scale")
    first = flyc("inspect", manifest, *ONE, "--stage", "isa", "--cache-dir", store)
    assert first.returncode == 0, first.stderr
    report = workplace / "report.json"
    command = ("build", manifest, "-o", workplace / "out", "--cache-dir", store)
    assert flyc(*command, "--report", report).returncode == 0
    assert json.loads(report.read_text())["counts"] == {"asked": 1, "failed": 0, "same input": 1}
    again = flyc("inspect", manifest, *ONE, "--stage", "isa", "--cache-dir", store)
    assert again.stdout == first.stdout
    written = flyc_cli.build(manifest, workplace / "out", cache_dir=store)
    assert written.specialisations == 1
    before = sorted(path.name for path in store.rglob("*"))
    flyc_cli.build(manifest, workplace / "other", cache_dir=store, cache=False)
    assert sorted(path.name for path in store.rglob("*")) == before


def test_inspecting_a_manifest(flyc, project: Path, tmp_path: Path) -> None:
    manifest = project / "manifest.yaml"
    listed = flyc("inspect", manifest, "scale", "N=64")
    assert "2 specialisations of 1 kernel for 2 targets; choose one" in listed.stdout
    detail = flyc("inspect", manifest, *ONE)
    assert "scale N=64 for gfx942" in detail.stdout
    assert "block(64, 1, 1)" in detail.stdout
    diff = flyc("inspect", manifest, *ONE, "--diff").stdout
    assert "--- llvm-ir\n+++ isa\n" in diff
    files = flyc("inspect", manifest, *ONE, "-o", tmp_path, "--json")
    names = [Path(name).name for name in json.loads(files.stdout)["files"]]
    assert names[0] == "00-traced.mlir"
    assert (tmp_path / "code-object.hsaco").read_bytes().startswith(b"\x7fELF")
    many = flyc("inspect", manifest, "scale", "--diff")
    assert many.returncode == 2
    assert "4 fit" in many.stderr
    missing = flyc("inspect", manifest, "scale", "N=65")
    assert missing.returncode == 4
    assert "values of N: 64, 128" in missing.stderr
