"""The store's files, keys and upkeep, without a compiler."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyc_cli.builder.jobs import WORKER_BYTES, default_jobs
from flyc_cli.manifest.model import Limits, Request, Source, TypeValue
from flyc_cli.manifest.source import Place
from flyc_cli.store.dependencies import Dependency, States
from flyc_cli.store.files import Store, default_directory
from flyc_cli.store.identity import NOT_KEYED, encoded, key_of, request_text
from flyc_cli.store.paths import Roots
from flyc_cli.store.toolchain import identify_toolchain
from flyc_cli.store.upkeep import prune, stats, verify
from flyc_cli.text import parse_byte_size
from mlir_passes.toolkit import Toolkit, assemble_toolkit
from runtime_loader.signature import PointerForm
from runtime_loader.target import Target

REQUEST = Request(
    kernel="k",
    target=Target.parse("gfx942"),
    params={"N": 1},
    source=Source("launcher", "module", "name"),
    constexpr={"N": 1},
    args=(PointerForm("x", "f32", 4),),
    hints={"waves_per_eu": 2},
    env={"NAME": "a"},
    python_path=("/somewhere/kernels",),
    where=Place("manifest.yaml", 1, 1),
)

CHANGES: dict[str, Any] = {
    "kernel": "other",
    "target": Target.parse("gfx942:xnack-"),
    "params": {"N": 1.0},
    "source": Source("launcher", "module", "name", {"dtype": TypeValue("f16")}),
    "constexpr": {"N": True},
    "args": (PointerForm("x", "f32", 16),),
    "hints": {},
    "env": {"NAME": "b"},
}


def test_every_field_of_a_request_is_in_its_key_or_named_as_left_out() -> None:
    names = {field.name for field in fields(Request)}
    assert names == CHANGES.keys() | NOT_KEYED
    texts = {request_text(replace(REQUEST, **{name: value})) for name, value in CHANGES.items()}
    assert len(texts) == len(CHANGES)
    assert request_text(REQUEST) not in texts


def test_what_cannot_change_the_result_is_not_in_the_key() -> None:
    other = replace(
        REQUEST,
        where=Place("other.yaml", 3, 4),
        rows=({"M": 1},),
        limits=Limits(1.0, 2),
        python_path=("/elsewhere/kernels",),
    )
    assert request_text(other) == request_text(REQUEST)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text() | st.builds(TypeValue, st.text(max_size=3)),
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple)
    | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)  # fmt: skip


def same(one: object, other: object) -> bool:
    """Equal, of equal types, throughout, and mappings in the same order."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        assert isinstance(other, (list, tuple))
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        assert isinstance(other, dict)
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    return repr(one) == repr(other)


@given(values, values)
def test_different_values_have_different_encodings(one: object, other: object) -> None:
    texts = [json.dumps(encoded(value), sort_keys=True) for value in (one, other)]
    assert (texts[0] == texts[1]) == same(one, other)


def test_a_value_of_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(TypeError, match="object"):
        encoded({"x": object()})


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_keys_tell_their_parts_apart(one: list[bytes], other: list[bytes]) -> None:
    assert (key_of("a", *one) == key_of("a", *other)) == (one == other)
    assert key_of("a", *one) != key_of("b", *one)


KEY = key_of("test", "key")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_what_is_kept_is_found(store: Store) -> None:
    assert store.record(KEY) is None
    assert store.blob("0" * 64) is None
    store.put_record(KEY, b"one")
    store.put_record(KEY, b"two")
    sha256 = store.put_blob(b"bytes")
    assert (store.record(KEY), store.blob(sha256)) == (b"two", b"bytes")
    assert not list((store.root / "aside").iterdir())


