"""Nothing that can change a result is missed, and what cannot change it costs no lowering."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flyc_cli.builder.explain import explain
from flyc_cli.builder.outcomes import COMPILED, SAME_INPUT, SAME_MODULE
from flyc_cli.store.files import Store
from tests.store.project import build, codes, origins, write_kernel, write_manifest

pytestmark = pytest.mark.compile

# What `value()` comes from, by kind of dependency.
HEADS = {
    "untouched": "def value():\n    return 2\n",
    "module_global": "VALUE = 2\ndef value():\n    return VALUE\n",
    "default_argument": "def value(it=2):\n    return it\n",
    "class_attribute": "class Held:\n    it = 2\ndef value():\n    return Held.it\n",
    "closure": "def made(it):\n    return lambda: it\nvalue = made(2)\n",
    "helper": "from beside import value\n",
    "package": "from parcel.inner import value\n",
    "imported_late": "def value():\n    import importlib\n"
    "    return importlib.import_module('late').VALUE\n",
    "data": "from pathlib import Path\ndef value():\n"
    "    return Path(__file__).with_name('data.csv').read_text()\n",
    "relative_data": "def value():\n    return open('relative.txt').read()\n",
    "variable": "import os\nvalue = lambda: os.environ.get('SAMPLE_VALUE', 2)\n",
    "listing": "import os\nvalue = lambda: len(os.listdir(os.path.dirname(__file__) + '/rows'))\n",
    "existence": "from pathlib import Path\n"
    "value = lambda: 3 if Path(__file__).with_name('switch').exists() else 2\n",
    "shadowed": "from shadow import value\n",
    "optional": "try:\n    from extra import value\nexcept ImportError:\n    value = lambda: 2\n",
}
RETURNS_2, RETURNS_3 = "def value():\n    return 2\n", "def value():\n    return 3\n"


def lay_out(directory: Path) -> Path:
    for name, head in HEADS.items():
        write_kernel(directory, name, head)
    (directory / "lib" / "parcel").mkdir(parents=True)
    (directory / "rows").mkdir()
    for name in ("a", "b"):
        (directory / "rows" / name).touch()
    (directory / "beside.py").write_text(RETURNS_2)
    (directory / "lib" / "parcel" / "__init__.py").touch()
    (directory / "lib" / "parcel" / "inner.py").write_text(RETURNS_2)
    (directory / "lib" / "shadow.py").write_text(RETURNS_2)
    (directory / "late.py").write_text("VALUE = 2\n")
    (directory / "data.csv").write_text("2\n")
    (directory / "relative.txt").write_text("2\n")
    return write_manifest(directory, list(HEADS))


def edit(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change what every kernel but one depends on, so that its value becomes 3."""
    for name in ("module_global", "default_argument", "class_attribute", "closure"):
        path = directory / f"{name}.py"
        path.write_text(path.read_text().replace("2", "3", 1))
    (directory / "beside.py").write_text(RETURNS_3)
    (directory / "lib" / "parcel" / "inner.py").write_text(RETURNS_3)
    (directory / "late.py").write_text("VALUE = 3\n")
    (directory / "data.csv").write_text("3\n")
    (directory / "relative.txt").write_text("3\n")
    (directory / "rows" / "c").touch()
    (directory / "switch").touch()
    (directory / "shadow.py").write_text(RETURNS_3)
    (directory / "extra.py").write_text(RETURNS_3)
    monkeypatch.setenv("SAMPLE_VALUE", "3")


