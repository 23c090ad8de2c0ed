"""Every sample launcher with random arguments: our launches are FlyDSL's, byte for byte.

The gate takes one specialisation of each sample kernel and target, another one for each target.
With FLYC_ORACLE=all (`make test-oracle`) it is every specialisation of every sample manifest.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings

from flyc_cli.builder.supervisor import Built, compile_all
from flyc_cli.manifest import Request, expand, load_manifest
from mlir_passes.toolkit import assemble_toolkit
from runtime_loader import hip
from runtime_loader.loader import load
from tests.launch.oracle_arguments import Drawn, arguments
from tests.launch.oracle_bench import OracleBench, bundle_of
from tests.launch.samples import ROOT

pytestmark = [pytest.mark.compile, pytest.mark.device]

ALL = os.environ.get("FLYC_ORACLE") == "all"


def _requests() -> list[tuple[str, Request]]:
    """The specialisations to check, each with its manifest's name, ordered by target."""
    groups: dict[tuple[str, str, str], list[Request]] = defaultdict(list)
    for path in sorted((ROOT / "manifests").glob("*/manifest.yaml")):
        manifest = load_manifest(path)
        if ALL or manifest.name != "quickstart":  # whose kernels are those of the others
            for request in expand(manifest):
                groups[str(request.target), manifest.name, request.kernel].append(request)
    return [
        (manifest, request)
        for number, ((_, manifest, _), group) in enumerate(sorted(groups.items()))
        for request in (group if ALL else [group[number % len(group)]])
    ]


REQUESTS = _requests()


class Samples:
    """The compiled specialisations, in the order of REQUESTS, and a bundle for each manifest."""

    def __init__(self, directory: Path) -> None:
        toolkit = assemble_toolkit(directory / "toolkit")
        requests = [request for _, request in REQUESTS]
        outcomes = compile_all(requests, toolkit=toolkit, jobs=2, keep_host=True)
        assert not [outcome for outcome in outcomes if not isinstance(outcome, Built)]
        self.built = [outcome for outcome in outcomes if isinstance(outcome, Built)]
        groups: dict[str, list[Built]] = defaultdict(list)
        for (name, _), item in zip(REQUESTS, self.built, strict=True):
            groups[name].append(item)
        self.paths: dict[str, Path] = {}
        for manifest, items in groups.items():
            with bundle_of(directory / manifest, items) as bundle:
                self.paths[manifest] = Path(bundle.path)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return Samples(tmp_path_factory.mktemp("samples"))


@pytest.fixture(scope="module")
def bench(hip_library: Path) -> Iterator[OracleBench]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(hip.LIBRARY_VARIABLE, str(hip_library))
        running = OracleBench(hip_library)
        yield running
        running.close()


@pytest.mark.parametrize(
    "number",
    range(len(REQUESTS)),
    ids=[f"{manifest}: {request.label()}" for manifest, request in REQUESTS],
)
def test_our_launches_are_those_of_flydsl(
    number: int, samples: Samples, bench: OracleBench
) -> None:
    built = samples.built[number]
    launches = 0
    with load(samples.paths[REQUESTS[number][0]]) as bundle:
        subject = bench.subject(bundle, built)

        @settings(max_examples=25, derandomize=True, deadline=None)
        @given(arguments(built.specialisation.signature))
        def compare(drawn: list[Drawn]) -> None:
            nonlocal launches
            launches += bench.check(subject, drawn)

        compare()
    assert launches
