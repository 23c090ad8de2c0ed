"""Wrappers, partials, methods, nested factories, tuned kernels and captured code, as documented."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from flyc_cli.builder.build import build, compile_planned, plan
from flyc_cli.builder.failures import BuildError, IncompleteError
from flyc_cli.builder.supervisor import Built
from runtime_loader import load
from runtime_loader.signature import PointerForm, ScalarForm, StreamForm, TensorForm
from runtime_loader.target import Target

pytestmark = pytest.mark.compile

DOCS = Path(__file__).parents[2] / "docs"
POINTER = {"pointer": "f32"}
SCALE = {"x": POINTER, "factor": "f32", "n": "i32", "stream": "stream"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("examples")
    for module in ("styles.py", "operators.py"):
        shutil.copy(DOCS / "examples" / module, directory)
    (directory / "extra.py").write_text(EXTRA)
    return directory


def documented(directory: Path, name: str) -> Path:
    """The one manifest of the reference with that name, as a file beside its kernels."""
    blocks = [p.partition("```")[0] for p in (DOCS / "manifest.md").read_text().split("```yaml\n")]
    (text,) = [block for block in blocks if f"\nname: {name}\n" in block]
    path = directory / f"{name}.yaml"
    path.write_text(text)
    return path


def written(directory: Path, *kernels: Mapping[str, Any], targets: tuple[str, ...] = ()) -> Path:
    path = directory / "manifest.yaml"
    names = [{"name": f"k{i}", **kernel} for i, kernel in enumerate(kernels)]
    top = {"flyc": 1, "name": "m", "targets": list(targets) or ["gfx942"], "kernels": names}
    path.write_text(yaml.safe_dump(top, sort_keys=False))
    return path


def compiled(path: Path) -> dict[str, list[Built]]:
    """What the manifest becomes for gfx942, by kernel."""
    found: dict[str, list[Built]] = {}
    for built in compile_planned(plan(path, targets=[Target("gfx942")]), jobs=2).built:
        found.setdefault(built.request.kernel, []).append(built)
    return found


@pytest.fixture(scope="module")
def styles(directory: Path) -> dict[str, list[Built]]:
    """The example of styles for gfx942, through the file that is left when one tuning fails."""
    return compiled(documented(directory, "styles"))


def params(built: list[Built]) -> list[dict[str, Any]]:
    return [b.specialisation.params for b in built]


def block_of(built: Built) -> Any:
    return built.specialisation.kernels[0].resources.workgroup[0]


def test_partials_and_wrappers(styles: dict[str, list[Built]]) -> None:
    assert params(styles["scale"]) == [{"block": 256}]
    assert params(styles["hinted"]) == [{"block": 64}, {"block": 128}]
    assert [b.specialisation.hints for b in styles["hinted"]] == [{"waves_per_eu": 2}] * 2
    assert params(styles["compiled"]) == [{"block": 64}]
    assert styles["compiled"][0].specialisation.hints == {"fast_fp_math": True}
    assert params(styles["every_block"]) == [{"block": 64}, {"block": 128}]
    for name in ("scale", "hinted", "compiled", "every_block"):
        for built in styles[name]:
            assert built.specialisation.launcher == "styles:scale"
            assert built.specialisation.signature == (
                PointerForm("x", "f32", 4),
                ScalarForm("factor", "f32"),
                ScalarForm("n", "i32"),
                StreamForm("stream"),
            )


def test_methods_and_nested_factories(styles: dict[str, list[Built]]) -> None:
    (method,) = styles["shift3"]
    assert method.specialisation.signature == (PointerForm("x", "f32", 4), StreamForm("stream"))
    for name in ("shift.launch", "shift.both.down"):
        assert params(styles[name]) == [
            {"distance": 1, "block": 64},
            {"distance": 2, "block": 64},
        ]
    objects = [b.specialisation.code_object for n in styles if "shift." in n for b in styles[n]]
    assert len(set(objects)) == 4


def test_every_configuration_of_a_tuned_kernel(styles: dict[str, list[Built]]) -> None:
    assert params(styles["square"]) == [{"block": 64}, {"block": 256, "waves_per_eu": 2}]
    assert styles["square"][1].specialisation.hints == {"waves_per_eu": 2}


def offline_config(n: int, units: int = 304, **config: int) -> str:
    """What `flydsl.autotune` writes for one call of a tuner with the key `n`."""
    device = {"name": "AMD Instinct MI300X", "arch": "gfx942", "compute_units": units}
    identity = {"name": "square", "key": {"n": n}, "device": device}
    return json.dumps({"version": 1, "identity": identity, "config": config})


@pytest.fixture(scope="module")
def square(directory: Path) -> Path:
    """A bundle of a tuned kernel: one configuration fails, and two were chosen."""
    (directory / "square-a.json").write_text(offline_config(64, block=64))
    (directory / "square-b.json").write_text(offline_config(4096, block=256, waves_per_eu=2))
    kernel = {"name": "square", "launcher": "operators:square", "tuned": "square-*.json"}
    path = written(directory, {**kernel, "args": {"x": POINTER, "n": "i32"}})
    with pytest.raises(IncompleteError) as caught:
        build(path, directory / "out", jobs=2)
    assert "square(block=4096) for gfx942 failed at stage trace" in str(caught.value)
    assert "no workgroup has 4096 work items" in str(caught.value)
    assert "1 of 3 specialisations failed" in str(caught.value)
    return caught.value.written.path


def test_a_configuration_that_does_not_compile_fails_alone(square: Path) -> None:
    bundle = load(square, verify="open")
    assert {spec.params["block"] for spec in bundle.specialisations("square")} == {64, 256}


def test_what_tuning_chose_is_kept(square: Path) -> None:
    table = load(square).table("square")
    assert table.keys == ("n", "units")
    found = [table.find_or_raise([Target("gfx942")], n=n, units=304).params for n in (64, 4096)]
    assert found == [{"block": 64}, {"block": 256, "waves_per_eu": 2}]
    assert table.find([Target("gfx942")], n=64, units=38) is None


def test_captured_code(directory: Path) -> None:
    found = compiled(documented(directory, "operators"))
    assert sorted(found) == [
        "double.clear",
        "double.double",
        "double_on_few_units",
        "double_some",
    ]
    (double,) = found["double.double"]
    assert double.specialisation.signature == (
        TensorForm("x", "f32", (-1,), (1,), 4),
        TensorForm("out", "f32", (512,), (1,), 4),
        ScalarForm("n", "i32"),
        StreamForm("stream"),
    )
    assert double.specialisation.launcher == "operators:compile_double.<locals>.double"
    assert "operators:clear" in found["double.clear"][0].specialisation.launcher
    (few,) = found["double_on_few_units"]
    assert few.specialisation.signature[0] == TensorForm("x", "bf16", (-1,), (1,), 2)
    # 512 elements are few for 304 units and many for 4; 65,536 are many for both.
    widths = [block_of(b) for b in (double, few, found["double_some"][0])]
    assert widths == [64, 256, 256]


EXTRA = """
import enum
import flydsl.compiler as flyc
import flydsl.expr as fx
import torch


