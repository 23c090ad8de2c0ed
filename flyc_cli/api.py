"""Manifests as Python objects, for projects that generate theirs (docs/api.md).

A manifest made here becomes the text of a manifest file and is read like one, so everything that
docs/manifest.md says holds, errors included. Importing this module costs next to nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flyc_cli.bundle_writer import WrittenBundle
    from flyc_cli.compression import Compression
    from flyc_cli.manifest.model import Request


@dataclass(frozen=True)
class Specialisation:
    """Values of parameters that belong together: one row of `matrix`, `include` or `exclude`."""

    params: Mapping[str, object]
    targets: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One entry of `kernels`; every field is the key of the same name in docs/manifest.md.

    Values are what the file would hold, with Python's own types where it has them: a list is swept,
    a tuple is one tuple, an enum member or a function is imported by name when the kernel is built.
    Arguments are text (`"i32"`), mappings, or classes of `flyc_cli.manifest` (`TensorArg`, ...).
    """

    name: str = field(kw_only=False)
    launcher: str | None = None
    factory: str | None = None
    capture: str | None = None
    mlir: str | Mapping[str, str] | None = None
    code_object: str | Mapping[str, str] | None = None
    launch: Sequence[Mapping[str, object]] = ()
    select: str | int | Sequence[str | int] | None = None
    device: Mapping[str, object] = field(default_factory=dict)
    tensors: str | None = None
    tuned: str | None = None
    kwargs: Mapping[str, object] = field(default_factory=dict)
    constexpr: Mapping[str, object] = field(default_factory=dict)
    params: Mapping[str, object] = field(default_factory=dict)
    matrix: Sequence[Specialisation | Mapping[str, object]] = ()
    rows: str | Mapping[str, object] | Sequence[Mapping[str, object]] = ()
    include: Sequence[Specialisation | Mapping[str, object]] = ()
    exclude: Sequence[Specialisation | Mapping[str, object]] = ()
    targets: Sequence[str] = ()
    args: Mapping[str, object] = field(default_factory=dict)
    hints: Mapping[str, object] = field(default_factory=dict)
    env: Mapping[str, str | None] = field(default_factory=dict)
    limits: Mapping[str, object] = field(default_factory=dict)
    budgets: Mapping[str, object] = field(default_factory=dict)
    python_path: Sequence[str | os.PathLike[str]] = ()


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A whole manifest; every field is the key of the same name in docs/manifest.md."""

    name: str = field(kw_only=False)
    kernels: Sequence[Kernel]
    targets: Sequence[str] = ()
    python_path: Sequence[str | os.PathLike[str]] = ()
    defaults: Mapping[str, object] = field(default_factory=dict)
    budgets: Mapping[str, object] = field(default_factory=dict)
    toolchain: Mapping[str, object] = field(default_factory=dict)

    def to_yaml(self) -> str:
        """The text of the manifest file. Raises `FlycError` for a value that YAML cannot say."""
        from flyc_cli.manifest.write import manifest_yaml

        return manifest_yaml({"flyc": 1, **_document(self, "manifest")})

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the manifest file `path` and return it. Relative paths start from its directory."""
        file = Path(path)
        file.write_text(self.to_yaml(), encoding="utf-8")
        return file


ManifestLike = Manifest | str | os.PathLike[str]


def plan(
    manifest: ManifestLike,
    *,
    kernels: Sequence[str] = (),
    targets: Sequence[str] = (),
    base: str | os.PathLike[str] = ".",
) -> tuple[Request, ...]:
    """What `manifest` (an object, or the path of a file) asks for; nothing is compiled.

    `kernels` are patterns of names and `targets` the targets to keep; empty means all. Relative
    paths of an object start from `base`. Each request has `kernel`, `params`, `target`, `label()`.
    Raises `ManifestError` and `SelectionError`.
    """
    from flyc_cli.builder.build import plan as plan_checked

    return plan_checked(_checked(manifest, base), kernels, _targets(targets)).requests


def build(
    manifest: ManifestLike,
    output: str | os.PathLike[str],
    *,
    kernels: Sequence[str] = (),
    targets: Sequence[str] = (),
    base: str | os.PathLike[str] = ".",
    jobs: int | None = None,
    compression: Compression = "zstd",
    stages: bool = False,
    rocm: str | os.PathLike[str] | None = None,
    llvm: str | os.PathLike[str] | None = None,
    cache: bool = True,
    cache_dir: str | os.PathLike[str] | None = None,
) -> WrittenBundle:
    """Build `manifest` into the directory `output`, as `flyc build` does, and say what was written.

    The arguments are those of `plan` and the command's options; `cache=False` builds everything and
    keeps nothing, `cache_dir` is a store in another place than the command's. Besides what `plan`
    raises: `BuildError` (its `failures` say what did not compile and why; there is no bundle then),
    and `FlycError` when FlyDSL or the toolchain is missing or the bundle cannot be written.
    """
    from flyc_cli.builder.build import Workers
    from flyc_cli.builder.build import build as build_bundle
    from flyc_cli.store.files import store_at

    return build_bundle(
        _checked(manifest, base),
        Path(output),
        kernels=kernels,
        targets=_targets(targets),
        jobs=jobs,
        compression=compression,
        stages=stages,
        rocm=None if rocm is None else Path(rocm),
        llvm=None if llvm is None else Path(llvm),
        workers=Workers(storage=store_at(cache_dir) if cache else None),
    )


def _checked(manifest: ManifestLike, base: str | os.PathLike[str]) -> Any:
    from flyc_cli.manifest import load_manifest, parse_manifest

    if isinstance(manifest, Manifest):
        return parse_manifest(manifest.to_yaml().encode(), f"manifest {manifest.name}", Path(base))
    return load_manifest(Path(manifest))


def _targets(texts: Sequence[str]) -> list[Any]:
    from runtime_loader.target import Target

    return [Target.parse(text).check_supported() for text in texts]


_PARAMETERS = ("kwargs", "constexpr", "params")
_ROWS = ("matrix", "include", "exclude")


def _document(item: Manifest | Kernel, where: str) -> dict[str, Any]:
    """The keys that say something, as a manifest file holds them."""
    found = {entry.name: getattr(item, entry.name) for entry in fields(item)}
    return {
        name: _section(name, value, f"{where}: {name}")
        for name, value in found.items()
        if value is not None and (isinstance(value, int) or len(value))
    }


def _section(name: str, value: Any, where: str) -> Any:
    from flyc_cli.manifest.write import parameter, plain

    if name == "kernels":
        return [_document(kernel, f"kernel {kernel.name}") for kernel in value]
    if name in _PARAMETERS:
        return {key: parameter(item, f"{where}.{key}") for key, item in value.items()}
    if name in _ROWS:
        return [_row(row, where) for row in value]
    return plain(value, where)


def _row(row: Specialisation | Mapping[str, object], where: str) -> dict[str, Any]:
    from flyc_cli.manifest.write import plain, single

    values = row.params if isinstance(row, Specialisation) else row
    found = {
        name: plain(value, where) if name == "targets" else single(value, f"{where}.{name}")
        for name, value in values.items()
    }
    if isinstance(row, Specialisation) and row.targets:
        found["targets"] = list(row.targets)
    return found
