"""A manifest file to the model: keys, kinds of value, names and templates are checked here.

What depends on the parameters (dtypes, extents, hints, ...) is checked by `expand`.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from flyc_cli.manifest.cursor import Cursor
from flyc_cli.manifest.messages import shown
from flyc_cli.manifest.model import (
    NO_BUDGETS,
    NO_LIMITS,
    ArgDefaults,
    Defaults,
    Kernel,
    Manifest,
    Toolchain,
)
from flyc_cli.manifest.parse_budgets import read_budgets
from flyc_cli.manifest.parse_kernel import KernelParser
from flyc_cli.manifest.parse_settings import (
    read_arg_defaults,
    read_env,
    read_hints,
    read_limits,
    read_python_path,
    read_targets,
)
from flyc_cli.manifest.source import Document, Spot, parse_document, read_document
from runtime_loader.target import Target

_BUNDLE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def load_manifest(path: Path | str) -> Manifest:
    """Read the manifest at `path`; raise `ManifestError` at the first thing that is wrong."""
    path = Path(path)
    return _manifest(read_document(path), path.parent)


def parse_manifest(data: bytes, file: str, directory: Path) -> Manifest:
    """Read a manifest from bytes; `directory` is what its relative paths start from."""
    return _manifest(parse_document(data, file), directory)


def _manifest(document: Document, directory: Path) -> Manifest:
    top = Cursor(document.value, document.spot)
    fields = top.fields(
        "a manifest",
        ("flyc", "name", "targets", "python_path", "defaults", "budgets", "toolchain", "kernels"),
        ("flyc", "name", "kernels"),
    )
    version = fields["flyc"]
    if type(version.value) is not int or version.value != 1:
        version.fail(f"manifest version {shown(version.value)}; this flyc reads version 1")
    targets: tuple[Target, ...] = fields.get("targets", read_targets, ())
    defaults = fields.get("defaults", lambda cursor: _defaults(cursor, targets), Defaults())
    parsers = [
        KernelParser(cursor, targets, defaults, directory)
        for cursor in fields["kernels"].items("kernels")
    ]
    kernels = tuple(parser.kernel() for parser in parsers)
    _check_unique(kernels, fields["kernels"].spot)
    if not targets and not defaults.targets:
        for i, kernel in enumerate(kernels):
            if not kernel.targets:
                fields["kernels"].spot.at(i).fail(
                    "no targets: add targets: at the top of the manifest, e.g. [gfx942]"
                )
    return Manifest(
        name=fields["name"].matching(
            _BUNDLE_NAME, "a name of letters, digits, dots, dashes and underscores"
        ),
        kernels=kernels,
        targets=targets,
        directory=directory,
        python_path=fields.get("python_path", lambda c: read_python_path(c, directory), (".",)),
        defaults=defaults,
        budgets=fields.get("budgets", lambda c: read_budgets(c, targets), NO_BUDGETS),
        toolchain=fields.get("toolchain", lambda c: _toolchain(c, directory), Toolchain()),
        sha256=_combined([document.sha256, *(h for p in parsers for h in p.hashes)]),
        spot=document.spot,
    )


def _combined(hashes: list[str]) -> str:
    """One SHA-256 for a manifest and the files that it names; a manifest alone keeps its own."""
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


def _check_unique(kernels: tuple[Kernel, ...], spot: Spot) -> None:
    first: dict[str, int] = {}
    for i, kernel in enumerate(kernels):
        if kernel.name in first:
            line = spot.at(first[kernel.name], "name").place.line
            spot.at(i, "name").fail(f"the kernel {kernel.name!r} is already at line {line}")
        first[kernel.name] = i


def _toolchain(cursor: Cursor, directory: Path) -> Toolchain:
    fields = cursor.fields("a toolchain", ("rocm", "llvm"))
    if not cursor.value:
        cursor.fail("a toolchain has rocm, llvm or both")

    def installation(item: Cursor) -> Path:
        path = directory / item.text("the directory of an installation")
        if not path.is_dir():
            item.fail(f"no directory {shown(item.value)}")
        return path.resolve()

    return Toolchain(fields.get("rocm", installation, None), fields.get("llvm", installation, None))


def _defaults(cursor: Cursor, targets: tuple[Target, ...]) -> Defaults:
    fields = cursor.fields("defaults", ("targets", "args", "hints", "env", "limits"))
    return Defaults(
        targets=fields.get("targets", lambda c: read_targets(c, targets), ()),
        args=fields.get("args", read_arg_defaults, ArgDefaults()),
        hints=fields.get("hints", lambda c: read_hints(c, None), {}),
        env=fields.get("env", lambda c: read_env(c, None), {}),
        limits=fields.get("limits", read_limits, NO_LIMITS),
    )
