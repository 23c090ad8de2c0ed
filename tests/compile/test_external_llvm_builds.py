"""Builds whose last stage runs in the mlir-opt of another LLVM: Debian's newest, if it is there.

Set FLYC_TEST_LLVM to an installation to use that one; with FLYC_REQUIRE_LLVM set (as CI does),
having none is a failure.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flyc_cli import Kernel, Manifest, build
from flyc_cli.builder.failures import BuildError
from runtime_loader.bundle_file import BundleFile
from runtime_loader.catalogue import Catalogue

pytestmark = pytest.mark.compile

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
TARGETS = ("gfx942", "gfx1201")
AXPY = {"x": {"pointer": "f32"}, "y": {"pointer": "f32"}, "a": "f32", "n": "i32"}
FILL = {"out": {"pointer": "f32"}, "value": "f32", "n": "i32"}
# LLVM 19 does not know the range that a known block size gives to workitem numbers.
KNOWN_SIZE = "\n        attributes {known_block_size = array<i32: 256, 1, 1>}"


@pytest.fixture(scope="module")
def llvm() -> Path:
    named = os.environ.get("FLYC_TEST_LLVM")
    found = [Path(named)] if named else sorted(Path("/usr/lib").glob("llvm-*"))
    usable = [path for path in found if (path / "bin" / "mlir-opt").is_file()]
    if not usable:
        reason = "no LLVM with MLIR here (apt-get install mlir-19-tools)"
        assert "FLYC_REQUIRE_LLVM" not in os.environ, reason
        pytest.skip(reason)
    return max(usable, key=lambda path: int(path.name.partition("-")[2] or 0))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    text = (EXAMPLES / "axpy.mlir").read_text()
    assert KNOWN_SIZE in text
    (tmp_path / "axpy.mlir").write_text(text.replace(KNOWN_SIZE, ""))
    (tmp_path / "fills.py").write_text((EXAMPLES / "fills.py").read_text())
    return tmp_path


def test_what_it_accepts_is_built_by_it(directory: Path, llvm: Path) -> None:
    kernel = Kernel("axpy", mlir="axpy.mlir", args=AXPY)
    manifest = Manifest(
        "other", kernels=[kernel], targets=TARGETS, toolchain={"llvm": os.fspath(llvm)}
    )
    other = BundleFile.open(
        build(manifest, directory / "out", base=directory, stages=True).path, verify="open"
    )
    plain = Manifest("plain", kernels=[kernel], targets=TARGETS)
    ours = BundleFile.open(build(plain, directory / "out", base=directory).path)
    option = BundleFile.open(build(plain, directory / "out", base=directory, llvm=llvm).path)

    toolkit = other.meta["provenance"]["toolkit"]
    assert toolkit["llvm"].startswith("LLVM ")
    assert len(toolkit["mlir-opt_sha256"]) == 64
    assert "llvm" not in ours.meta["provenance"]["toolkit"]
    for target in TARGETS:
        found = Catalogue(other).specialisation("axpy", {}, target)
        expected = Catalogue(ours).specialisation("axpy", {}, target)
        again = Catalogue(option).specialisation("axpy", {}, target)
        assert found is not None
        assert expected is not None
        assert again is not None
        assert found[0].plan == expected[0].plan
        assert [k.kernarg.params for k in found[0].kernels] == [
            k.kernarg.params for k in expected[0].kernels
        ]
        assert found[0].code_object != expected[0].code_object
        assert found[0].code_object == again[0].code_object
        assert f"gfx{target[3:]}" in str(other.stage(found[0].key(), "isa"))


def test_what_it_refuses_is_reported_in_its_own_words(directory: Path, llvm: Path) -> None:
    kernel = Kernel("fill", launcher="fills:fill", constexpr={"block": 64}, args=FILL)
    manifest = Manifest("refused", kernels=[kernel], targets=["gfx942"])
    try:
        build(manifest, directory / "out", base=directory, llvm=llvm)
    except BuildError as error:
        (failed,) = error.failures
    else:
        pytest.skip(f"{llvm} is new enough to compile it")
    assert failed.stage == "code-object"
    assert "does not compile the module:\nline " in failed.message
    assert "range <i32, 0, 64>" in failed.message
    kept = Path(failed.message.partition("is kept in ")[2].partition(";")[0])
    assert "llvm.func @fill_kernel_0" in kept.read_text()
    kept.unlink()


def test_a_directory_without_it(directory: Path) -> None:
    kernel = Kernel("axpy", mlir="axpy.mlir", args=AXPY)
    manifest = Manifest("none", kernels=[kernel], targets=["gfx942"])
    with pytest.raises(Exception, match="is not an LLVM installation with MLIR") as caught:
        build(manifest, directory / "out", base=directory, llvm=directory)
    assert type(caught.value).__name__ == "ToolkitError"
