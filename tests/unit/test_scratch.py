"""Scratch directories go with their build, or, if that is killed, with the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from flyc_cli.builder.scratch import scratch_directory

HOLDER = """
import sys, time
from flyc_cli.builder.scratch import scratch_directory
with scratch_directory() as directory:
    (directory / "file").touch()
    print(directory, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_what_a_killed_build_left_goes_with_the_next(place: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(place)}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    left = Path(holder.stdout.readline().strip())
    with scratch_directory() as own:
        assert own.is_dir()
        assert (left / "file").exists()  # its owner lives
    assert not own.exists()
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    assert (left / "file").exists()
    with scratch_directory():
        assert not left.exists()


def test_what_is_not_ours_stays(place: Path) -> None:
    """Directories without the mark, files, and links to elsewhere, whatever they are called."""
    (place / "flyc-notes").mkdir()
    (place / "flyc-notes" / "text").touch()
    (place / "flyc-file").touch()
    outside = place / "outside"
    outside.mkdir()
    (outside / ".owner").touch()
    (place / "flyc-link").symlink_to(outside)
    with scratch_directory():
        pass
    assert (place / "flyc-notes" / "text").exists()
    assert (place / "flyc-file").exists()
    assert (outside / ".owner").exists()
