"""Another LLVM as a toolchain: how installations are found, and every way that its tool fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlir_passes.external_llvm import ExternalLlvmError, find_external_llvm, run_external
from mlir_passes.toolkit import ToolkitError

PASSES = "builtin.module(gpu-module-to-binary)"
VERSION = "--version) echo 'LLVM (http://llvm.org/):'; echo '  LLVM version 23.1.0-rc2';;"


def installation(directory: Path, script: str) -> Path:
    """An LLVM whose mlir-opt is a shell script; it gets FILE --pass-pipeline=... -o FILE ..."""
    tool = directory / "bin" / "mlir-opt"
    tool.parent.mkdir(parents=True)
    tool.write_text(f'#!/bin/sh\ncase "$1" in\n{VERSION}\n*) {script};;\nesac\n')
    tool.chmod(0o755)
    return directory


def test_an_installation_is_known_by_version_and_bytes(tmp_path: Path) -> None:
    one = find_external_llvm(installation(tmp_path / "one", 'cp "$1" "$4"'))
    same = find_external_llvm(installation(tmp_path / "two", 'cp "$1" "$4"'))
    other = find_external_llvm(installation(tmp_path / "three", "exit 1"))
    assert one.version == "23.1.0-rc2"
    assert one.identity["llvm"] == "LLVM 23.1.0-rc2 (mlir-opt)"
    assert one.identity == same.identity
    assert one.identity["mlir-opt_sha256"] != other.identity["mlir-opt_sha256"]


def test_the_tool_gets_module_passes_and_options(tmp_path: Path) -> None:
    llvm = find_external_llvm(installation(tmp_path, '(cat "$1"; shift; echo "$@") > "$4"'))
    options = {"enable-post-misched": False, "amdgpu-limit": 3, "mcpu": "x"}
    after = run_external(llvm, "module {}\n", PASSES, options)
    assert after.startswith("module {}\n--pass-pipeline=builtin.module(gpu-module-to-binary) -o ")
    assert after.endswith("--enable-post-misched=false --amdgpu-limit=3 --mcpu=x\n")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo \"$1:7:3: error: expected ':'\" >&2; exit 1", "line 7:3: error: expected ':'"),
        ('cp "$1" "$4"; echo "error: no libcall available for ftan" >&2', "no libcall available"),
        ("exit 3", "it ended with status 3"),
        ("exit 0", "it ended with status 0"),
        ("kill -ABRT $$", "it ended with status -6"),
    ],
)
def test_every_failure_keeps_the_module(tmp_path: Path, script: str, message: str) -> None:
    llvm = find_external_llvm(installation(tmp_path, script))
    with pytest.raises(ExternalLlvmError) as caught:
        run_external(llvm, f"module {{}} // {script}\n", PASSES, {})
    said = str(caught.value)
    assert said.startswith("LLVM 23.1.0-rc2 does not compile the module:\n")
    assert message in said
    assert f"is kept in {caught.value.kept}" in said
    assert caught.value.kept.read_text() == f"module {{}} // {script}\n"
    caught.value.kept.unlink()


def test_what_is_no_installation(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="is not an LLVM installation with MLIR"):
        find_external_llvm(tmp_path)
    tool = tmp_path / "bin" / "mlir-opt"
    tool.parent.mkdir()
    tool.write_text("not a program")
    with pytest.raises(ToolkitError, match="is not an LLVM installation with MLIR"):
        find_external_llvm(tmp_path)
    tool.chmod(0o755)
    with pytest.raises(ToolkitError, match="mlir-opt does not run"):
        find_external_llvm(tmp_path)
    tool.write_text("#!/bin/sh\necho hello\n")
    with pytest.raises(ToolkitError, match="does not say its LLVM version"):
        find_external_llvm(tmp_path)
