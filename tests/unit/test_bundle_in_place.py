"""Files that are changed in place while they are mapped, which deployment should not do."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from flyc_cli.bundle_writer import write_bundle
from runtime_loader.bundle_file import BundleFile
from runtime_loader.errors import BundleError
from runtime_loader.format import ANNEX, HEADER, SECTION_ENTRY_SIZE, Ref
from tests.fuzz.bundle_seeds import contents, family, specialisation

MANY = [(specialisation("k", b"code", N=n, note=f"{n:0900}"), b"code") for n in range(1000)]


@pytest.mark.parametrize("used", [False, True])
def test_a_file_cut_short(tmp_path: Path, used: bool) -> None:
    """Whatever is read from then on is an error, and what was read before stays: no SIGBUS."""
    specs = [*family(4), *MANY]
    path = write_bundle(tmp_path, contents("b", specs), compression="raw").path
    bundle = BundleFile.open(path)
    keys = [spec.key() for spec, _ in specs]
    if used:
        assert bundle.find(keys[0]) is not None
    size = bundle.size
    os.truncate(path, HEADER.size)
    message = f"{path} was cut short while it was open, from {size} to {HEADER.size} bytes"
    failed = 0
    for key in keys[1:]:
        try:
            bundle.find(key)
        except BundleError as error:
            failed += str(error).startswith(message)
    assert failed == len(keys) - 1 or (used and failed > 900)
    for use in (lambda: bundle.meta, lambda: list(bundle.scan()), bundle.verify):
        with pytest.raises(BundleError, match="cut short"):
            use()


def test_code_objects_of_a_file_cut_short(tmp_path: Path) -> None:
    specs = family(4)
    path = write_bundle(tmp_path, contents("b", specs), compression="raw").path
    bundle = BundleFile.open(path)
    record = bundle.find(specs[0][0].key())
    assert record is not None
    ref = Ref.from_json(json.loads(record)["blob"], "record")
    os.truncate(path, bundle.size - 1)
    with pytest.raises(BundleError, match=r"cut short .* Replace bundles by renaming"):
        bundle.blob(ref)


def test_only_copies_withstand_changes(tmp_path: Path) -> None:
    """What is checked before each use is found out; what was given as it is mapped is not."""
    (spec, code), *_ = specs = family(4)
    path = write_bundle(tmp_path, contents("b", specs), compression="raw").path
    bundle = BundleFile.open(path)
    record = bundle.find(spec.key())
    assert record is not None
    ref = Ref.from_json(json.loads(record)["blob"], "record")
    view, copy = bundle.blob(ref), bundle.blob(ref, copied=True)
    with path.open("r+b") as file:
        file.seek(HEADER.size + 8 * SECTION_ENTRY_SIZE)
        file.write(bytes(bundle.size - file.tell()))
    assert copy == code != view
    assert bundle.find(spec.key()) == record
    with pytest.raises(BundleError, match="SHA-256"):
        bundle.blob(ref)


def test_a_file_that_grows_is_as_it_was(tmp_path: Path) -> None:
    """Signing in place would append an annex: what is mapped does not change by that."""
    assert ANNEX
    specs = family(4)
    path = write_bundle(tmp_path, contents("b", specs)).path
    bundle = BundleFile.open(path)
    with path.open("ab") as file:
        file.write(bytes(4096))
    bundle.verify()