class Mode(enum.Enum):
    UP = 1
    DOWN = 2


@flyc.kernel
def move_kernel(x: fx.Tensor, by: fx.Constexpr[int]):
    x[fx.thread_idx.x] = x[fx.thread_idx.x] + x[0]


@flyc.jit
def move(x: fx.Tensor, mode: fx.Constexpr, dtype: fx.Constexpr, by: fx.Constexpr[int]):
    move_kernel(x, by).launch(grid=(by, 1, 1), block=(64, 1, 1))


def make(width):
    @flyc.kernel
    def kernel(x: fx.Tensor):
        x[fx.thread_idx.x] = x[width]

    @flyc.jit
    def launch(x: fx.Tensor):
        kernel(x).launch(grid=(1, 1, 1), block=(64, 1, 1))

    return launch


hidden = {"width": 1}


def make_hidden():
    width = {"width": hidden["width"]}
    hidden["width"] += 1

    @flyc.kernel
    def kernel(x: fx.Tensor):
        x[fx.thread_idx.x] = x[width["width"]]

    @flyc.jit
    def launch(x: fx.Tensor):
        kernel(x).launch(grid=(1, 1, 1), block=(64, 1, 1))

    return launch


def make_other(width):
    @flyc.kernel
    def kernel(x: fx.Tensor):
        x[fx.thread_idx.x] = x[width] + x[0]

    @flyc.jit
    def launch(x: fx.Tensor):
        kernel(x).launch(grid=(1, 1, 1), block=(64, 1, 1))

    return launch


