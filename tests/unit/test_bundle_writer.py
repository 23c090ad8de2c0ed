"""Writing bundles: the same bytes for the same contents, and nothing but whole files."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flyc_cli.bundle_writer import BundleContents, write_bundle
from runtime_loader.bundle_file import BundleFile
from runtime_loader.errors import FlycError
from runtime_loader.records import replace
from tests.fuzz.bundle_seeds import contents, family, specialisation, with_stages

ROOT = Path(__file__).parents[2]


def shuffled(made: BundleContents, seed: int) -> BundleContents:
    """The same contents, every collection in another order."""
    rng = random.Random(seed)

    def mixed(mapping):
        items = list(mapping.items())
        rng.shuffle(items)
        return dict(items)

    specs = [replace(spec, params=mixed(spec.params)) for spec in made.specialisations]
    rng.shuffle(specs)
    return replace(
        made,
        meta=mixed(made.meta),
        specialisations=specs,
        code_objects=mixed(made.code_objects),
        stages=mixed(made.stages),
    )


def test_names_the_file_by_its_id_and_links_the_plain_name(tmp_path: Path) -> None:
    specs = family(9)
    written = write_bundle(tmp_path / "new" / "out", contents("quick", specs))
    assert written.path.name == f"quick-{written.id[:16]}.flybundle"
    assert os.readlink(written.link) == written.path.name  # noqa: PTH115
    assert sorted(p.name for p in written.path.parent.iterdir()) == sorted(
        [written.path.name, "quick.flybundle"]
    )
    assert (written.specialisations, written.kernels) == (10, 2)
    assert (written.code_objects, written.deduplicated) == (9, 1)
    assert written.size == written.path.stat().st_size
    counts = {"specialisations": 10, "kernels": 2, "code_objects": 9}
    meta = BundleFile.open(written.path).meta
    assert meta["counts"] == counts
    assert meta["name"] == "quick"
    assert meta["targets"] == ["gfx942", "gfx950"]
    assert meta["provenance"] == {"flyc": "0.1.0"}


def test_gets_the_permissions_that_the_umask_gives(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        written = write_bundle(tmp_path, contents("b", family(2)))
    finally:
        os.umask(before)
    assert written.path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("compression", ["zstd", "raw"])
def test_same_bytes_for_any_order_and_number_of_jobs(tmp_path: Path, compression) -> None:
    made = with_stages("b", family(12))
    first = write_bundle(tmp_path / "a", made, compression=compression, jobs=1)
    for seed in range(4):
        again = write_bundle(
            tmp_path / str(seed), shuffled(made, seed), compression=compression, jobs=seed + 1
        )
        assert again.path.name == first.path.name
        assert again.path.read_bytes() == first.path.read_bytes()


def test_same_bytes_for_any_hash_seed(tmp_path: Path) -> None:
    program = (
        "import sys; from tests.fuzz.bundle_seeds import *; "
        "write_bundle(sys.argv[1], with_stages('b', family(6)))"
    )
    images = set()
    for seed in ("0", "1", "12345"):
        out = tmp_path / seed
        subprocess.run(
            [sys.executable, "-c", program, str(out)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=ROOT,
            check=True,
        )
        images.add((out / "b.flybundle").read_bytes())
    assert len(images) == 1


def test_the_id_covers_everything_but_stages(tmp_path: Path) -> None:
    specs = family(3)
    base = contents("b", specs)
    other = [(replace(spec, launcher="other:place"), code) for spec, code in specs]
    ids = [
        write_bundle(tmp_path, changed).id
        for changed in (
            base,
            replace(base, meta={"provenance": {"flyc": "0.1.1"}}),
            contents("b", other),
            contents("b", specs[:-1]),
            contents("b", family(3, seed=2)),
        )
    ]
    assert len(set(ids)) == len(ids)
    assert write_bundle(tmp_path, with_stages("b", specs)).id == ids[0]


def test_stores_each_code_object_and_stage_text_once(tmp_path: Path) -> None:
    code = random.Random(1).randbytes(20_000)
    many = [(specialisation("k", code, N=n), code) for n in range(50)]
    written = write_bundle(tmp_path, contents("b", many))
    assert written.code_objects == 1
    assert written.deduplicated == 49
    assert written.size < 30_000
    text = random.Random(2).randbytes(20_000).hex()
    staged = contents("b", many, {spec.key(): [("isa", text)] for spec, _ in many})
    assert write_bundle(tmp_path, staged).size < written.size + 40_000
    BundleFile.open(tmp_path / "b.flybundle", verify="open")


def test_writing_again_replaces_the_link_and_not_a_mapped_file(tmp_path: Path) -> None:
    first = write_bundle(tmp_path, contents("b", family(3)))
    mapped = BundleFile.open(first.link)
    assert write_bundle(tmp_path, contents("b", family(3))) == first
    second = write_bundle(tmp_path, contents("b", family(4)))
    mapped.verify()
    assert BundleFile.open(first.link).id == second.id
    assert BundleFile.open(first.path).id == first.id


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"specialisations": []}, "no specialisation"),
        ({"name": "../evil"}, "cannot name a bundle"),
        ({"name": ""}, "cannot name a bundle"),
        ({"code_objects": {}}, "no code object"),
        ({"code_objects": dict.fromkeys(contents("b", family(2)).code_objects, b"x")}, "SHA-256"),
        ({"specialisations": [specialisation("a\0b", b"x")]}, "cannot name a kernel"),
        ({"specialisations": [family(1)[0][0]] * 2}, "there twice"),
        ({"meta": {"big": "x" * (1 << 24)}}, "description"),
        ({"stages": {family(2)[0][0].key(): [("s", "t")] * 101}}, "more than 100 stages"),
        (
            {"specialisations": [replace(family(1)[0][0], launcher="x" * (1 << 22))]},
            "too many",
        ),
    ],
)
def test_contents_that_do_not_fit_together(tmp_path: Path, change, text: str) -> None:
    with pytest.raises(FlycError, match=text):
        write_bundle(tmp_path / "out", replace(contents("b", family(2)), **change))
    assert list(tmp_path.glob("out/*")) == []


def fail_with(code: int):
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("call", ["os.fsync", "pathlib.Path.replace", "pathlib.Path.symlink_to"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_failing_call_leaves_no_part_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    old = write_bundle(tmp_path, contents("b", family(2)))
    monkeypatch.setattr(call, fail_with(code))
    with pytest.raises(FlycError, match=os.strerror(code)) as caught:
        write_bundle(tmp_path, contents("b", family(5)))
    assert str(tmp_path) in str(caught.value)
    monkeypatch.undo()
    assert not list(tmp_path.glob(".*"))
    assert BundleFile.open(old.link).id == old.id
    for path in tmp_path.glob("*.flybundle"):
        BundleFile.open(path, verify="open")


@pytest.mark.parametrize("limit", [100, 1000, 20_000])
def test_a_full_disk(tmp_path: Path, limit: int) -> None:
    program = (
        "import resource, sys; from tests.fuzz.bundle_seeds import *\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "from runtime_loader.errors import FlycError\n"
        "codes = [random.Random(n).randbytes(9000) for n in range(9)]\n"
        "specs = [(specialisation('k', code, N=n), code) for n, code in enumerate(codes)]\n"
        "try: write_bundle(sys.argv[1], contents('b', specs))\n"
        "except FlycError as error: print(error); sys.exit(3)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 3, ran.stderr
    assert "cannot write the bundle into" in ran.stdout
    assert str(tmp_path) in ran.stdout
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_removes_the_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_bundle(tmp_path, contents("b", family(2)))
    assert list(tmp_path.iterdir()) == []


def test_directories_that_cannot_be_written(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    with pytest.raises(FlycError, match="cannot write the bundle into"):
        write_bundle(occupied / "sub", contents("b", family(2)))
    taken = tmp_path / "b.flybundle"
    taken.mkdir()
    with pytest.raises(FlycError, match="cannot write the bundle into"):
        write_bundle(tmp_path, contents("b", family(2)))
    assert not list(tmp_path.glob(".*"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(FlycError, match="Permission denied"):
        write_bundle(tmp_path, contents("b", family(2)))


WRITE_FOREVER = """
import sys
from tests.fuzz.bundle_seeds import *
number = 0
while True:
    write_bundle(sys.argv[1], with_stages("b", family(8, seed=number % 5)))
    print(number, flush=True)
    number += 1
