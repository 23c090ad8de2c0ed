"""Faults while building with a store: the next build completes and equals a clean one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flyc_cli.builder.failures import BuildError
from flyc_cli.builder.outcomes import COMPILED, SAME_INPUT
from flyc_cli.builder.servers import WorkerError
from flyc_cli.builder.supervisor import StoreWarning
from flyc_cli.manifest.model import Limits
from flyc_cli.store.files import Store
from flyc_cli.store.upkeep import verify
from tests.store.project import build, codes, origins, write_kernel, write_manifest

pytestmark = pytest.mark.compile

ROOT = Path(__file__).parents[2]
PLAIN = "def value():\n    return {}\n"
ONCE = """
import os, signal
from pathlib import Path
def value():
    mark = Path({mark!r})
    if not mark.exists():
        mark.touch()
        os.kill({pid}, signal.SIGKILL)
    return 5
"""


PLAINS = ["plain0", "plain1", "plain2"]


@pytest.mark.parametrize("pid", ["os.getpid()", "os.getppid()"], ids=["worker", "server"])
def test_killed_once_is_tried_again(project: Path, tmp_path: Path, pid: str) -> None:
    write_kernel(project, "killed", ONCE.format(mark=str(tmp_path / "mark"), pid=pid))
    built = build(write_manifest(project, [*PLAINS, "killed"]), Store(tmp_path / "store"))
    assert set(built) == {*PLAINS, "killed"}
    assert (tmp_path / "mark").exists()


def failure_of(manifest: Path, store: Store, **options: object) -> BuildError:
    with pytest.raises(BuildError) as caught:
        build(manifest, store, **options)
    return caught.value


def test_a_kernel_that_hangs_or_grows_is_stopped_and_loses_no_other(
    project: Path, tmp_path: Path
) -> None:
    write_kernel(project, "hangs", "import time\ndef value():\n    time.sleep(600)\n")
    write_kernel(
        project,
        "grows",
        "def value():\n    held = []\n    while True:\n        held.append(bytearray(1 << 24))\n",
    )
    manifest = write_manifest(project, ["hangs", "grows", *PLAINS])
    store = Store(tmp_path / "store")
    limits = Limits(timeout=20.0, memory=1 << 30)
    error = failure_of(manifest, store, limits=limits)
    assert sorted((f.request.kernel, f.kind) for f in error.failures) == [
        ("grows", "memory"),
        ("hangs", "timeout"),
    ]
    assert "hangs() for gfx942 failed at stage trace\n  it was stopped after 20 s" in str(error)
    assert origins(build(write_manifest(project, PLAINS), store)) == dict.fromkeys(
        PLAINS, SAME_INPUT
    )


def test_limits_of_the_manifest(project: Path, tmp_path: Path) -> None:
    write_kernel(project, "hangs", "import time\ndef value():\n    time.sleep(600)\n")
    manifest = write_manifest(project, ["hangs"], "defaults: {limits: {timeout: 3.5}}\n")
    (failed,) = failure_of(manifest, Store(tmp_path / "store")).failures
    assert failed.kind == "timeout"
    assert "stopped after 3.5 s" in failed.message


def test_a_clean_error_is_not_tried_again(project: Path, tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    head = f"def value():\n    open({str(tries)!r}, 'a').write('x')\n    raise ValueError('no')\n"
    write_kernel(project, "raises", head)
    failure_of(write_manifest(project, ["raises"]), Store(tmp_path / "store"))
    assert tries.read_text() == "x"


def test_a_worker_that_always_dies_says_how_often(project: Path, tmp_path: Path) -> None:
    write_kernel(project, "dies", "import os\ndef value():\n    os.kill(os.getpid(), 9)\n")
    manifest = write_manifest(project, ["dies"])
    (failed,) = failure_of(manifest, Store(tmp_path / "store"), retries=1).failures
    assert (failed.kind, failed.stage) == ("died", "trace")
    assert failed.message.startswith("the worker died (SIGKILL) 2 times")


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif how == "flipped":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    else:
        others = sorted(other for other in path.parents[1].rglob("*") if other.is_file())
        path.write_bytes(others[0].read_bytes() if others[0] != path else others[1].read_bytes())


@pytest.mark.parametrize("how", ["truncated", "flipped", "replaced"])
def test_a_damaged_store_is_repaired(project: Path, tmp_path: Path, how: str) -> None:
    manifest, store = write_manifest(project, PLAINS), Store(tmp_path / "store")
    first = build(manifest, store)
    for kind in ("records", "blobs"):
        for path in [path for path in (store.root / kind).rglob("*") if path.is_file()]:
            damage(path, how)
    again = build(manifest, store)
    assert set(origins(again).values()) == {COMPILED}
    assert codes(again) == codes(first)
    verify(store)  # What nobody asked for is still damaged.
    assert not verify(store).damaged
    assert set(origins(build(manifest, store)).values()) == {SAME_INPUT}


def test_a_full_store_is_one_warning(project: Path, small_disk: Path) -> None:
    manifest = write_manifest(project, PLAINS)
    with pytest.warns(StoreWarning, match="No space left") as caught:
        built = build(manifest, Store(small_disk / "store"))
    assert len([w for w in caught if w.category is StoreWarning]) == 1
    assert codes(built) == codes(build(manifest, None))


def test_a_store_that_cannot_be_written_is_one_warning(project: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.warns(StoreWarning, match="cannot be written"):
        built = build(write_manifest(project, PLAINS), Store(tmp_path / "file" / "store"))
    assert set(built) == set(PLAINS)


def test_a_full_temporary_directory_says_so(
    project: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    with pytest.raises((WorkerError, OSError), match=r"TMPDIR|No space left"):
        build(write_manifest(project, PLAINS), None)


def heed_interrupts() -> None:
    """A shell's background job ignores SIGINT, and so would everything that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def started(manifest: Path, store: Path, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "flyc_cli", "build", str(manifest), "-j", "1"]
    environment = {**os.environ, "FLYC_CACHE_DIR": str(store)}
    with log.open("wb") as file:
        return subprocess.Popen(
            [*command, "-o", str(store.parent / "out")],
            cwd=ROOT,
            env=environment,
            preexec_fn=heed_interrupts,
            stdout=file,
            stderr=file,
        )


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_build_that_was_stopped_is_resumed(
    project: Path, tmp_path: Path, how: signal.Signals
) -> None:
    reached = tmp_path / "reached"
    head = f"import time\ndef value():\n    open({str(reached)!r}, 'w')\n    time.sleep(600)\n"
    write_kernel(project, "slow", head)
    store = Store(tmp_path / "store")
    process = started(write_manifest(project, ["plain0", "slow", "plain1"]), store.root,
                      tmp_path / "log")  # fmt: skip
    try:
        wanted = time.monotonic() + 60
        while not reached.exists() and time.monotonic() < wanted:
            time.sleep(0.05)
    finally:
        process.send_signal(how)
        code = process.wait(30)
    assert code == (130 if how is signal.SIGINT else -how)
    resumed = build(write_manifest(project, PLAINS), store)
    assert origins(resumed)["plain0"] == SAME_INPUT
    assert codes(resumed) == codes(build(write_manifest(project, PLAINS), None))


