"""Fills FlyDSL's own cache with the specialisations of a manifest for one processor.

python -m bench._flydsl_cache MANIFEST PROCESSOR CACHE ROCM: a process of its own for each
processor, because kernel modules freeze what they learn of it when they are imported.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from flyc_cli.frontends import flydsl_adapter as adapter
from flyc_cli.frontends.sources import find_source, python_values
from flyc_cli.manifest import expand, load_manifest
from runtime_loader.target import Target


def main() -> None:
    manifest, processor, cache, rocm = sys.argv[1:]
    adapter.set_environment(processor, {"ROCM_PATH": rocm})
    os.environ.update(FLYDSL_RUNTIME_ENABLE_CACHE="1", FLYDSL_RUNTIME_CACHE_DIR=cache)
    wanted = load_manifest(Path(manifest))
    for request in expand(wanted, targets=[Target.parse(processor)]):
        sys.path[:0] = request.python_path
        ((_, found),) = find_source(request.source)
        launcher = adapter.launcher_of(found)
        _, call = adapter.order_arguments(launcher, request.args, python_values(request.constexpr))
        launcher.compile_hints = {**launcher.compile_hints, **request.hints}
        launcher(**call)


if __name__ == "__main__":
    main()
