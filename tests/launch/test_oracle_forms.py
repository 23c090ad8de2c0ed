"""Every argument form in combination: a manifest's launches are those of FlyDSL's own calls.

Generated launchers take some forms each. FlyDSL's side is a real call of `flyc.compile`'s result:
its own argument conversion, tracing, compilation and packing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flyc_cli.builder.supervisor import Built, compile_all
from flyc_cli.manifest import expand, load_manifest
from mlir_passes.toolkit import assemble_toolkit
from runtime_loader import hip
from runtime_loader.code_object import read_code_object
from runtime_loader.element_types import ELEMENT_TYPES
from runtime_loader.errors import ArgumentError
from runtime_loader.kernel import Kernel
from runtime_loader.loader import load
from runtime_loader.signature import StructForm, TensorForm
from tests.hip_device.device import HipTestDevice, LaunchRecord
from tests.launch.flydsl_calls import FlyDslCalls
from tests.launch.form_matrix import ROWS, STRUCTS, Row, example_of
from tests.launch.oracle_arguments import FakeTensor, argument
from tests.launch.oracle_bench import bundle_of

pytestmark = [pytest.mark.compile, pytest.mark.device]

TARGET = "gfx942"
_FORMS_EACH = 7
_SHUFFLES = 2


def _combinations() -> list[tuple[Row, ...]]:
    """Every row in `_SHUFFLES` launchers, each time at another place among others."""
    combinations = []
    for seed in range(_SHUFFLES):
        rows = random.Random(seed).sample(ROWS, len(ROWS))
        combinations += [
            tuple(rows[at : at + _FORMS_EACH]) for at in range(0, len(rows), _FORMS_EACH)
        ]
    return combinations


COMBINATIONS = _combinations()


def _source() -> str:
    lines = ["import flydsl.compiler as flyc", "import flydsl.expr as fx", STRUCTS]
    for number, rows in enumerate(COMBINATIONS):
        names = ", ".join(f"a{place}" for place in range(len(rows)))
        parameters = ", ".join(
            f"a{place}: {row.annotation}" if row.annotation else f"a{place}"
            for place, row in enumerate(rows)
        )
        lines += [
            "@flyc.kernel",
            f"def kernel_{number}({parameters}, out: fx.Pointer):",
            "    out[fx.Int64(fx.thread_idx.x)] = fx.Int32(1)",
            "@flyc.jit",
            f"def launch_{number}({parameters}, out: fx.Pointer, n: fx.Int32):",
            f"    kernel_{number}({names}, out).launch(grid=(n, 1, 1), block=(64, 1, 1))",
        ]
    return "\n".join(lines)


def _manifest() -> dict[str, Any]:
    kernels = []
    for number, rows in enumerate(COMBINATIONS):
        args = {f"a{place}": row.spec for place, row in enumerate(rows)}
        args |= {"out": {"pointer": "i32"}, "n": "i32"}
        kernels.append(
            {"name": f"launch_{number}", "launcher": f"forms:launch_{number}", "args": args}
        )
    return {"flyc": 1, "name": "forms", "targets": [TARGET], "kernels": kernels}


class Forms:
    """The launchers, built by us into a bundle, and FlyDSL with the same module."""

    def __init__(self, library: Path, directory: Path) -> None:
        toolkit = assemble_toolkit(directory / "toolkit")
        (directory / "forms.py").write_text(_source())
        (directory / "manifest.yaml").write_text(yaml.safe_dump(_manifest()))
        requests = expand(load_manifest(directory / "manifest.yaml"))
        outcomes = compile_all(requests, toolkit=toolkit, jobs=2, capture=True)
        assert not [o.message for o in outcomes if not isinstance(o, Built)]
        self.built = [outcome for outcome in outcomes if isinstance(outcome, Built)]
        with bundle_of(directory / "bundle", self.built) as bundle:
            self.path = bundle.path
        self.flydsl = FlyDslCalls(library, toolkit.directory, directory, "forms", TARGET)
        self.device = HipTestDevice(library)


@pytest.fixture(scope="module")
def forms(hip_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forms]:
    made = Forms(hip_library, tmp_path_factory.mktemp("forms"))
    with made.flydsl:
        yield made
    made.device.reset()


@pytest.fixture
def device(forms: Forms, hip_library: Path, monkeypatch: pytest.MonkeyPatch) -> HipTestDevice:
    monkeypatch.setenv(hip.LIBRARY_VARIABLE, str(hip_library))
    monkeypatch.setattr(hip, "_runtime", None)
    forms.device.configure(TARGET)
    return forms.device


@pytest.mark.parametrize("number", range(len(COMBINATIONS)))
def test_a_manifest_means_what_flydsl_compiles_and_launches(
    number: int, forms: Forms, device: HipTestDevice
) -> None:
    rows, built = COMBINATIONS[number], forms.built[number]
    signature = built.specialisation.signature
    name = f"launch_{number}"

    def written(values: list[Any]) -> dict[str, str]:
        texts = [row.write(form, v) for row, form, v in zip(rows, signature, values, strict=False)]
        out, n = values[len(rows) :]
        texts += [f"flyc.from_c_void_p(fx.Int32, {out})", f"fx.Int32({n})"]
        return {form.name: text for form, text in zip(signature, texts, strict=False)}

    examples = [row.example or example_of(form) for row, form in zip(rows, signature, strict=False)]
    compiled = forms.flydsl.compile(name, written([*examples, 4, 1]))
    types = _types(dict(built.stages)["traced"], name)
    assert types == _types(compiled, name)
    assert len(types) >= len(rows) + 2
    _check_kernarg(built)

    with load(forms.path) as bundle:
        kernel = bundle.kernel(name)

        @settings(max_examples=12, derandomize=True, deadline=None)
        @given(
            st.tuples(*(argument(form) for form in signature[: len(rows)])),
            st.integers(0, 2**62 - 1).map(lambda number: number * 4),
            st.integers(1, 60000),
        )
        def launches(drawn: tuple[Any, ...], out: int, n: int) -> None:
            values = [*(d.value for d in drawn), out, n]
            kernel(*values)
            ours = _plain(device.take_launches())
            assert ours == _plain(forms.flydsl.launches(name, written(values)))

        launches()
        _check_broken_assumptions(kernel, examples)
    assert device.take_launches() == ()


def _types(text: str, launcher: str) -> list[str]:
    """The argument types of a launcher in a traced module."""
    (line,) = (line for line in text.splitlines() if f"func.func @{launcher}(" in line)
    parameters = re.sub(r" loc\([^)]*\)", "", line)
    return re.findall(r"%\w+: (.*?)(?=, %|\) attributes)", parameters)


def _check_kernarg(built: Built) -> None:
    """The bundle's layout is that of the code object's metadata note."""
    note = read_code_object(built.code_object).kernels
    for entry in built.specialisation.kernels:
        assert entry.kernarg == note[entry.symbol].kernarg


def _check_broken_assumptions(kernel: Kernel, examples: list[Any]) -> None:
    """Whatever FlyDSL compiled in and never checks: we refuse to launch on other arguments."""
    signature = kernel.specialisation.signature
    for place, form in enumerate(signature[: len(examples)]):
        for broken in _broken(form, examples[place]):
            values = [*examples[:place], broken, *examples[place + 1 :], 4, 1]
            with pytest.raises(ArgumentError, match=f"argument '{form.name}"):
                kernel(*_launchable(kernel, values))


def _broken(form: Any, example: Any) -> list[Any]:
    if not isinstance(form, TensorForm):
        return [] if isinstance(form, StructForm) or form.slots()[0] == "i1" else ["no number"]
    found: list[Any] = []
    if form.align > 1:
        found.append(replace(example, pointer=example.pointer + form.align // 2))
    for axis, extent in enumerate(form.shape):
        if extent != -1:
            found.append(
                replace(example, shape=_with(example.shape, axis, example.shape[axis] + 1))
            )
    for axis, stride in enumerate(form.strides):
        if stride != -1 and example.shape[axis] > 1:
            strides = _with(example.strides, axis, example.strides[axis] + 1)
            found.append(replace(example, strides=strides))
    return found


def _with(values: tuple[int, ...], axis: int, value: int) -> tuple[int, ...]:
    return (*values[:axis], value, *values[axis + 1 :])


def _launchable(kernel: Kernel, values: list[Any]) -> list[Any]:
    """Give the example tensors the element types that our loader looks at."""
    return [
        replace(value, dtype=f"torch.{ELEMENT_TYPES[form.dtype].torch[0]}")
        if isinstance(value, FakeTensor) and isinstance(form, TensorForm)
        else value
        for form, value in zip(kernel.specialisation.signature, values, strict=False)
    ]


def _plain(records: tuple[LaunchRecord, ...]) -> list[LaunchRecord]:
    return [replace(record, sequence=0, module_id=0) for record in records]
