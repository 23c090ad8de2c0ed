"""A whole build that is taken as it is: only while nothing at all has changed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from flyc_cli.builder.build import Workers, build
from flyc_cli.builder.watch import Silent
from flyc_cli.bundle_writer import WrittenBundle
from flyc_cli.store.artifacts import Artifacts
from flyc_cli.store.files import Store
from tests.store.project import write_kernel, write_manifest
from tests.store.test_staleness import RETURNS_2, RETURNS_3, edit, lay_out

pytestmark = pytest.mark.compile


class Told(Silent):
    """Remembers whether a build was taken as it is; does something when the first job is done."""

    def __init__(self, once: Callable[[], object] | None = None) -> None:
        self.found = 0
        self.once = once

    def outcome(self, outcome: object) -> None:
        once, self.once = self.once, None
        if once is not None:
            once()

    def unchanged(self, specialisations: int) -> None:
        self.found = specialisations


class Project:
    """A built project in which each kernel depends on one kind of thing."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "project"
        self.directory.mkdir()
        self.manifest = lay_out(self.directory)
        self.store = Store(root / "store")
        self.out = root / "out"

    def build(self, **options: Any) -> tuple[WrittenBundle, bool]:
        """The bundle, and whether it was taken as it is."""
        told = Told()
        workers = Workers(storage=self.store)
        written = build(self.manifest, self.out, watcher=told, workers=workers, jobs=2, **options)
        assert told.found in (0, written.specialisations)
        return written, bool(told.found)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project(tmp_path_factory.mktemp("unchanged"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made.directory)
        patch.delenv("SAMPLE_VALUE", raising=False)
        made.build()
    return made


@pytest.fixture(autouse=True)
def there(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.directory)
    monkeypatch.delenv("SAMPLE_VALUE", raising=False)


def replaced(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        path = directory / name
        path.write_text(path.read_text().replace(old, new, 1))

    return change


def written(name: str, text: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).write_text(text) and None


CHANGES: dict[str, Callable[[Path], None]] = {
    **{
        name: replaced(f"{name}.py", "2", "3")
        for name in ("module_global", "default_argument", "class_attribute", "closure")
    },
    "a helper beside": written("beside.py", RETURNS_3),
    "a helper in a package": written("lib/parcel/inner.py", RETURNS_3),
    "a late import": written("late.py", "VALUE = 3\n"),
    "a data file": written("data.csv", "3\n"),
    "a file by a relative name": written("relative.txt", "3\n"),
    "a name in a folder": lambda directory: (directory / "rows" / "c").touch(),
    "a file that was not there": lambda directory: (directory / "switch").touch(),
    "a module that shadows another": written("shadow.py", RETURNS_3),
    "the manifest": replaced("manifest.yaml", "name: project", "name:  project"),
    "a variable": lambda directory: os.environ.__setitem__("SAMPLE_VALUE", "3"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_of_any_kind_is_seen(project: Project, kind: str, tmp_path: Path) -> None:
    """And what is as it was again is found again."""
    from flyc_cli.builder import build as module

    before = tmp_path / "before"
    shutil.copytree(project.directory, before, symlinks=True)
    stopped = pytest.MonkeyPatch()

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    stopped.setattr(module, "compile_all", stop)  # so that a change costs no build
    try:
        assert project.build()[1]
        CHANGES[kind](project.directory)
        with pytest.raises(KeyboardInterrupt):
            project.build()
        os.environ.pop("SAMPLE_VALUE", None)
        shutil.copytree(before, project.directory, dirs_exist_ok=True)
        for path in project.directory.rglob("*"):
            if not (before / path.relative_to(project.directory)).exists():
                path.unlink()
        assert project.build()[1]
    finally:
        stopped.undo()


def test_what_was_edited_is_built_and_then_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Project(tmp_path)
    monkeypatch.chdir(made.directory)
    first, found = made.build()
    assert not found
    edit(made.directory, monkeypatch)
    second, found = made.build()
    assert not found
    assert second.id != first.id
    third, found = made.build()
    assert (third, found) == (second, True)
    alone = build(made.manifest, tmp_path / "alone", jobs=2)
    assert alone.path.read_bytes() == second.path.read_bytes()


@pytest.fixture
def shares(tmp_path: Path) -> Path:
    """The manifest of two specialisations that share a helper; one of them is built first."""
    directory = tmp_path / "shares"
    directory.mkdir()
    for name in ("first", "second"):
        write_kernel(directory, name, "from helper import value\n")
    (directory / "helper.py").write_text(RETURNS_2)
    return write_manifest(directory, ["first", "second"])


def built_after(manifest: Path, store: Store, once: Callable[[], object] | None) -> WrittenBundle:
    out, workers = manifest.parent.parent / "out", Workers(storage=store)
    return build(manifest, out, watcher=Told(once), workers=workers, jobs=1)


@pytest.mark.filterwarnings("ignore::flyc_cli.builder.supervisor.StoreWarning")
@pytest.mark.parametrize(
    "kind", ["edited meanwhile", "edited and put back", "refused by the store"]
)
def test_what_is_not_known_of_a_build_is_not_believed(
    shares: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, helper = Store(shares.parent.parent / "store"), shares.parent / "helper.py"
    if kind.startswith("edited"):
        built_after(shares, store, lambda: helper.write_text(RETURNS_3))
        if kind.endswith("put back"):
            helper.write_text(RETURNS_2)
    else:
        with monkeypatch.context() as patch:
            refused = OSError(28, "No space left on device", "there")
            patch.setattr(Artifacts, "keep", Mock(side_effect=refused))
            built_after(shares, store, None)
        helper.write_text(RETURNS_3)
    again = built_after(shares, store, None)
    assert again.id == build(shares, shares.parent / "clean", jobs=1).id


@pytest.mark.parametrize("what", ["flyc_version", "installed_compiler"])
def test_other_versions_are_another_build(
    shares: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a bundle says of its origin is a part of it."""
    from flyc_cli.builder import build as module
    from flyc_cli.builder import toolchain

    store = Store(shares.parent.parent / "store")
    first = built_after(shares, store, None)
    if what == "flyc_version":
        monkeypatch.setattr(toolchain, what, lambda: "9.9")
    else:
        other = replace(toolchain.installed_compiler(), llvm="another")
        monkeypatch.setattr(module, what, lambda: other)
    assert built_after(shares, store, None).id != first.id


def test_a_bundle_that_is_not_as_it_was(project: Project) -> None:
    known, found = project.build()
    assert found
    data = known.path.read_bytes()
    for spoil in (
        lambda: known.path.unlink(),
        lambda: known.path.write_bytes(data[:-1]),
        lambda: known.path.write_bytes(data[:-1] + bytes([data[-1] ^ 1])),
        lambda: known.link.unlink(),
        lambda: (known.link.unlink(), known.link.symlink_to("elsewhere")),
    ):
        spoil()
        again, found = project.build()
        assert not found
        assert again == known
        assert known.path.read_bytes() == data
        assert known.link.resolve() == known.path.resolve()
        assert project.build()[1]


@pytest.mark.parametrize(
    "options",
    [{"kernels": ["untouched"]}, {"stages": True}, {"compression": "raw"}, {"each": True}],
)
def test_other_options_are_another_build(project: Project, options: dict[str, Any]) -> None:
    assert project.build()[1]
    assert not project.build(**options)[1]
    project.build(each=True)
    assert project.build()[1]


def test_a_record_that_lies(project: Project) -> None:
    """No path outside of the output is used, and no damage of a record breaks a build."""
    assert project.build()[1]
    store = project.store
    values = {
        path.name: store.record(path.name) or b""
        for path in (store.root / "records").rglob("*")
        if path.is_file()
    }
    builds = {key: json.loads(value) for key, value in values.items() if b'"bundle":' in value}
    assert builds
    for key, held in builds.items():
        held["bundle"]["path"] = "../../" + held["bundle"]["path"]
        store.put_record(key, json.dumps(held).encode())
    assert project.build()[0].path.parent == project.out
    for value in (b"[]", b"{", b'{"bundle": {}}', b'{"bundle": {"path": 3}}', b"3"):
        for key in builds:
            store.put_record(key, value)
        assert not project.build()[1]
        assert project.build()[1]
