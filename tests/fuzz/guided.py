"""Fuzzes the bundle reader by coverage: `python -m tests.fuzz.guided -max_total_time=60`.

Takes atheris (`pip install atheris`) and libFuzzer's options. Inputs are mutated as bundles, with
their hashes made good again, where they still are bundles, and as bytes otherwise.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["runtime_loader"]):
    from tests.fuzz.bundle_mutations import mutate
    from tests.fuzz.bundle_seeds import seed_bundles
    from tests.fuzz.fuzz_bundle import exercise


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        corpus = directory / "corpus"
        corpus.mkdir()
        (directory / "seeds").mkdir()
        for number, seed in enumerate(seed_bundles(directory / "seeds")):
            (corpus / str(number)).write_bytes(seed.read_bytes())
        case, parent = directory / "case.flybundle", directory / "parent.flybundle"

        def one(data: bytes) -> None:
            case.write_bytes(data)
            exercise(case)

        def mutated(data: bytes, size: int, seed: int) -> bytes:
            parent.write_bytes(data)
            try:
                return bytes(mutate(parent, random.Random(seed)))[:size]
            except Exception:  # no bundle any more, so there is no structure to mutate
                return bytes(atheris.Mutate(data, size))

        arguments = [*sys.argv, "-max_len=1048576", str(corpus)]
        atheris.Setup(arguments, one, custom_mutator=mutated)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