"""


def writer_process(directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITE_FOREVER, str(directory)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_killed_writer_leaves_only_whole_bundles(tmp_path: Path) -> None:
    for round_ in range(8):
        process = writer_process(tmp_path)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.003 * round_)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert BundleFile.open(tmp_path / "b.flybundle", verify="open").has_stages
        for path in tmp_path.glob("*.flybundle"):
            BundleFile.open(path, verify="open")


@pytest.mark.slow
def test_concurrent_writers_of_the_same_bundle(tmp_path: Path) -> None:
    processes = [writer_process(tmp_path) for _ in range(3)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
    for _ in range(200):
        BundleFile.open(tmp_path / "b.flybundle", verify="open").close()
    for process in processes:
        assert process.poll() is None
        process.kill()
        process.communicate()
    names = {path.name for path in tmp_path.glob("*.flybundle")}
    assert len(names) <= 6
    for path in tmp_path.glob("*.flybundle"):
        bundle = BundleFile.open(path, verify="open")
        assert bundle.id[:16] in path.resolve().name


def test_code_objects_may_come_from_a_lazy_mapping(tmp_path: Path) -> None:
    codes = {hashlib.sha256(code).hexdigest(): code for _, code in family(9)}
    live: list[str] = []

    class Lazy(dict[str, bytes]):
        def __getitem__(self, digest: str) -> bytes:
            live.append(digest)
            return codes[digest]

    made = replace(contents("b", family(9)), code_objects=Lazy.fromkeys(codes, b""))
    write_bundle(tmp_path, made)
    assert sorted(live) == sorted(codes)
