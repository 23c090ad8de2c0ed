"""The values of the math functions that FlyDSL drops silently, over their whole domain."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flyc_cli.builder.supervisor import Built, compile_all
from mlir_passes.toolkit import assemble_toolkit
from tests.compile.building import pointer, request, scalar
from tests.hip_device.interpreter.harness import Harness, fresh
from tests.hip_device.interpreter.targets import PROCESSORS

pytestmark = [pytest.mark.compile, pytest.mark.device]

# The error that OpenCL allows, in ulp (OpenCL C specification, "Relative Error as ULPs").
_ALLOWED = {
    "tan": 5, "asin": 4, "acos": 4, "atan": 5, "sinh": 4, "cosh": 4, "tanh": 5, "atan2": 6,
}  # fmt: skip
_MODELS: dict[str, Callable[..., np.ndarray]] = {
    "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh,
    "cosh": np.cosh, "tanh": np.tanh, "atan2": np.arctan2,
}  # fmt: skip
_BLOCKS, _LANES = 16, 256


def _domain(function: str, seed: int) -> np.ndarray:
    """Bit patterns of every exponent and both signs, a dense part around one, and the edges."""
    count = _BLOCKS * _LANES
    random = np.random.default_rng(seed)
    bits = random.integers(0, 1 << 32, count, dtype=np.uint32)
    values = bits.view(np.float32).copy()
    if function in ("asin", "acos"):
        # Almost every bit pattern is outside their domain.
        values[: count // 2] = random.uniform(-1, 1, count // 2)
    else:
        values[: count // 2] = random.standard_normal(count // 2) * 8
    edges = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3.4e38, 88.0, 89.5]
    values[: len(edges)] = random.permutation(np.array(edges, np.float32))
    return values


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Built]:
    requests = {
        (function, target): request(
            "math_functions:apply",
            *[pointer(name) for name in ("x", "y", "out")],
            scalar("blocks"),
            target=target,
            constexpr={"function": function, "arity": 2 if function == "atan2" else 1},
            kernels=Path(__file__).parent / "kernels",
        )
        for function in _ALLOWED
        for target in PROCESSORS
    }
    toolkit = assemble_toolkit(tmp_path_factory.mktemp("toolkit"))
    outcomes = compile_all(list(requests.values()), toolkit=toolkit, jobs=os.cpu_count() or 1)
    failed = [outcome for outcome in outcomes if not isinstance(outcome, Built)]
    assert not failed, failed
    return {
        key: outcome
        for key, outcome in zip(requests, outcomes, strict=True)
        if isinstance(outcome, Built)
    }


@pytest.mark.parametrize("target", PROCESSORS)
@pytest.mark.parametrize("function", _ALLOWED)
def test_values(built: dict[tuple[str, str], Built], function: str, target: str) -> None:
    one = built[function, target]
    x, y = _domain(function, 1), _domain(function, 2)
    out = fresh(x.shape, np.float32)
    harness = Harness(one.specialisation, one.code_object)
    harness.launch({"x": x, "y": y, "out": out, "blocks": _BLOCKS})
    operands = (x, y) if function == "atan2" else (x,)
    with np.errstate(all="ignore"):
        exact = _MODELS[function](*(operand.astype(np.float64) for operand in operands))
        expected = exact.astype(np.float32)
    special = ~np.isfinite(expected)
    # Near its largest values a result may round to infinity within the error.
    rounded_up = np.isinf(out) & (np.abs(exact) > 3.3e38)
    np.testing.assert_array_equal(out[special], expected[special])
    with np.errstate(all="ignore"):
        error = np.abs(out.astype(np.float64) - exact) / np.spacing(np.abs(expected))
    regular = ~special & ~rounded_up
    worst = np.argmax(np.where(regular, error, 0))
    assert error[worst] <= _ALLOWED[function], (operands[0][worst], out[worst], exact[worst])
