"""A small project, and disks that are soon full or cannot be written."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.store.project import write_kernel


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    for number in range(3):
        write_kernel(directory, f"plain{number}", f"def value():\n    return {number}\n")
    return directory


@contextmanager
def mounted(mount: Path, *options: str) -> Iterator[None]:
    """A file system in memory, in a directory that is made; where that may not be, no test."""
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", *options, "none", str(mount)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system takes privileges")
    yield
    subprocess.run(["umount", str(mount)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount = tmp_path / "small"
    with mounted(mount, "-o", "size=16k"):
        yield mount


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Callable[[], Path]]:
    """The file system `mount`, which is returned and cannot be written from then on."""
    mount = tmp_path / "mount"

    def seal() -> Path:
        subprocess.run(["mount", "-o", "remount,ro", mount], check=True)
        return mount

    with mounted(mount):
        yield seal
