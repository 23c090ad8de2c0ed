"""Tuned tables in bundles: lookups agree with the documented rule, and damage is found."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyc_cli import bundle_writer
from flyc_cli.bundle_writer import BundleContents, TableContents, write_bundle
from runtime_loader.bundle_file import BundleFile
from runtime_loader.errors import BundleError, FlycError, MissError
from runtime_loader.table import Table, TableRow
from tests.fuzz.bundle_seeds import specialisation

CODE = b"\x7fELF"


def table_contents(rows: list[TableRow], exact: tuple[str, ...], nearest: tuple[str, ...]) -> Any:
    variants = {(row.target, row.params["tile"]) for row in rows} | {("gfx942", 1)}
    specs = [specialisation("gemm", CODE, target, tile=tile) for target, tile in sorted(variants)]
    return BundleContents(
        name="tuned",
        meta={},
        specialisations=specs,
        code_objects={specs[0].code_object: CODE},
        tables={"gemm": TableContents(exact, nearest, rows)},
    )


def row(m: int, n: int, tile: int, dtype: str = "bf16", target: str = "gfx942") -> TableRow:
    return TableRow(target, {"M": m, "N": n, "dtype": dtype}, {"tile": tile})


ROWS = [
    row(16, 64, 1),
    row(64, 64, 2),
    row(64, 128, 3),
    row(256, 64, 4),
    row(64, 64, 9, "f16"),
    row(-5, 64, 5, "i8"),
    row(64, 64, 7, target="gfx942:xnack-"),
]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    made = table_contents(ROWS, ("N", "dtype"), ("M",))
    return Table(BundleFile.open(write_bundle(tmp_path_factory.mktemp("t"), made).path), "gemm")


@pytest.mark.parametrize(
    ("m", "n", "dtype", "target", "tile"),
    [
        (64, 64, "bf16", "gfx942", 2),  # the row itself
        (65, 64, "bf16", "gfx942", 4),  # the next above
        (17, 64, "bf16", "gfx942", 2),
        (1, 64, "bf16", "gfx942", 1),
        (-(2**63), 64, "bf16", "gfx942", 1),
        (5000, 64, "bf16", "gfx942", 4),  # above all: the largest
        (2**63 - 1, 128, "bf16", "gfx942", 3),
        (3, 64, "i8", "gfx942", 5),
        (64, 64, "bf16", "gfx942:xnack-", 7),
    ],
)
def test_finds_the_row_or_the_nearest(
    table: Table, m: int, n: int, dtype: str, target: str, tile: int
) -> None:
    found = table.find([target], M=m, N=n, dtype=dtype)
    assert found is not None
    assert found.params == {"tile": tile}
    assert found.target == target
    assert (found.keys["N"], found.keys["dtype"]) == (n, dtype)


def test_an_exact_row_of_a_less_specific_target_is_better_than_a_near_one(table: Table) -> None:
    targets = ["gfx942:xnack-", "gfx942"]
    near = table.find(targets, M=65, N=64, dtype="bf16")
    assert near is not None
    assert near.params == {"tile": 7}
    exact = table.find(targets, M=256, N=64, dtype="bf16")
    assert exact is not None
    assert exact.params == {"tile": 4}
    assert exact.target == "gfx942"


def test_what_agrees_in_no_exact_key_is_missing(table: Table) -> None:
    assert table.find(["gfx942"], M=64, N=65, dtype="bf16") is None
    assert table.find(["gfx942"], M=64, N="64", dtype="bf16") is None
    assert table.find(["gfx950"], M=64, N=64, dtype="bf16") is None
    with pytest.raises(MissError, match=r"no row for M=64, N=65, dtype=bf16 on gfx942; its rows"):
        table.find_or_raise(["gfx942"], M=64, N=65, dtype="bf16")
    with pytest.raises(MissError, match="it has no rows for these targets"):
        table.find_or_raise(["gfx950"], M=64, N=64, dtype="bf16")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"M": 1, "N": 64}, "needs dtype too"),
        ({"M": 1, "N": 64, "dtyp": "bf16"}, "no key 'dtyp'; did you mean 'dtype'"),
        ({"M": 1.5, "N": 64, "dtype": "bf16"}, "M is 1.5, not a 64-bit integer"),
        ({"M": True, "N": 64, "dtype": "bf16"}, "M is True, not a 64-bit integer"),
        ({"M": 2**63, "N": 64, "dtype": "bf16"}, "not a 64-bit integer"),
        ({"M": 1, "N": object(), "dtype": "bf16"}, "keys are plain numbers"),
        ({"M": 1, "N": float("nan"), "dtype": "bf16"}, "keys are plain numbers"),
    ],
)
def test_bad_keys_are_explained(table: Table, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(MissError, match=message):
        table.find(["gfx942"], **keys)


def test_lists_its_rows(table: Table) -> None:
    assert table.keys == ("N", "dtype", "M")
    assert table.nearest == ("M",)
    assert table.rows == len(ROWS)
    assert sorted(table.scan(), key=repr) == sorted(
        (TableRow(r.target, {k: r.keys[k] for k in table.keys}, r.params) for r in ROWS), key=repr
    )


def test_a_kernel_without_table(table: Table) -> None:
    with pytest.raises(MissError, match="has no table for 'norm'"):
        Table(table._file, "norm")


def test_the_whole_bundle_verifies(tmp_path: Path) -> None:
    made = table_contents(ROWS, ("N", "dtype"), ("M",))
    BundleFile.open(write_bundle(tmp_path, made).path, verify="open")


def test_a_row_without_specialisation_is_not_written(tmp_path: Path) -> None:
    made = table_contents([*ROWS], ("N", "dtype"), ("M",))
    bad = TableContents(("N", "dtype"), ("M",), [*ROWS, row(1, 1, 77)])
    with pytest.raises(FlycError, match="row without specialisation"):
        write_bundle(tmp_path, BundleContents(**{**vars(made), "tables": {"gemm": bad}}))
    twice = TableContents(("N", "dtype"), ("M",), [*ROWS, row(64, 64, 1)])
    with pytest.raises(FlycError, match="twice"):
        write_bundle(tmp_path, BundleContents(**{**vars(made), "tables": {"gemm": twice}}))


Entries = dict[bytes, bytes]


def other_params(entries: Entries) -> Entries:
    return {**entries, max(entries): b'{"tile":99}'}


def fewer_rows(entries: Entries) -> Entries:
    return {key: value for key, value in entries.items() if key != max(entries)}


def short_key(entries: Entries) -> Entries:
    last = max(entries)
    return {(key[:-3] if key == last else key): value for key, value in entries.items()}


def no_table(entries: Entries) -> Entries:
    return {key: value for key, value in entries.items() if key != b"gemm\0"}


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (other_params, "lacks its specialisation"),
        (fewer_rows, "another number of rows"),
        (short_key, "the key of a row is malformed|is not valid JSON"),
        (no_table, "belongs to no table"),
    ],
)
def test_verification_finds_rows_that_mean_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    forge: Callable[[Entries], Entries],
    message: str,
) -> None:
    real = bundle_writer._table_records

    def forged(contents: BundleContents) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted(forge(dict(real(contents))).items()))

    monkeypatch.setattr(bundle_writer, "_table_records", forged)
    path = write_bundle(tmp_path, table_contents(ROWS, ("N", "dtype"), ("M",))).path
    with pytest.raises(BundleError, match=message):
        BundleFile.open(path, verify="open")


numbers = st.integers(-300, 300) | st.integers(-(2**63), 2**63 - 1)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["a", "b"]), numbers, st.integers(0, 3)),
        st.integers(0, 3),
        min_size=1,
        max_size=60,
    ),
    st.lists(st.tuples(st.sampled_from(["a", "b"]), numbers, st.integers(-1, 5)), max_size=30),
)
def test_lookups_follow_the_documented_rule(rows: Any, asked: Any) -> None:
    """Two nearest keys, against a search through all rows."""
    made = table_contents(
        [
            TableRow("gfx942", {"dtype": d, "M": m, "S": s}, {"tile": t})
            for (d, m, s), t in rows.items()
        ],
        ("dtype",),
        ("M", "S"),
    )
    with tempfile.TemporaryDirectory() as directory:
        file = BundleFile.open(write_bundle(Path(directory), made).path)
        table = Table(file, "gemm")
        for dtype, m, s in [*asked, *rows]:
            found = table.find(["gfx942"], dtype=dtype, M=m, S=s)
            left = [key for key in rows if key[0] == dtype]
            for position, value in ((1, m), (2, s)):
                here = sorted({key[position] for key in left})
                best = next((v for v in here if v >= value), here[-1] if here else None)
                left = [key for key in left if key[position] == best]
            if not left:
                assert found is None
                continue
            assert found is not None
            assert (found.keys["dtype"], found.keys["M"], found.keys["S"]) == left[0]
            assert found.params == {"tile": rows[left[0]]}
        file.close()