@given(st.binary(min_size=1, max_size=60), st.data())
def test_no_damage_is_ever_returned(data: bytes, draw: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        store = Store(Path(directory))
        sha256 = store.put_blob(data)
        store.put_record(KEY, data)
        for path, read in (
            (store.blob_path(sha256), lambda: store.blob(sha256)),
            (store.record_path(KEY), lambda: store.record(KEY)),
        ):
            sound = path.read_bytes()
            at = draw.draw(st.integers(0, len(sound) - 1))
            bit = draw.draw(st.integers(0, 7))
            flipped = bytearray(sound)
            flipped[at] ^= 1 << bit
            damaged = draw.draw(st.sampled_from([bytes(flipped), sound[:at], sound + b"x"]))
            path.write_bytes(damaged)
            assert read() is None
            assert not path.exists()


def test_a_record_of_another_key_is_not_believed(store: Store) -> None:
    other = key_of("test", "other")
    store.put_record(other, b"value")
    store.put_record(KEY, b"mine")
    store.record_path(KEY).write_bytes(store.record_path(other).read_bytes())
    assert store.record(KEY) is None


def test_reading_needs_no_writing(store: Store) -> None:
    store.put_record(KEY, b"value")
    before = {path: path.stat().st_mtime_ns for path in store.root.rglob("*")}
    assert store.record(KEY) == b"value"
    assert before == {path: path.stat().st_mtime_ns for path in store.root.rglob("*")}


def test_where_the_store_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYC_CACHE_DIR", "/chosen")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert default_directory() == Path("/chosen")
    monkeypatch.setenv("FLYC_CACHE_DIR", "")
    assert default_directory() == Path("/cache/flyc")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_directory() == Path("/home/someone/.cache/flyc")


def aged(store: Store, days: int, data: bytes) -> str:
    sha256 = store.put_blob(data)
    used = time.time() - days * 86400
    os.utime(store.blob_path(sha256), (used, used))
    return sha256


def test_prune_removes_the_least_recently_used(store: Store) -> None:
    old, middle, new = (aged(store, days, bytes(100 + days)) for days in (30, 20, -5))
    done = prune(store, max_age=25 * 86400)
    assert (done.removed, done.freed, done.left) == (1, 130, 100 + 20 + 100 - 5)
    assert store.blob(old) is None
    done = prune(store, max_size=100)
    assert (done.removed, done.left) == (1, 95)
    # Used in the future, after the clock was set back: it counts as used now.
    assert store.blob(new) is not None
    assert store.blob(middle) is None


def test_a_use_makes_a_file_recent(store: Store) -> None:
    sha256 = aged(store, 30, b"used again")
    assert store.blob(sha256) == b"used again"
    assert prune(store, max_age=86400).removed == 0


def test_prune_removes_what_dead_writers_left(store: Store) -> None:
    store.put_blob(b"x")
    left, fresh = store.root / "aside" / "left", store.root / "aside" / "fresh"
    left.write_bytes(b"half")
    fresh.write_bytes(b"half")
    os.utime(left, (1, 1))
    prune(store, max_size=10**9)
    assert (left.exists(), fresh.exists()) == (False, True)


def test_verify_and_stats(store: Store) -> None:
    assert stats(store).oldest is None
    sha256 = store.put_blob(b"bytes")
    store.put_record(KEY, b"value")
    assert not verify(store).damaged
    found = stats(store)
    assert (found.records, found.blobs, found.blob_bytes) == (1, 1, 5)
    store.blob_path(sha256).write_bytes(b"other")
    assert verify(store).damaged == (store.blob_path(sha256),)
    assert stats(store).blobs == 0


def test_paths_have_names_that_mean_the_same_elsewhere() -> None:
    here, there = Roots(("/a/kernels", "/a/kernels/inner")), Roots(("/b/kernels", "/b/inner"))
    name = here.name("/a/kernels/inner/x.py")
    assert name == "<1>/x.py"
    assert there.path(name) == "/b/inner/x.py"
    assert here.name("/a/kernels2/x.py") == "/a/kernels2/x.py"
    assert here.path(here.name("/etc/hosts")) == "/etc/hosts"


STATES: dict[Dependency, Callable[[Path], object]] = {
    Dependency("file", "<0>/f"): lambda root: (root / "f").write_text("new"),
    Dependency("file", "<0>/absent"): lambda root: (root / "absent").touch(),
    Dependency("exists", "<0>/e"): lambda root: (root / "e").mkdir(),
    Dependency("list", "<0>/d"): lambda root: (root / "d" / "more").touch(),
    Dependency("import", "<0>:m"): lambda root: (root / "m").mkdir(),
    Dependency("import", "<0>:n"): lambda root: (root / "n.abi3.so").touch(),
}


@pytest.mark.parametrize("dependency", STATES, ids=lambda d: f"{d.kind}-{d.name}")
def test_states_tell_changes(dependency: Dependency, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    (tmp_path / "m.py").touch()
    (tmp_path / "n.py").touch()
    (tmp_path / "d").mkdir()
    roots = Roots((str(tmp_path),))
    before = States({}).of(dependency, roots)
    assert before == States({}).of(dependency, roots)
    STATES[dependency](tmp_path)
    assert before != States({}).of(dependency, roots)


def test_states_of_variables_do_not_tell_their_values() -> None:
    roots = Roots(())
    states = [
        States(environment).of(Dependency("environment", name), roots)
        for name in ("TOKEN", "*")
        for environment in ({}, {"TOKEN": ""}, {"TOKEN": "secret"})
    ]
    assert len(set(states)) == 6
    assert not any("secret" in state for state in states)


@dataclass(frozen=True)
class Installed:
    flydsl: Path
    toolkit: Toolkit


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    """A FlyDSL and a toolkit, as far as their identity goes."""
    flydsl, tools = tmp_path / "flydsl", tmp_path / "tools"
    for path in (flydsl / "expr", tools / "llvm" / "bin", tools / "amdgcn" / "bitcode"):
        path.mkdir(parents=True)
    (flydsl / "expr" / "numeric.py").write_text("old = 1\n")
    (flydsl / "libFly.so.24").write_bytes(b"library")
    (tools / "llvm" / "bin" / "ld.lld").write_bytes(b"\x7fELF linker")
    (tools / "amdgcn" / "bitcode" / "ocml.bc").write_bytes(b"bitcode")
    return Installed(flydsl, Toolkit(tools, {"linker": "a linker"}))


@pytest.mark.parametrize(
    ("file", "lowers"),
    [
        ("flydsl/expr/numeric.py", False),
        ("flydsl/expr/added.py", False),
        ("flydsl/libFly.so.24", True),
        ("tools/llvm/bin/ld.lld", True),
        ("tools/amdgcn/bitcode/ocml.bc", True),
    ],
)
def test_a_changed_toolchain_has_other_keys(
    installed: Installed, store: Store, tmp_path: Path, file: str, lowers: bool
) -> None:
    def identity() -> tuple[bytes, bytes]:
        found = identify_toolchain(store, installed.toolkit, installed.flydsl, {})
        return found.tracing_key(), found.lowering_key()

    before = identity()
    assert identity() == before
    path = tmp_path / file
    data = path.read_bytes() if path.exists() else b""
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns) if data else None
    path.write_bytes(data[:-1] + b"!")  # same size
    if times:
        os.utime(path, ns=times)
    after = identity()
    assert after[0] != before[0]
    assert (after[1] != before[1]) == lowers


def test_what_is_installed_is_hashed_once(tmp_path: Path, store: Store) -> None:
    """Although each build assembles a toolkit of its own."""
    flydsl = tmp_path / "flydsl"
    flydsl.mkdir()
    found = []
    for name in ("first", "second"):
        toolkit = assemble_toolkit(tmp_path / name)
        found.append(identify_toolchain(store, toolkit, flydsl, {}))
        records = sorted(path.name for path in (store.root / "records").rglob("*"))
        assert len([name for name in records if len(name) == 64]) == 1
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("files", "jobs"),
    [
        ({}, 64),
        ({"sys/fs/cgroup/box/cpu.max": "250000 100000\n"}, 3),
        ({"sys/fs/cgroup/cpu.max": "150000 100000", "sys/fs/cgroup/box/cpu.max": "max 100000"}, 2),
        ({"sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "100000\n",
          "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000\n"}, 1),
        ({"sys/fs/cgroup/box/memory.max": f"{5 * WORKER_BYTES}",
          "sys/fs/cgroup/box/memory.current": f"{2 * WORKER_BYTES}",
          "sys/fs/cgroup/box/memory.stat": f"anon 1\ninactive_file {WORKER_BYTES}\n"}, 4),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * WORKER_BYTES}",
          "sys/fs/cgroup/memory/memory.usage_in_bytes": "0"}, 2),
        ({"sys/fs/cgroup/box/memory.max": "1000", "sys/fs/cgroup/box/memory.current": "900"}, 1),
        ({"proc/meminfo": f"MemAvailable:  {7 * WORKER_BYTES // 1024} kB\n"}, 6),
    ],
)  # fmt: skip
def test_jobs_are_what_the_control_group_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], jobs: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    groups = {"proc/self/cgroup": "4:cpu,cpuacct:/box\n5:memory:/box\n0::/box\n"}
    for name, text in {**groups, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert default_jobs(tmp_path) == jobs


@pytest.mark.parametrize(
    ("text", "size"),
    [("512", 512), ("700MB", 700_000_000), ("1.5 GB", 1_500_000_000), ("2GiB", 2 << 30),
     ("0", None), ("-1", None), ("two", None), ("1e9", None)],
)  # fmt: skip
def test_sizes(text: str, size: int | None) -> None:
    assert parse_byte_size(text) == size
