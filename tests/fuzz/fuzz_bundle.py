"""Fuzzes the bundle reader: `python -m tests.fuzz.fuzz_bundle --seconds 60`.

Every outcome must be success or a `FlycError`. An input that ends otherwise, or takes too long, is
kept beside the seeds and its path printed.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from runtime_loader.bundle_file import BundleFile
from runtime_loader.checked import Fields, parse_json
from runtime_loader.errors import FlycError
from runtime_loader.format import MAX_BLOB, Ref
from runtime_loader.specialisation import Specialisation, specialisation_key
from runtime_loader.table import Table
from runtime_loader.trust import check_signatures, embedded_signatures, trusted_keys
from tests.fuzz.bundle_mutations import mutate
from tests.fuzz.bundle_seeds import SIGNER, seed_bundles

SLOW_SECONDS = 20.0
TRUSTED = trusted_keys(SIGNER.hex())


def exercise(path: Path) -> str:
    """Do with a file all that the loader does; returns the first step that refused it.

    `verify` must never accept what use refuses.
    """
    try:
        bundle = BundleFile.open(path)
    except FlycError:
        return "open"
    refused = [
        name
        for name, step in (("use", _use), ("verify", BundleFile.verify), ("trust", _check_trust))
        if _refuses(step, bundle)
    ]
    bundle.close()
    assert "use" not in refused or "verify" in refused, "verify accepts what cannot be used"
    return [*refused, "success"][0]


def _refuses(step: Callable[[BundleFile], None], bundle: BundleFile) -> bool:
    try:
        step(bundle)
    except FlycError:
        return True
    return False


def _use(bundle: BundleFile) -> None:
    assert isinstance(bundle.meta, dict)
    bundle.next_key(b"norm")
    for key, _ in bundle.scan():
        record = bundle.find(key)
        if record is None or key.endswith(b"\0"):
            continue
        fields = Fields(parse_json(record, "a record"), "a record")
        Specialisation.read(fields)
        bundle.blob(Ref.from_json(fields.optional("blob"), "a record"), MAX_BLOB)
        for name in bundle.stage_names(key):
            bundle.stage(key, name)
    for key, _ in bundle.tables.items() if bundle.tables is not None else ():
        if key.endswith(b"\0") and key.count(b"\0") == 1:
            _use_table(Table(bundle, key[:-1].decode(errors="replace")), bundle)


def _check_trust(bundle: BundleFile) -> None:
    signatures = embedded_signatures(bundle)
    if signatures:
        check_signatures(bundle, TRUSTED, signatures)


def _use_table(table: Table, bundle: BundleFile) -> None:
    for row in table.scan():
        bundle.find(specialisation_key(table.kernel, row.params, row.target))
    for size in (0, 5, 10**6):
        keys = {name: size if name in table.nearest else "f16" for name in table.keys}
        table.find(["gfx942"], **keys)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    outcomes: dict[str, int] = {}
    findings = 0
    with tempfile.TemporaryDirectory() as directory:
        seeds = seed_bundles(Path(directory))
        case = Path(directory) / "case.flybundle"
        end = time.monotonic() + options.seconds
        number = 0
        while time.monotonic() < end:
            rng = random.Random(f"{options.seed}-{number}")
            case.write_bytes(mutate(rng.choice(seeds), rng))
            begun = time.monotonic()
            try:
                outcome = exercise(case)
                if time.monotonic() - begun > SLOW_SECONDS:
                    raise TimeoutError(f"it took {time.monotonic() - begun:.0f} s")
            except Exception as error:
                outcome = "finding"
                findings += 1
                kept = Path(tempfile.gettempdir()) / f"flyc-fuzz-{options.seed}-{number}.flybundle"
                kept.write_bytes(case.read_bytes())
                print(f"{kept}: {type(error).__name__}: {error}")
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            number += 1
    print(f"{number} executions, {findings} findings; stopped at: {outcomes}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
