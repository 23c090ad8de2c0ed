"""What of a large bundle is in memory: the pages that were used."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

from flyc_cli.bundle_writer import write_bundle
from runtime_loader.bundle_file import BundleFile
from runtime_loader.format import Ref
from tests.fuzz.bundle_seeds import contents, specialisation

CODE_BYTES = 64 << 10


def resident(path: Path) -> int:
    """Bytes of the mapped file that this process has touched."""
    (entry,) = re.findall(
        rf"^[^\n]* {re.escape(str(path))}\n.*?^Rss: +(\d+) kB",
        Path("/proc/self/smaps").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    return int(entry) << 10


def test_only_pages_that_are_used_are_resident(tmp_path: Path) -> None:
    rng = random.Random(1)
    codes = [rng.randbytes(CODE_BYTES) for _ in range(256)]
    specs = [(specialisation("k", code, N=n), code) for n, code in enumerate(codes)]
    path = write_bundle(tmp_path, contents("b", specs), compression="raw").path
    bundle = BundleFile.open(path)
    assert bundle.size > 16 << 20
    # A fault maps up to 64 KiB around it: the header, two nodes, the ends of a code object.
    around = 64 << 10
    assert resident(path) <= around
    record = bundle.find(specs[100][0].key())
    assert record is not None
    assert resident(path) <= 4 * around
    view = bundle.blob(Ref.from_json(json.loads(record)["blob"], "record"))
    assert view == codes[100]
    assert resident(path) <= 6 * around + CODE_BYTES
