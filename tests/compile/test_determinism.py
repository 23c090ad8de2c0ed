"""The same input becomes the same bytes, whatever surrounds the build."""

import json
import shutil

import pytest

from runtime_loader.signature import StructForm
from tests.compile.building import KERNELS, Outcomes, build, pointer, request, scalar, tensor

pytestmark = pytest.mark.compile

OUT = pointer("out", "i32")


def requests(kernels=KERNELS):
    inner = StructForm("inner", (scalar("offset", "i64"), scalar("flag", "i1")))
    struct = StructForm("s", (scalar("count", "i8"), inner, scalar("scale", "f32")))
    x = tensor("x", (-1, -8), (-8, 1))
    return {
        "tan": request(
            "maths:apply", pointer("x"), pointer("out"),
            constexpr={"function": "tan", "arity": 1}, kernels=kernels,
        ),
        "control flow": request(
            "launchers:loop_in_if_in_loop", OUT, scalar("n"), scalar("m"), kernels=kernels
        ),
        "tensor": request("signatures:one_tensor", x, OUT, target="gfx1201", kernels=kernels),
        "struct": request("signatures:nested_struct", struct, OUT, kernels=kernels),
        "LDS": request("refused:large_lds", OUT, constexpr={"size": 128}, kernels=kernels),
        "waves": request("warps:exchange", OUT, target="gfx1250", kernels=kernels),
    }  # fmt: skip


def contents(outcomes: Outcomes) -> dict[str, tuple[str, bytes]]:
    """What each specialisation puts into a bundle."""
    return {
        key: (json.dumps(built.specialisation.to_json(), sort_keys=True), built.code_object)
        for key in requests()
        for built in [outcomes.built(key)]
    }


@pytest.fixture(scope="module")
def reference():
    return contents(build(requests(), jobs=1))


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_whatever_the_hash_seed_and_the_number_of_jobs(reference, monkeypatch, seed) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", seed)
    assert contents(build(requests(), jobs=2)) == reference


def test_with_and_without_captured_stages(reference) -> None:
    outcomes = build(requests(), capture=True)
    assert contents(outcomes) == reference
    for key in requests():
        names = [name for name, _ in outcomes.built(key).stages]
        assert len(set(names)) == len(names)
        assert (names[0], names[-2:]) == ("traced", ["llvm-ir", "isa"])


def test_from_another_checkout(reference, tmp_path) -> None:
    copy = tmp_path / "some where" / "else"
    shutil.copytree(KERNELS, copy)
    assert contents(build(requests(copy))) == reference


def test_with_the_real_torch(reference, tmp_path) -> None:
    for module in KERNELS.glob("*.py"):
        first, doc, rest = module.read_text().partition('"""\n')
        (tmp_path / module.name).write_text(f"{first}{doc}import torch\n{rest}")
    assert contents(build(requests(tmp_path))) == reference


def test_whatever_the_shell_has_set(reference, monkeypatch, tmp_path) -> None:
    settings = {
        "ARCH": "gfx90a",
        "COMPILE_ONLY": "0",
        "FLYDSL_COMPILE_LLVM_DIR": "/nowhere",
        "FLYDSL_COMPILE_OPT_LEVEL": "0",
        "FLYDSL_DEBUG_ENABLE_DEBUG_INFO": "1",
        "FLYDSL_DEBUG_LOG_LEVEL": "nonsense",
        "FLYDSL_DEBUG_PRINT_AFTER_ALL": "1",
        "FLYDSL_DUMP_IR": "1",
        "FLYDSL_GPU_ARCH": "gfx1100",
        "FLYDSL_KTRACE_ENABLE": "1",
        "FLYDSL_RUNTIME_CACHE_DIR": str(tmp_path / "cache"),
        "FLYDSL_RUNTIME_RUN_ONLY": "1",
        "HSA_OVERRIDE_GFX_VERSION": "11.0.0",
        "LLVM_GFX1250_ANY_XNACK_CODEGEN": "1",
        "LLD_VERSION": "somebody's",
        "ROCM_PATH": "/nowhere",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    assert contents(build(requests())) == reference
    assert list(tmp_path.iterdir()) == []
