"""The report of a failed build, and which error ends in which exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyc_cli import exit_codes
from flyc_cli.builder.failures import BuildError
from flyc_cli.builder.jobs import WORKER_BYTES, default_jobs
from flyc_cli.builder.supervisor import Failed, WorkerError
from flyc_cli.manifest import Place, Request, Source
from mlir_passes.toolkit import ToolkitError
from runtime_loader.errors import (
    ArgumentError,
    BundleError,
    FlycError,
    HipError,
    HipUnavailableError,
    MissError,
)
from runtime_loader.target import Target


def failed(n: int, kind: str, message: str, *source: tuple[str, int]) -> Failed:
    request = Request(
        kernel="scale",
        target=Target.parse("gfx942"),
        params={"N": n},
        source=Source("launcher", "kernels", "scale"),
        constexpr={},
        args=(),
        hints={},
        env={},
        python_path=(),
        where=Place("manifest.yaml", 5, 5),
    )
    return Failed(request, kind, "trace", message, entry="scale", source=source)


def test_equal_failures_are_told_once() -> None:
    same = [failed(n, "failed", "no tiling") for n in range(6)]
    text = str(BuildError([*same, failed(7, "failed", "another")], 9))
    assert text.count("no tiling") == 1
    assert "scale(N=0) for gfx942 failed at stage trace\n" in text
    assert "and so did scale(N=1) for gfx942, scale(N=2) for gfx942" in text
    assert "and 1 more" in text
    assert "another" in text
    assert text.endswith("7 of 9 specialisations failed to compile; nothing was written")


def test_a_place_that_cannot_be_read_is_still_named(tmp_path: Path) -> None:
    source = tmp_path / "kernels.py"
    source.write_text("first\n    second line\n")
    text = str(BuildError([failed(1, "failed", "why", (str(source), 2), ("/gone.py", 3))], 1))
    assert f"  {source}:2\n      second line\n  /gone.py:3\n  listed at manifest.yaml:5:5" in text


@pytest.mark.parametrize(
    ("kinds", "code"),
    [
        (["input", "input"], exit_codes.BAD_INPUT),
        (["input", "failed"], exit_codes.FAILED),
        (["died"], exit_codes.FAILED),
    ],
)
def test_exit_code_of_a_failed_build(kinds: list[str], code: int) -> None:
    error = BuildError([failed(n, kind, "why") for n, kind in enumerate(kinds)], len(kinds))
    assert exit_codes.exit_code(error) == code


def test_exit_codes() -> None:
    full = FlycError("cannot write")
    full.__cause__ = OSError(28, "No space left on device")
    codes = {
        exit_codes.MISS: [MissError("")],
        exit_codes.BAD_INPUT: [BundleError(""), ArgumentError(""), FlycError("")],
        exit_codes.ENVIRONMENT: [
            WorkerError(""),
            ToolkitError(""),
            HipUnavailableError(""),
            HipError("hipInit", 100, "hipErrorNoDevice", "", ""),
            OSError(28, "No space left on device"),
            full,
        ],
        exit_codes.DEFECT: [KeyError("x"), AssertionError()],
    }
    for code, errors in codes.items():
        assert [exit_codes.exit_code(error) for error in errors] == [code] * len(errors)


def test_default_jobs_leave_room_for_the_memory_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    available = "flyc_cli.builder.jobs._available_memory"
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(1000)))
    monkeypatch.setattr(available, lambda *_: WORKER_BYTES)
    assert default_jobs() == 1
    monkeypatch.setattr(available, lambda *_: 0)
    assert default_jobs() == 1
