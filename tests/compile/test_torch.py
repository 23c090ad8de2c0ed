"""Kernel modules get the real torch where it is installed, and need none if they want none."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.compile.building import Outcomes, build, pointer, request

pytestmark = pytest.mark.compile

ROOT = Path(__file__).parents[2]

LAUNCHER = """
import flydsl.compiler as flyc
import flydsl.expr as fx


@flyc.kernel
def kernel(out: fx.Pointer):
    out[0] = fx.Int32(1)


@flyc.jit
def launch(out: fx.Pointer):
    kernel(out).launch(grid=(1, 1, 1), block=(64, 1, 1))
"""
REAL = "assert torch.tensor([1, 2]).sum() == 3\n"
# What a module does to have torch, and whether it can do without.
MODULES = {
    "none": ("", True),
    "plain": (f"import torch\n{REAL}", False),
    "optional": (
        f"try:\n    import torch\nexcept ImportError:\n    torch = None\nif torch:\n    {REAL}",
        True,
    ),
    "bare": (f"try:\n    import torch\nexcept:\n    torch = None\nif torch:\n    {REAL}", True),
    "found": (
        "import importlib.util\n"
        f"if importlib.util.find_spec('torch'):\n    import torch\n    {REAL}",
        True,
    ),
    "late": ("", False),
}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("kernels")
    for name, (preamble, _) in MODULES.items():
        text = preamble + LAUNCHER
        if name == "late":
            text += "    import torch\n    assert torch.tensor([1, 2]).sum() == 3\n"
        (directory / f"with_{name}.py").write_text(text)
    return directory


def requests(kernels):
    out = pointer("out", "i32")
    return {name: request(f"with_{name}:launch", out, kernels=kernels) for name in MODULES}


@pytest.fixture(scope="module")
def outcomes(kernels) -> Outcomes:
    return build(requests(kernels))


@pytest.mark.parametrize("name", MODULES)
def test_modules_that_ask_for_torch_get_the_real_one(outcomes, name) -> None:
    """Also where they would catch its absence: the program must be the one that runs with torch."""
    assert outcomes.built(name).code_object == outcomes.built("none").code_object


def test_torch_is_imported_only_for_those_who_ask(outcomes) -> None:
    """Torch takes some 150 MB of each worker (memory in KiB)."""
    assert outcomes.built("none").memory + 50_000 < outcomes.built("plain").memory


SCRIPT = """
import json, sys
from pathlib import Path
from tests.compile.building import build
from tests.compile.test_torch import MODULES, requests
from flyc_cli.builder.supervisor import Built

outcomes = build(requests(Path(sys.argv[1])))
found = {}
for name in MODULES:
    outcome = outcomes._outcomes[name]
    found[name] = (
        outcome.code_object.hex()
        if isinstance(outcome, Built)
        else [outcome.kind, outcome.stage, outcome.message, outcome.source]
    )
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def without_torch(kernels, tmp_path_factory):
    """The outcomes in a virtual environment that has everything but torch."""
    environment = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not entry.name.startswith(("torch", "functorch", "__editable__")):
            (packages / entry.name).symlink_to(entry)
    python = environment / "bin" / "python"
    assert subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 1
    done = subprocess.run(
        [python, "-c", SCRIPT, kernels], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", [name for name, (_, optional) in MODULES.items() if optional])
def test_without_torch_the_same_bytes_are_built(outcomes, without_torch, name) -> None:
    assert without_torch[name] == outcomes.built(name).code_object.hex()


@pytest.mark.parametrize(("name", "stage"), [("plain", "import"), ("late", "trace")])
def test_without_torch_a_module_that_needs_it_says_so(kernels, without_torch, name, stage) -> None:
    kind, found, message, source = without_torch[name]
    assert (kind, found) == ("failed", stage)
    assert message.startswith("no module named torch: install it")
    lines = (kernels / f"with_{name}.py").read_text().splitlines()
    line = 1 + next(i for i, text in enumerate(lines) if "import torch" in text)
    assert source[0] == [str(kernels / f"with_{name}.py"), line]
