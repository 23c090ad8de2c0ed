"""Which place of the source a message of the code generator is about."""

import pytest

from mlir_passes.places import Places, SourceLine

FIRST, SECOND, TAN, MFMA, CALL = ((SourceLine("kernels.py", line),) for line in (3, 9, 12, 15, 18))
PLACES = Places(
    kernels={"first_0": FIRST, "second_1": SECOND},
    uses={
        "llvm.tan.f32": TAN,
        "llvm.amdgcn.mfma.f32.16x16x16f16": MFMA,
        "llvm.ldexp": SECOND,
        "missing": CALL,
    },
)


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ("error: no libcall available for ftan", TAN),
        ("error: no libcall available for fldexp", SECOND),
        ("LLVM ERROR: Cannot select: t30: f64 = ftan # D:1 t44", TAN),
        ("LLVM ERROR: Cannot select: intrinsic %llvm.amdgcn.mfma.f32.16x16x16f16", MFMA),
        ("in function @first_0 void (): llvm.tan requires target feature 'x'", TAN),
        ("local memory (160000) exceeds limit (65536) in function 'second_1'", SECOND),
        ("undefined: missing", CALL),
        ("undefined: missing_too", ()),
        ("error: no libcall available for ftanh", ()),
        ("", ()),
    ],
)
def test_the_operation_or_else_the_kernel(message, place) -> None:
    assert PLACES.of(message) == place


def test_what_names_nothing_is_about_the_only_kernel() -> None:
    assert Places(kernels={"only_0": FIRST}).of("error: out of registers") == FIRST


def test_places_survive_the_way_between_processes() -> None:
    assert Places.from_json(PLACES.to_json()) == PLACES
