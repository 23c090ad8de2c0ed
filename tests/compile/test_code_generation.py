"""Whatever LLVM or the linker refuses, prints or dies of is a failure with its place."""

import pytest

from tests.compile.building import Outcomes, build, line_of, pointer, request

pytestmark = pytest.mark.compile

HALF = (pointer("x", "f16", 8), pointer("out", "f16", 8))
INTS = (pointer("out", "i32"),)


def intrinsic(name):
    dtype = name.rpartition(".")[2]
    operands = (pointer("x", dtype, 8), pointer("out", dtype, 8))
    return request("refused:intrinsic", *operands, constexpr={"intrinsic": name})


def definition(kernel):
    """Where FlyDSL says that a kernel, and what it builds without a line of its own, is from."""
    file, line = line_of("refused", f"def {kernel}(")
    return file, line - 1


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    names = (
        *("llvm.tan.f32", "llvm.amdgcn.tanh.f32", "llvm.nothing.f32", "llvm.canonicalize.f32"),
        *("llvm.cos.f64", "llvm.tan.bf16"),
    )
    return build(
        {
            "matrix": request("refused:cdna_matrix", *HALF),
            "matrix on RDNA": request("refused:cdna_matrix", *HALF, target="gfx1100"),
            "little LDS": request("refused:large_lds", *INTS, constexpr={"size": 64}),
            "much LDS": request("refused:large_lds", *INTS, constexpr={"size": 40_000}),
            "much LDS on gfx950": request(
                "refused:large_lds", *INTS, constexpr={"size": 40_000}, target="gfx950"
            ),
            "undefined": request("refused:undefined_symbol", *INTS),
            "large block": request("refused:large_block", *INTS),
            "prints": request("refused:prints_errors", *INTS),
            **{name: intrinsic(name) for name in names},
        }
    )


def test_an_abort_of_llvm_is_reported_with_its_reason_and_line(outcomes) -> None:
    assert outcomes.built("matrix")
    failed = outcomes.failed("matrix on RDNA")
    assert (failed.kind, failed.stage) == ("died", "code-object")
    assert failed.message.startswith("the worker died (SIGABRT)")
    assert failed.message.endswith(
        ": LLVM ERROR: Cannot select: intrinsic %llvm.amdgcn.mfma.f32.16x16x16f16"
    )
    assert failed.source[0] == line_of("refused", "fx.rocdl.mfma_f32_16x16x16f16(")
    assert failed.request.label() == "cdna_matrix() for gfx1100"


def test_an_abort_of_llvm_is_reported_without_its_dump(outcomes) -> None:
    failed = outcomes.failed("llvm.cos.f64")
    first, *more = failed.message.splitlines()
    assert "LLVM ERROR: Cannot select: " in first
    assert "f64 = fcos" in first
    assert more == ["In function: intrinsic_kernel_0"]
    assert failed.source[0] == definition("intrinsic_kernel")


def test_an_unreachable_place_in_llvm_is_a_failure(outcomes) -> None:
    failed = outcomes.failed("llvm.tan.bf16")
    assert (failed.kind, failed.stage) == ("died", "code-object")
    assert "Can't create an unknown libcall!" in failed.message
    assert failed.source[0] == definition("intrinsic_kernel")


def test_an_error_on_stderr_fails_although_llvm_went_on(outcomes) -> None:
    failed = outcomes.failed("llvm.tan.f32")
    assert (failed.kind, failed.stage) == ("failed", "code-object")
    assert failed.message == "LLVM reported: error: no libcall available for ftan"
    assert failed.source[0] == definition("intrinsic_kernel")


def test_a_missing_target_feature_is_named(outcomes) -> None:
    failed = outcomes.failed("llvm.amdgcn.tanh.f32")
    assert failed.stage == "code-object"
    assert "llvm.amdgcn.tanh requires target feature 'tanh-insts'" in failed.message
    assert failed.source[0] == definition("intrinsic_kernel")


def test_an_unknown_intrinsic_is_named(outcomes) -> None:
    failed = outcomes.failed("llvm.nothing.f32")
    assert failed.message == 'could not find LLVM intrinsic: "llvm.nothing.f32"'
    assert failed.source[0] == definition("intrinsic_kernel")


def test_an_intrinsic_that_the_backend_knows_is_built(outcomes) -> None:
    assert outcomes.built("llvm.canonicalize.f32")


def test_too_much_lds_fails_at_the_kernel(outcomes) -> None:
    assert outcomes.built("little LDS").specialisation.kernels[0].resources.lds == 64 * 4
    assert outcomes.built("much LDS on gfx950").specialisation.kernels[0].resources.lds == 160_000
    failed = outcomes.failed("much LDS")
    assert "local memory (160000) exceeds limit (65536)" in failed.message
    assert failed.source[0] == definition("large_kernel")


def test_an_undefined_symbol_fails_at_its_call(outcomes) -> None:
    failed = outcomes.failed("undefined")
    assert failed.stage == "code-object"
    assert failed.message.startswith("nothing defines nobody_defines_this")
    assert failed.source[0] == line_of("refused", "missing(lane)")


def test_a_workgroup_that_no_hardware_has_fails(outcomes) -> None:
    failed = outcomes.failed("large block")
    assert "4096 workitems in a workgroup; the hardware has at most 1024" in failed.message


def test_what_the_author_prints_is_no_error_of_the_compiler(outcomes) -> None:
    assert outcomes.built("prints")
