"""Whatever a module does to its worker is one clear failure, and leaves nothing behind."""

import os
import tempfile
import time
from pathlib import Path

import pytest

from tests.compile.building import Outcomes, build, pointer, request

pytestmark = pytest.mark.compile

HEAD = """import flydsl.compiler as flyc
import flydsl.expr as fx


@flyc.kernel
def kernel(out: fx.Pointer):
    out[0] = fx.Int32(1)


"""
LAUNCHER = """
@flyc.jit
def launch(out: fx.Pointer):
    kernel(out).launch(grid=(1, 1, 1), block=(64, 1, 1))
"""
FACTORIES = """

def make(count):
    return (launch,) * count


def table():
    return {"launch": launch, "version": 3}


def number():
    return 3


def raises():
    raise ValueError("no such shape")


not_callable = 5
"""

# Module: its code, then the kind, stage, message and failing line that it leads to.
AT_IMPORT = {
    "aborts": ("import os\nos.abort()", "died", "SIGABRT", None),
    "segfaults": ("import ctypes\nctypes.string_at(0)", "died", "SIGSEGV", None),
    "leaves": ("import os\nos._exit(0)", "died", "exit status 0", None),
    "leaves_with_3": ("import os\nos._exit(3)", "died", "exit status 3", None),
    "exits": ("import sys\nsys.exit(3)", "failed", "SystemExit: 3", "sys.exit(3)"),
    "exits_well": ("raise SystemExit", "failed", "SystemExit", "raise SystemExit"),
    "interrupts": ("raise KeyboardInterrupt", "failed", "KeyboardInterrupt", "raise Keyboard"),
    "recurses": (
        "def f():\n    return f()\n\n\nf()",
        "failed",
        "RecursionError: maximum recursion depth exceeded",
        "return f()",
    ),
    "raises": ("1 / 0", "failed", "ZeroDivisionError: division by zero", "1 / 0"),
    "no_syntax": ("def f(:\n    pass", "failed", "SyntaxError: invalid syntax", "def f(:"),
    "needs_more": (
        "import nobody_has_this",
        "failed",
        "no module named nobody_has_this: install it, or add its directory to python_path",
        "import nobody_has_this",
    ),
    "imports_a_name": (
        "from os import nobody_has_this",
        "failed",
        "ImportError: cannot import name 'nobody_has_this' from 'os'",
        "from os import nobody",
    ),
}
AT_TRACE = {
    "trace_raises": ('    raise RuntimeError("not this")', "failed", "RuntimeError: not this", 1),
    "trace_exits": ("    raise SystemExit(2)", "failed", "SystemExit: 2", 1),
    "trace_aborts": ("    import os\n\n    os.abort()", "died", "SIGABRT", None),
    "trace_names": ("    nobody_has_this(out)", "failed", "name 'nobody_has_this' is not", 1),
}
NOT_THERE = {
    "no module": ("nowhere:launch", {}, "no module named nowhere: is its directory in python_path"),
    "no launcher": ("plain:lunch", {}, "plain has no lunch; its launchers are launch"),
    "kernel": ("plain:kernel", {}, "plain:kernel leads to a kernel: name the launcher"),
    "number": ("plain:not_callable", {}, "plain:not_callable is int, not a @flyc.jit launcher"),
    "no factory": ("plain:mike", {"kwargs": {}}, "plain has no mike"),
    "launcher as factory": ("plain:launch", {"kwargs": {}}, "list it as a launcher"),
    "tuple": ("plain:make", {"kwargs": {"count": 2}}, "a tuple of 2"),
    "tuple is short": (
        "plain:make",
        {"kwargs": {"count": 2}, "select": 2},
        "plain:make returned a tuple of 2; it has no 2",
    ),
    "mapping": ("plain:table", {"kwargs": {}}, "a mapping with 'launch', 'version'"),
    "mapping has not": (
        "plain:table",
        {"kwargs": {}, "select": "lunch"},
        "plain:table returned a mapping with 'launch', 'version'; it has no 'lunch'",
    ),
    "returns a number": ("plain:number", {"kwargs": {}}, "plain:number returned int"),
}
STRAYS = """import os
import subprocess
import sys

child = subprocess.Popen(["sleep", "600"])
with open(os.environ["STRAYS"], "a") as file:
    file.write(f"{child.pid}\\n")
if os.environ.get("THEN") == "die":
    os.abort()
print("a line on stdout")
print("error: a line on stderr", file=sys.stderr)
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("kernels")
    for name, (code, *_) in AT_IMPORT.items():
        (directory / f"{name}.py").write_text(f"{code}\n")
    for name, (code, *_) in AT_TRACE.items():
        (directory / f"{name}.py").write_text(
            f"{HEAD}\n@flyc.jit\ndef launch(out: fx.Pointer):\n{code}\n"
        )
    (directory / "plain.py").write_text(HEAD + LAUNCHER + FACTORIES)
    (directory / "strays.py").write_text(STRAYS + HEAD + LAUNCHER)
    return directory


@pytest.fixture(scope="module")
def outcomes(kernels) -> Outcomes:
    out = pointer("out", "i32")
    return build(
        {
            "plain": request("plain:launch", out, kernels=kernels),
            **{
                name: request(f"{name}:launch", out, kernels=kernels)
                for name in (*AT_IMPORT, *AT_TRACE)
            },
            **{
                name: request(source, out, kernels=kernels, **options)
                for name, (source, options, _) in NOT_THERE.items()
            },
            "factory raises": request("plain:raises", out, kwargs={}, kernels=kernels),
            "wrong kwargs": request("plain:make", out, kwargs={"cuont": 1}, kernels=kernels),
            "picked": request("plain:make", out, kwargs={"count": 2}, select=-1, kernels=kernels),
            "picked by key": request(
                "plain:table", out, kwargs={}, select="launch", kernels=kernels
            ),
        }
    )


def line_with(path: Path, text: str) -> tuple[str, int]:
    lines = path.read_text().splitlines()
    return str(path), 1 + next(i for i, line in enumerate(lines) if text in line)


@pytest.mark.parametrize("name", AT_IMPORT)
def test_faults_at_import(outcomes, kernels, name) -> None:
    _, kind, message, line = AT_IMPORT[name]
    failed = outcomes.failed(name)
    assert (failed.kind, failed.stage) == (kind, "import")
    assert message in failed.message
    assert "Traceback" not in failed.message
    if line is not None:
        assert failed.source[0] == line_with(kernels / f"{name}.py", line)
    assert len(failed.source) <= 16


@pytest.mark.parametrize("name", AT_TRACE)
def test_faults_while_tracing(outcomes, kernels, name) -> None:
    code, kind, message, line = AT_TRACE[name]
    failed = outcomes.failed(name)
    assert (failed.kind, failed.stage) == (kind, "trace")
    assert message in failed.message
    if line is not None:
        assert failed.source[0] == line_with(kernels / f"{name}.py", code)


@pytest.mark.parametrize("name", NOT_THERE)
def test_what_is_not_there_is_named(outcomes, name) -> None:
    failed = outcomes.failed(name)
    assert failed.kind == "input"
    assert NOT_THERE[name][2] in failed.message


def test_a_factory_that_raises_fails_at_its_line(outcomes, kernels) -> None:
    failed = outcomes.failed("factory raises")
    assert (failed.kind, failed.stage) == ("failed", "import")
    assert failed.message == "ValueError: no such shape"
    assert failed.source[0] == line_with(kernels / "plain.py", "raise ValueError")


def test_keyword_arguments_that_a_factory_does_not_take_are_named(outcomes) -> None:
    failed = outcomes.failed("wrong kwargs")
    assert failed.kind == "input"
    assert failed.message == (
        "plain:make(count): missing a required argument: 'count', and it takes no cuont"
    )


def test_one_failure_does_not_stop_the_others(outcomes) -> None:
    plain = outcomes.built("plain")
    assert outcomes.built("picked").code_object == plain.code_object
    assert outcomes.built("picked by key").code_object == plain.code_object


def children() -> set[int]:
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            found.add(int(status.parent.name))
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_nothing_is_left_behind(kernels, tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = children()
    out, strays = pointer("out", "i32"), tmp_path / "strays"
    outcomes = build(
        {
            then: request(
                "strays:launch", out, kernels=kernels, env={"STRAYS": str(strays), "THEN": then}
            )
            for then in ("live", "die")
        }
    )
    assert outcomes.built("live")
    assert outcomes.failed("die").kind == "died"
    assert children() == before
    assert list(tmp_path.iterdir()) == [strays]
    pids = [int(line) for line in strays.read_text().splitlines()]
    assert len(pids) >= 2
    give_up = time.monotonic() + 10
    while any(map(is_running, pids)) and time.monotonic() < give_up:
        time.sleep(0.05)
    assert [pid for pid in pids if is_running(pid)] == []
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")
