"""Kernels that come as MLIR or as code objects: built, cross-checked, launched alike."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from flyc_cli import Kernel, Manifest, build
from flyc_cli.builder.failures import BuildError
from flyc_cli.manifest import ManifestError
from runtime_loader.bundle_file import BundleFile
from runtime_loader.catalogue import Catalogue
from runtime_loader.evaluate import Evaluator
from runtime_loader.records import replace
from runtime_loader.specialisation import Specialisation

pytestmark = pytest.mark.compile

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
ARGS = {"x": {"pointer": "f32"}, "y": {"pointer": "f32"}, "a": "f32", "n": "i32"}
LAUNCH = {"kernel": "axpy", "grid": ["(n + 255) // 256"], "block": [256]}


def built(directory: Path, *kernels: Kernel, targets: Any = ("gfx942",)) -> BundleFile:
    manifest = Manifest("raw", kernels=kernels, targets=targets)
    return BundleFile.open(build(manifest, directory / "out", base=directory).path)


def only(file: BundleFile, kernel: str, target: str = "gfx942", **params: Any) -> Specialisation:
    found = Catalogue(file).specialisation(kernel, params, target)
    assert found is not None
    return found[0]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's module, and its code objects for two targets."""
    directory = tmp_path_factory.mktemp("raw")
    (directory / "axpy.mlir").write_text((EXAMPLES / "axpy.mlir").read_text())
    targets = ("gfx942", "gfx1201")
    file = built(directory, Kernel("axpy", mlir="axpy.mlir", args=ARGS), targets=targets)
    for target in targets:
        found = Catalogue(file).specialisation("axpy", {}, target)
        assert found is not None
        code = bytes(file.blob(found[1]))
        assert hashlib.sha256(code).hexdigest() == found[0].code_object
        (directory / f"axpy-{target}.co").write_bytes(code)
    return directory


def launches(spec: Specialisation, n: int) -> Any:
    evaluate = Evaluator(spec.plan, [kernel.kernarg for kernel in spec.kernels])
    return evaluate([4096, 8192, 0x3F800000, n & 0xFFFFFFFF, 7])


def test_a_module_and_its_code_object_launch_alike(directory: Path) -> None:
    files = {target: f"axpy-{target}.co" for target in ("gfx942", "gfx1201")}
    file = built(
        directory,
        Kernel("axpy", mlir="axpy.mlir", args=ARGS),
        Kernel("object", code_object=files, args=ARGS, launch=[LAUNCH]),
        targets=("gfx942", "gfx1201"),
    )
    file.verify()
    for target in ("gfx942", "gfx1201"):
        module, described = only(file, "axpy", target), only(file, "object", target)
        assert module.code_object == described.code_object
        assert module.signature == described.signature
        assert module.launcher == "axpy.mlir"
        assert described.launcher == files[target]
        for n in (1, 255, 256, 257, 10**6, 2**31 - 1):
            assert launches(module, n) == launches(described, n)
    assert file.meta["counts"]["code_objects"] == 2


