"""A fixed share of the fuzzer's work, so that every test run does it."""

import random
from pathlib import Path

import pytest

from tests.fuzz.bundle_mutations import MUTATIONS
from tests.fuzz.bundle_seeds import seed_bundles
from tests.fuzz.fuzz_bundle import exercise


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return seed_bundles(tmp_path_factory.mktemp("seeds"))


def test_seeds_are_sound(seeds: list[Path]) -> None:
    assert [exercise(seed) for seed in seeds] == ["success"] * len(seeds)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: str(mutation.__name__))
def test_a_mutated_bundle_is_read_or_refused(mutation, seeds: list[Path], tmp_path: Path) -> None:
    case = tmp_path / "case.flybundle"
    outcomes = set()
    for number in range(60):
        rng = random.Random(number)
        case.write_bytes(mutation(rng.choice(seeds), rng))
        outcomes.add(exercise(case))
    assert outcomes - {"success"}, "no mutation was noticed"