def test_two_builders_at_once(project: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    manifest = write_manifest(project, PLAINS)
    runs = [started(manifest, store, tmp_path / f"log{i}") for i in range(2)]
    assert [run.wait(240) for run in runs] == [0, 0], (tmp_path / "log0").read_text()
    assert not verify(Store(store)).damaged
    assert set(origins(build(manifest, Store(store))).values()) == {SAME_INPUT}


def test_what_may_be_missing_is_named(project: Path, tmp_path: Path) -> None:
    from click.testing import CliRunner

    from flyc_cli.main import cli
    from runtime_loader.bundle_file import BundleFile

    write_kernel(project, "raises", "def value():\n    raise ValueError('no')\n")
    manifest = write_manifest(project, ["plain0", "raises"])
    out = tmp_path / "out"
    args = ["build", str(manifest), "-o", str(out), "--cache-dir", str(tmp_path / "store")]
    with pytest.warns(UserWarning, match="1 specialisation missing from .* as allowed"):
        result = CliRunner().invoke(cli, [*args, "--allow-missing"])
    assert result.exit_code == 0, result.output
    file = BundleFile.open(out / "project.flybundle")
    assert file.meta["missing"] == [{"kernel": "raises", "params": {}, "target": "gfx942"}]
    file.close()
    why = ["cache", "why", str(manifest), "plain0", "--cache-dir", str(tmp_path / "store")]
    assert "plain0() for gfx942: in the store" in CliRunner().invoke(cli, why).output
