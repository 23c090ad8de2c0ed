"""The command as such: help, usage errors, exit codes, completion, targets and doctor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flyc_cli import exit_codes
from flyc_cli.targets import supported_targets
from runtime_loader.target import SUPPORTED

COMMANDS = ("build", "plan", "inspect", "run", "targets", "doctor")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_json(invoke, command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout


def test_help_lists_the_commands_and_the_exit_codes(invoke) -> None:
    text = " ".join(invoke("--help").stdout.split())
    assert all(command in text for command in COMMANDS)
    assert "130 interrupted" in text
    alone = invoke()
    assert (alone.exit_code, alone.stdout) == (2, "")
    assert "Commands:" in alone.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("biuld",),
        ("plan",),
        ("plan", "m.yaml", "--frobnicate"),
        ("build", "m.yaml", "-j", "0"),
        ("build", "m.yaml", "-j", "many"),
        ("build", "m.yaml", "--rocm", "/nonexistent"),
        ("run", "b.flybundle"),
        ("run", "b.flybundle", "k", "--iterations", "0"),
        ("run", "b.flybundle", "k", "--shape", "x"),
    ],
)
def test_usage_errors(invoke, args: tuple[str, ...]) -> None:
    result = invoke(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: ")
    assert "--help'" in result.stderr
    assert json.loads(invoke(*args, "--json").stdout)["error"]["exit_code"] == 2


def test_a_defect_of_flyc_is_told_apart(invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise KeyError("oops")

    monkeypatch.setattr("flyc_cli.targets.supported_targets", broken)
    result = invoke("targets")
    assert result.exit_code == exit_codes.DEFECT
    assert "internal error: KeyError" in result.stderr
    assert "FLYC_TRACEBACK" in result.stderr


def test_an_interrupt(invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("flyc_cli.targets.supported_targets", interrupted)
    assert invoke("targets").exit_code == exit_codes.INTERRUPTED


def test_a_reader_that_leaves(tmp_path: Path) -> None:
    command = f"{sys.executable} -m flyc_cli targets; echo $? >&2"
    process = subprocess.Popen(
        ["sh", "-c", f"sleep 0.2; {command}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == f"{exit_codes.READER_GONE}\n"
    process.wait()


def test_output_that_cannot_be_written() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "flyc_cli", "targets"]
        result = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert result.returncode == exit_codes.ENVIRONMENT
    assert result.stderr.startswith("Error: the system refused: ")
    assert "Traceback" not in result.stderr


def test_text_that_the_terminal_cannot_show(flyc, bundle: Path) -> None:
    result = flyc("inspect", bundle, env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert result.returncode == 0


def test_targets(invoke) -> None:
    assert [target.processor for target in supported_targets()] == list(SUPPORTED)
    rows = [line.split() for line in invoke("targets").stdout.splitlines()]
    assert ["gfx942", "CDNA3", "64", "sramecc", "xnack"] in rows
    assert ["gfx1201", "RDNA4", "32", "none"] in rows
    listed = json.loads(invoke("targets", "--json").stdout)["targets"]
    assert {t["processor"]: t["features"] for t in listed} == {
        name: list(features) for name, features in SUPPORTED.items()
    }


def completions(*words: str, incomplete: str = "") -> list[str]:
    line = " ".join(["flyc", *words, incomplete])
    environment = {**os.environ, "_FLYC_COMPLETE": "bash_complete", "COMP_WORDS": line}
    environment["COMP_CWORD"] = str(len(words) + 1)
    command = [sys.executable, "-c", "from flyc_cli.main import main; main()"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    return [line.partition(",")[2] for line in result.stdout.splitlines() if line]


def test_shell_completion(bundle: Path) -> None:
    assert completions(incomplete="in") == ["inspect"]
    assert completions("inspect", str(bundle), incomplete="r") == ["rmsnorm"]
    assert completions("inspect", str(bundle), "rmsnorm", incomplete="N=") == ["N=2048", "N=4096"]
    assert completions("plan", "m.yaml", "--target", incomplete="gfx12") == ["gfx1201", "gfx1250"]
    assert completions("inspect", "/nonexistent.flybundle", incomplete="r") == []
    assert completions("inspect", __file__, incomplete="r") == []


@pytest.mark.compile
def test_doctor_where_a_build_is_possible(flyc) -> None:
    result = flyc("doctor", env={"FLYC_HIP_LIBRARY": "/nonexistent.so"})
    assert result.returncode == 0
    assert "build: ready; run: not possible here" in result.stdout
    assert "FLYC_HIP_LIBRARY=/nonexistent.so cannot be loaded" in result.stdout
    report = json.loads(flyc("doctor", "--json", env={"FLYC_HIP_LIBRARY": "/n.so"}).stdout)
    assert (report["can_build"], report["can_run"], report["devices"]) == (True, False, [])


@pytest.mark.device
def test_doctor_lists_devices(flyc, hip_library: Path) -> None:
    environment = {"FLYC_HIP_LIBRARY": str(hip_library), "HIPTEST_DEVICES": "gfx942:xnack-,gfx908"}
    result = flyc("doctor", env=environment)
    assert result.returncode == 0
    assert "device 0 (gfx942:xnack-)" in result.stdout
    assert "device 1 (gfx908): flyc does not build for it" in result.stdout
    none = flyc("doctor", "--json", env={**environment, "HIPTEST_DEVICES": ""})
    assert json.loads(none.stdout)["can_run"] is False


# Without the compiler: `-S` leaves out site-packages, and only the base dependencies come back.
def test_without_the_compiler(base_install: dict[str, str], project: Path, tmp_path: Path) -> None:
    def run(*args: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-S", "-m", "flyc_cli", *map(str, args)],
            capture_output=True,
            text=True,
            env=base_install,
            check=False,
        )

    doctor = run("doctor")
    assert doctor.returncode == exit_codes.ENVIRONMENT, doctor.stderr
    assert "FlyDSL is not installed here" in doctor.stdout
    assert "--rocm DIR" in doctor.stdout
    assert "build: not possible here; run: not possible here" in doctor.stdout
    build = run("build", project / "manifest.yaml", "-o", tmp_path / "out")
    assert build.returncode == exit_codes.ENVIRONMENT, build.stderr
    assert "pip install 'flyc[compiler]'" in build.stderr
    assert not (tmp_path / "out").exists()
    assert run("plan", project / "manifest.yaml").returncode == 0