def mixes(x):
    move(x, None, None, 1)
    make(1)(x)
    make_other(1)(x)
    make_other(2)(x)


def compares(x):
    if torch.allclose(x, x + 1):
        make(1)(x)


def moves(x, by):
    move(x, Mode.UP, fx.BFloat16, by)
    move(x, Mode.DOWN, torch.float32, by + 1)
    move(x, Mode.DOWN, torch.float32, by + 1)


def makes(x):
    make(1)(x)
    make(2)(x)
    make(2)(x)


def hides(x):
    make_hidden()(x)
    make_hidden()(x)


def nothing(x):
    return x


def reads(x):
    if x[0].item():
        move(x, None, None, 1)


def own_tensors():
    x = torch.zeros(8, 64, device="cuda", dtype=torch.float16)
    move(flyc.from_torch_tensor(x, assumed_align=16).mark_shape_dynamic(0, 8), None, None, 1)


def asks(x):
    torch.cuda.get_device_properties(0).clock_rate


def occupies(x):
    flyc.compile(make(1), x).max_blocks_per_cu()


def touches(x):
    return move(x.view(-1), None, None, 1)


def fails(x):
    raise RuntimeError("not for this device")
"""
TENSOR = {"dtype": "f32", "shape": [64]}


def test_captured_values_tell_specialisations_apart(directory: Path) -> None:
    found = compiled(
        written(
            directory,
            {"capture": "extra:moves", "kwargs": {"by": 4}, "args": {"x": TENSOR}},
            {"capture": "extra:makes", "args": {"x": TENSOR}},
            {"capture": "extra:own_tensors"},
            {"capture": "extra:mixes", "args": {"x": TENSOR}},
        )
    )
    assert params(found["k0"]) == [
        {"by": 4, "mode": "UP", "dtype": "bf16"},
        {"by": 4, "mode": "DOWN", "dtype": "float32", "move.by": 5},
    ]
    assert params(found["k1"]) == [{"width": 1}, {"width": 2}]
    assert [name for name in found if name.startswith("k3")] == [
        "k3.move",
        "k3.make.launch",
        "k3.make_other.launch",
    ]
    assert params(found["k3.make.launch"]) == [{}]
    assert params(found["k3.make_other.launch"]) == [{"width": 1}, {"width": 2}]
    (own,) = found["k2"]
    assert own.specialisation.signature[0] == TensorForm("x", "f16", (-8, 64), (64, 1), 16)


WRONG = [
    ({"capture": "extra:nothing"}, "extra:nothing reached no launcher"),
    ({"capture": "extra:hides"}, "a caller could not tell them apart"),
    ({"capture": "extra:reads"}, "tensors: cpu"),
    ({"capture": "extra:compares"}, "tensors: cpu"),
    ({"capture": "extra:asks"}, "the device's clock_rate, which is not described"),
    ({"capture": "extra:occupies"}, "max_blocks_per_cu"),
    ({"capture": "extra:fails"}, "RuntimeError: not for this device"),
    ({"capture": "extra:Mode.UP"}, "extra:Mode.UP is Mode, not a function"),
    ({"capture": "extra:missing"}, "extra has no missing"),
    ({"launcher": "extra:nothing"}, "a function that returns a launcher is a factory"),
    ({"launcher": "extra:touches"}, "list it as a capture"),
    ({"factory": "extra:make", "kwargs": {"width": 1, "depth": 2}}, "no keyword argument depth"),
    ({"factory": "extra:make", "kwargs": {"width": 1}, "select": "x.y"}, "it has no 'x.y'"),
]


@pytest.fixture(scope="module")
def messages(directory: Path) -> dict[str, str]:
    """What is said of each kernel of WRONG."""
    path = written(directory, *({**kernel, "args": {"x": TENSOR}} for kernel, _ in WRONG))
    with pytest.raises(BuildError) as caught:
        compile_planned(plan(path), jobs=2)
    assert len(caught.value.failures) == len(WRONG)
    return {failed.entry: failed.message for failed in caught.value.failures}


@pytest.mark.parametrize("number", range(len(WRONG)), ids=[message for _, message in WRONG])
def test_what_is_wrong_is_said(messages: dict[str, str], number: int) -> None:
    assert WRONG[number][1] in messages[f"k{number}"]
