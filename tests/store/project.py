"""A project whose kernels each depend on one kind of thing, and builds of it with a store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flyc_cli.builder.build import Compiled, Workers, compile_planned, plan
from flyc_cli.builder.outcomes import Built
from flyc_cli.store.files import Storage

KERNEL = """
import flydsl.compiler as flyc
import flydsl.expr as fx


@flyc.kernel
def scaled(x: fx.Pointer):
    at = fx.Int64(fx.thread_idx.x)
    x[at] = x[at] * fx.Float32(float(value()))


@flyc.jit
def launch(x: fx.Pointer):
    scaled(x).launch(grid=(1, 1, 1), block=(64, 1, 1))
"""


def write_kernel(directory: Path, name: str, head: str) -> None:
    """A module whose kernel multiplies by what `value()`, defined in `head`, returns."""
    (directory / f"{name}.py").write_text(head + KERNEL)


def write_manifest(directory: Path, names: Sequence[str], more: str = "") -> Path:
    """A manifest with a kernel of each module of that name."""
    entries = "".join(
        f"  - {{name: {name}, launcher: '{name}:launch', args: {{x: {{pointer: f32}}}}}}\n"
        for name in names
    )
    (directory / "lib").mkdir(exist_ok=True)
    path = directory / "manifest.yaml"
    head = "flyc: 1\nname: project\ntargets: [gfx942]\npython_path: [., lib]\n"
    path.write_text(f"{head}{more}kernels:\n{entries}")
    return path


def build(manifest: Path, storage: Storage | None, **options: object) -> dict[str, Built]:
    """What was built, by kernel."""
    compiled: Compiled = compile_planned(
        plan(manifest),
        workers=Workers(storage=storage, **options),
        jobs=2,  # type: ignore[arg-type]
    )
    return {built.request.kernel: built for built in compiled.built}


def origins(built: dict[str, Built]) -> dict[str, str]:
    return {name: one.origin for name, one in built.items()}


def codes(built: dict[str, Built]) -> dict[str, bytes]:
    return {name: one.code_object for name, one in built.items()}