def test_every_kind_of_dependency(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, store = tmp_path / "project", Store(tmp_path / "store")
    project.mkdir()
    manifest = lay_out(project)
    monkeypatch.chdir(project)
    monkeypatch.delenv("SAMPLE_VALUE", raising=False)

    first = build(manifest, store)
    # Modules that trace alike are lowered once, if the first is done when the next is traced.
    assert set(origins(first).values()) <= {COMPILED, SAME_MODULE}
    assert len(set(codes(first).values())) == 1
    again = build(manifest, store)
    assert set(origins(again).values()) == {SAME_INPUT}
    assert codes(again) == codes(first)

    edit(project, monkeypatch)
    edited = build(manifest, store)
    assert origins(edited).pop("untouched") == SAME_INPUT
    stale = [name for name, code in codes(edited).items() if code == codes(first)[name]]
    assert stale == ["untouched"]
    assert codes(edited) == codes(build(manifest, None))

    answers = {a.request.kernel: a for k in HEADS
               for a in explain(manifest, k, {}, None, rocm=None, storage=store)}  # fmt: skip
    assert all(answer.found for answer in answers.values())
    monkeypatch.setenv("SAMPLE_VALUE", "4")
    (project / "data.csv").write_text("4\n")
    (variable,) = explain(manifest, "variable", {}, None, rocm=None, storage=store)
    assert variable.differences == ("environment variable SAMPLE_VALUE changed",)
    (data,) = explain(manifest, "data", {}, None, rocm=None, storage=store)
    assert data.differences == (f"{project / 'data.csv'} changed",)


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """A project of one kernel and a helper, and beside it a store that has it."""
    project = tmp_path / "project"
    project.mkdir()
    write_kernel(project, "uses", "from helper import value\n")
    (project / "helper.py").write_text(RETURNS_2)
    manifest = write_manifest(project, ["uses"])
    assert origins(build(manifest, Store(tmp_path / "store"))) == {"uses": COMPILED}
    return manifest


@pytest.mark.parametrize(
    "text",
    ["# A comment.\n" + RETURNS_2, "def value():\n    renamed = 1\n    return renamed + 1\n"],
)
def test_what_traces_alike_is_not_lowered_again(one: Path, tmp_path: Path, text: str) -> None:
    (one.parent / "helper.py").write_text(text)
    assert origins(build(one, Store(tmp_path / "store"))) == {"uses": SAME_MODULE}
    assert origins(build(one, Store(tmp_path / "store"))) == {"uses": SAME_INPUT}


def test_bytecode_of_the_same_second_and_size_is_not_believed(one: Path, tmp_path: Path) -> None:
    import py_compile

    helper = one.parent / "helper.py"
    py_compile.compile(str(helper))
    times = helper.stat().st_atime_ns, helper.stat().st_mtime_ns
    helper.write_text(RETURNS_3)
    os.utime(helper, ns=times)
    built = build(one, Store(tmp_path / "store"))
    assert origins(built) == {"uses": COMPILED}


def test_another_checkout_finds_it(one: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere" / "project"
    elsewhere.parent.mkdir()
    one.parent.rename(elsewhere)
    assert origins(build(elsewhere / one.name, Store(tmp_path / "store"))) == {"uses": SAME_INPUT}


@pytest.mark.parametrize(
    "run",
    [
        "__import__('subprocess').run(['true'])",
        "os.system('true')",
        "os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)",
        "os.waitpid(os.fork() or os._exit(0), 0)",
        "__import__('socket').getaddrinfo('127.0.0.1', 1)",
    ],
)
def test_a_program_that_is_run_cannot_be_followed(tmp_path: Path, run: str) -> None:
    write_kernel(tmp_path, "runs", f"import os\nvalue = lambda: {run} and 2\n")
    manifest = write_manifest(tmp_path, ["runs"])
    store = Store(tmp_path / "store")
    assert origins(build(manifest, store)) == {"runs": COMPILED}
    assert origins(build(manifest, store)) == {"runs": SAME_MODULE}
    (answer,) = explain(manifest, "runs", {}, None, rocm=None, storage=store)
    assert answer.differences == (
        "what its code does cannot be followed (it runs a program or uses the network)",
    )


def test_no_time_is_believed(one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ago = time.time() - 10**8
    real: Callable[[], float] = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 10**8)
    helper = one.parent / "helper.py"
    helper.write_text(RETURNS_3)
    os.utime(helper, (ago, ago))
    assert origins(build(one, Store(tmp_path / "store"))) == {"uses": COMPILED}