def test_parameters_name_files_and_stand_in_expressions(directory: Path) -> None:
    kernel = Kernel(
        "object",
        code_object="axpy-$arch.co",
        params={"arch": "gfx942", "per_block": [256, 512]},
        args=ARGS,
        launch=[LAUNCH | {"grid": ["(n + per_block - 1) // $per_block"], "lds": "per_block"}],
    )
    file = built(directory, kernel)
    for per_block in (256, 512):
        (launch,) = launches(only(file, "object", arch="gfx942", per_block=per_block), 1024)
        assert (launch.grid, launch.lds) == ((1024 // per_block, 1, 1), per_block)


def test_hints_reach_the_lowering_of_a_module(directory: Path) -> None:
    options = {"llvm_options": {"amdgpu-early-inline-all": True}, "fast_fp_math": True}
    kernel = Kernel("axpy", mlir="axpy.mlir", args=ARGS, hints={"waves_per_eu": 2, **options})
    manifest = Manifest("hinted", kernels=[kernel], targets=["gfx942"])
    written = build(manifest, directory / "out", base=directory, stages=True)
    file = BundleFile.open(written.path)
    key = only(file, "axpy").key()
    assert "parse" not in file.stage_names(key)
    assert '"amdgpu-waves-per-eu"="2"' in str(file.stage(key, "llvm-ir"))
    assert "flags = {fast" in str(file.stage(key, "rocdl-attach-target"))


def test_the_documented_example(directory: Path) -> None:
    page = (EXAMPLES.parent / "manifest.md").read_text()
    blocks = [part.partition("```")[0] for part in page.split("```yaml\n")]
    (text,) = [block for block in blocks if "name: axpy_object" in block]
    (directory / "axpy.co").write_bytes((directory / "axpy-gfx942.co").read_bytes())
    (directory / "documented.yaml").write_text(text)
    file = BundleFile.open(build(directory / "documented.yaml", directory / "out").path)
    spec = only(file, "axpy_object", per_block=256)
    evaluate = Evaluator(spec.plan, [kernel.kernarg for kernel in spec.kernels])
    (launch,) = evaluate([4096, 1000, 8192, 1000, 0x3F800000, 0])
    assert launch == replace(launches(only(file, "axpy"), 1000)[0], stream=0)


def failures(directory: Path, *kernels: Kernel) -> dict[str, str]:
    """What is said of each kernel, none of which can be built."""
    with pytest.raises(BuildError) as caught:
        built(directory, *kernels)
    assert len(caught.value.failures) == len(kernels)
    return {failed.request.kernel: str(BuildError([failed], 1)) for failed in caught.value.failures}


def test_what_is_wrong_with_a_module(directory: Path) -> None:
    text = (EXAMPLES / "axpy.mlir").read_text()
    number = text[: text.index("scf.if")].count("\n") + 1
    fewer = {name: ARGS[name] for name in ("x", "y", "a")}
    cases: dict[str, tuple[str, dict[str, Any], str]] = {
        "syntax": (
            text.replace("scf.if %inside", "scf.iff %inside"),
            ARGS,
            f"syntax.mlir:{number}\n      scf.iff %inside {{",
        ),
        "kernel": (text.replace("@kernels::@axpy", "@kernels::@axpi"), ARGS, "axpi"),
        "host": (
            text[: text.index("  func.func")] + "}",
            ARGS,
            "host.mlir has 1 gpu.module and 0 host functions",
        ),
        "empty": ("module {}", ARGS, "0 gpu.module and 0 host functions"),
        "binary": ("\0\1", ARGS, "binary.mlir"),
        "fewer": (text, fewer, "the plan takes ('ptr', 'ptr', 'f32', 'i32', 'ptr')"),
        "wider": (
            text,
            {**ARGS, "n": "i64"},
            "the signature gives ('ptr', 'ptr', 'f32', 'i64', 'ptr')",
        ),
    }
    for name, (module, _, _) in cases.items():
        (directory / f"{name}.mlir").write_text(module)
    said = failures(
        directory,
        *(Kernel(name, mlir=f"{name}.mlir", args=args) for name, (_, args, _) in cases.items()),
    )
    for name, (_, _, message) in cases.items():
        assert message in said[name]


def test_what_is_wrong_with_a_code_object(directory: Path) -> None:
    code = (directory / "axpy-gfx942.co").read_bytes()
    (directory / "cut.co").write_bytes(code[:200])
    (directory / "bundle.co").write_bytes(b"__CLANG_OFFLOAD_BUNDLE__" + code)
    (directory / "text.co").write_bytes(b"hello")
    cases: dict[str, tuple[str, dict[str, Any], str]] = {
        "cut": ("cut.co", {}, "the code object is cut short"),
        "bundle": ("bundle.co", {}, "clang-offload-bundler -unbundle"),
        "text": ("text.co", {}, "not a code object: no 64-bit"),
        "target": ("axpy-gfx1201.co", {}, "built for gfx1201 although gfx942 was asked for"),
        "symbol": (
            "axpy-gfx942.co",
            {"kernel": "axpi"},
            "has no kernel axpi; did you mean 'axpy'?; its kernels are axpy",
        ),
        "fewer": (
            "axpy-gfx942.co",
            {"args": ["x", "y", "n"]},
            "axpy takes 4 arguments by its metadata",
        ),
        "size": (
            "axpy-gfx942.co",
            {"args": ["x", "y", "a", "x"]},
            "axpy takes 4 bytes at offset 20 by its metadata; x has 8 bytes",
        ),
    }
    said = failures(
        directory,
        *(
            Kernel(name, code_object=file, args=ARGS, launch=[{**LAUNCH, **launch}])
            for name, (file, launch, _) in cases.items()
        ),
    )
    for name, (_, _, message) in cases.items():
        assert message in said[name]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"code_object": "no.co", "launch": [LAUNCH]}, "code_object: cannot read 'no.co' beside"),
    ({"mlir": "no.mlir"}, "mlir: cannot read 'no.mlir' beside the manifest"),
    ({"code_object": {"gfx950": "a.co"}, "launch": [LAUNCH]}, "no file for gfx942; files are for"),
    ({"code_object": {"gfx95": "a.co"}, "launch": [LAUNCH]}, "code_object.gfx95: "),
    ({"code_object": "axpy-gfx942.co"}, "a code object needs launch: what its launcher does"),
    ({"mlir": "axpy.mlir", "launch": [LAUNCH]}, "launch is for a code_object, not for a mlir"),
    ({"mlir": "axpy.mlir", "launcher": "m:f"}, "this one has launcher or mlir"),
    ({"mlir": "axpy.mlir", "constexpr": {"N": 1}}, "constexpr is for a launcher or factory"),
    ({"mlir": "axpy.mlir", "kwargs": {"N": 1}}, "kwargs is for a factory"),
    ({"mlir": "axpy.mlir", "env": {"A": "1"}}, "env is for a launcher, factory or capture"),
    ({"code_object": "a.co", "launch": [{"kernel": "k"}]}, "a launch needs the key 'grid'"),
    ({"launch": [LAUNCH | {"gird": 1}]}, "unknown key 'gird'; did you mean 'grid'?"),
    ({"launch": [LAUNCH | {"grid": [1, 1, 1, 1]}]}, "a launch has one to three dimensions"),
    ({"launch": [LAUNCH | {"grid": ["m"]}]}, "launch[0].grid[0]: there is no argument or par"),
    ({"launch": [LAUNCH | {"grid": [-1]}]}, "launch[0].grid[0]: -1 is not within 0 and"),
    ({"launch": [LAUNCH | {"grid": [1.5]}]}, "grid[0]: 1.5 is not an integer or an expression"),
    ({"launch": [LAUNCH | {"block": "n"}]}, "block: expected a list of sizes"),
    ({"launch": [LAUNCH | {"lds": "a * 2"}]}, "launch[0].lds: the argument a is no integer"),
    ({"launch": [LAUNCH | {"args": "x"}]}, "expected a list of arguments and expressions"),
    ({"launch": [LAUNCH | {"args": [["n * 2"]]}]}, "'n * 2' has no size of its own; within a"),
    ({"launch": [LAUNCH | {"args": [{"f32": "n"}]}]}, "expected a type and an expression"),
    ({"launch": [LAUNCH | {"args": [{"i32": "m"}]}]}, "there is no argument or parameter m"),
    ({"launch": [LAUNCH | {"args": [None]}]}, "expected an argument or an expression"),
    ({"launch": [LAUNCH | {"cooperative": 1}]}, "cooperative: expected true or false"),
]


@pytest.mark.parametrize(("keys", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_is_wrong_in_the_manifest(directory: Path, keys: dict[str, Any], message: str) -> None:
    if set(keys) == {"launch"}:
        keys = {"code_object": "axpy-gfx942.co", **keys}
    with pytest.raises(ManifestError) as caught:
        built(directory, Kernel("k", args=ARGS, **keys))
    assert message in str(caught.value)
