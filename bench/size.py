"""How large a bundle is: against its code objects alone, one solid stream, and FlyDSL's cache.

python -m bench.size [BUNDLE [--flydsl-cache DIR]]; without a bundle, that of the quickstart
manifest and FlyDSL's cache of the same specialisations are made first.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import zstandard

from flyc_cli.builder.build import build
from mlir_passes.toolkit import assemble_toolkit
from runtime_loader.bundle_file import BundleFile
from runtime_loader.format import SLICE, Ref

LEVEL = 19
QUICKSTART = Path(__file__).parents[1] / "manifests" / "quickstart" / "manifest.yaml"


@dataclass(frozen=True)
class Sizes:
    """Bytes. `stored` is what the bundle's code objects and dictionaries take in it; `flydsl` is
    None when no cache was given."""

    bundle: int
    stages: int
    stored: int
    raw: int
    alone: int
    solid: int
    flydsl: int | None
    specialisations: int
    code_objects: int


def measure(bundle_path: Path, flydsl_cache: Path | None = None) -> Sizes:
    """Measure a bundle and what holds the same without it.

    The solid stream has each code object once, in the order of the index, in one zstd frame.
    `flydsl_cache` is a directory of FlyDSL's cache files for the same specialisations.
    """
    bundle = BundleFile.open(bundle_path)
    refs: dict[bytes, Ref] = {}
    specialisations = 0
    for ref in _code_objects(bundle):
        specialisations += 1
        refs.setdefault(ref.sha256, ref)
    contents = [bytes(bundle.blob(ref)) for ref in refs.values()]
    dictionaries = [Ref.unpack(value) for _, value in bundle.dictionaries.items()]
    extents = {
        ref.offset: ref.stored_size for ref in (*refs.values(), *dictionaries) if ref.codec != SLICE
    }
    zstd = zstandard.ZstdCompressor(level=LEVEL)
    return Sizes(
        bundle=bundle.size,
        stages=_stages(bundle),
        stored=sum(-(-size // 64) * 64 for size in extents.values()),
        raw=sum(map(len, contents)),
        alone=sum(len(zstd.compress(content)) for content in contents),
        solid=len(zstd.compress(b"".join(contents))),
        flydsl=None if flydsl_cache is None else _files(flydsl_cache),
        specialisations=specialisations,
        code_objects=len(contents),
    )


def _code_objects(bundle: BundleFile) -> Iterator[Ref]:
    for key, record in bundle.scan():
        if not key.endswith(b"\0"):
            yield Ref.from_json(json.loads(record)["blob"], str(bundle.path))


def _stages(bundle: BundleFile) -> int:
    """Bytes of stage texts, which the comparison leaves out; nearly all of the annex."""
    if bundle.stages is None:
        return 0
    refs = {Ref.unpack(value) for _, value in bundle.stages.items()}
    return sum(-(-ref.stored_size // 64) * 64 for ref in refs)


def _files(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def report(sizes: Sizes) -> str:
    """The figures as lines of text, each with its ratio to the bundle without stages."""
    bundle = sizes.bundle - sizes.stages
    rows = [
        ("bundle without stages", bundle),
        ("its code objects and dictionaries", sizes.stored),
        ("code objects, raw", sizes.raw),
        (f"each alone, zstd -{LEVEL}", sizes.alone),
        (f"one solid stream, zstd -{LEVEL}", sizes.solid),
    ]
    if sizes.flydsl is not None:
        rows.append(("FlyDSL's cache files", sizes.flydsl))
    lines = [f"{sizes.specialisations} specialisations, {sizes.code_objects} code objects"]
    lines += [f"{text:36} {size:>12,} B   bundle is {bundle / size:6.3f}x" for text, size in rows]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path, nargs="?")
    parser.add_argument("--flydsl-cache", type=Path, help="directory of FlyDSL's cache files")
    options = parser.parse_args()
    if options.bundle is not None:
        print(report(measure(options.bundle, options.flydsl_cache)))
        return
    with tempfile.TemporaryDirectory(prefix="flyc-bench-") as scratch:
        print(report(measure(*make_both(Path(scratch)))))


def make_both(scratch: Path) -> tuple[Path, Path]:
    """The quickstart bundle, and a directory with FlyDSL's cache of what it holds."""
    bundle = build(QUICKSTART, scratch / "out").path
    toolkit = assemble_toolkit(scratch / "toolkit").directory
    for target in BundleFile.open(bundle).meta["targets"]:
        command = [sys.executable, "-m", "bench._flydsl_cache", str(QUICKSTART), str(target)]
        subprocess.run([*command, str(scratch / "cache"), str(toolkit)], check=True)
    return bundle, scratch / "cache"


if __name__ == "__main__":
    main()
