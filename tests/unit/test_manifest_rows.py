"""`rows`: tuned tables from CSV and YAML become specialisations, and keys to look them up with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flyc_cli.manifest import (
    ManifestError,
    Request,
    TypeValue,
    expand,
    load_manifest,
    parse_manifest,
    table_keys,
)
from flyc_cli.manifest.csv_file import read_cell, read_csv
from flyc_cli.manifest.source import Place
from runtime_loader.checked import canonical_json

TUNED = """\
gfx,cu_num,M,N,K,dtype,tileM,splitK,time (us),name
gfx942,304,16,4096,512,bf16,16,1,10.5,a
gfx942,304,32,4096,512,bf16,16,1,11.5,b
gfx942,304,512,4096,512,bf16,128,2,30.0,"c,""d"
gfx942,80,16,4096,512,bf16,64,1,99.0,e
gfx950,256,16,4096,512,bf16,32,1,5.5,f
gfx906,60,16,4096,512,bf16,32,1,55,g
"""


def write(directory: Path, csv: str, rows: Any = None, **kernel: Any) -> Path:
    (directory / "tuned.csv").write_text(csv)
    data = {
        "flyc": 1,
        "name": "m",
        "targets": ["gfx942", "gfx950"],
        "kernels": [
            {
                "name": "gemm",
                "factory": "gemms:make",
                "rows": "tuned.csv" if rows is None else rows,
                **kernel,
            }
        ],
    }
    path = directory / "m.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    return path


def requests(directory: Path, csv: str, rows: Any = None, **kernel: Any) -> tuple[Request, ...]:
    return expand(load_manifest(write(directory, csv, rows, **kernel)))


def error(directory: Path, csv: str, rows: Any = None, **kernel: Any) -> str:
    with pytest.raises(ManifestError) as caught:
        requests(directory, csv, rows, **kernel)
    return str(caught.value).replace(f"{directory}/", "")


FULL = {
    "file": "tuned.csv",
    "params": {"tile_m": "$tileM", "split": "$splitK", "dtype": {"type": "$dtype"}},
    "keys": ["M", "N", "K"],
    "nearest": ["M"],
    "where": "${cu_num != 80}",
    "targets": "$gfx",
}


def test_rows_become_specialisations_with_the_keys_of_every_row(tmp_path: Path) -> None:
    made = requests(tmp_path, TUNED, FULL)
    assert [(str(r.target), r.params) for r in made] == [
        ("gfx942", {"tile_m": 16, "split": 1, "dtype": "bf16"}),
        ("gfx942", {"tile_m": 128, "split": 2, "dtype": "bf16"}),
        ("gfx950", {"tile_m": 32, "split": 1, "dtype": "bf16"}),
    ]
    assert [[row["M"] for row in r.rows] for r in made] == [[16, 32], [512], [16]]
    assert made[0].rows[1] == {"M": 32, "N": 4096, "K": 512}
    assert made[0].source.kwargs == {"tile_m": 16, "split": 1, "dtype": TypeValue("bf16")}
    assert made[1].where == Place(str(tmp_path / "tuned.csv"), 4, 1)
    (kernel,) = load_manifest(tmp_path / "m.yaml").kernels
    keys, swept = table_keys(kernel)
    assert keys is not None
    assert (keys.names, keys.nearest, swept) == (("N", "K"), ("M",), ())


def test_derived_values_may_use_every_column(tmp_path: Path) -> None:
    rows = {
        "file": "tuned.csv",
        "columns": {"time": {"header": "time (us)", "type": "float"}, "what": "name"},
        "params": {
            "tile": "${min(tileM, 64)}",
            "label": "$what-${M * 2}",
            "fast": "${time < 20}",
            "pair": {"tuple": ["$tileM", 3]},
            "none": None,
        },
        "where": "${gfx == 'gfx942' and M >= 32}",
    }
    made = requests(tmp_path, TUNED, rows, targets=["gfx942"])
    assert [r.params for r in made] == [
        {"tile": 16, "label": "b-64", "fast": True, "pair": [16, 3], "none": None},
        {"tile": 64, "label": 'c,"d-1024', "fast": False, "pair": [128, 3], "none": None},
    ]


def test_a_bare_file_name_takes_every_column_and_has_no_table(tmp_path: Path) -> None:
    made = requests(tmp_path, "a,b\n1,x\n# a comment\n\n2,\n1,x\n", targets=["gfx942"])
    assert [r.params for r in made] == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]
    assert made[0].rows == ()
    assert table_keys(load_manifest(tmp_path / "m.yaml").kernels[0]) == (None, ())


def test_rows_of_the_manifest_and_of_a_yaml_file_are_the_same(tmp_path: Path) -> None:
    values = [{"M": 1, "tile": 2}, {"M": 4, "tile": 2}, {"M": 9, "tile": 3}]
    (tmp_path / "rows.yaml").write_text(yaml.safe_dump(values))
    spec: dict[str, Any] = {"params": ["tile"], "keys": ["M"], "nearest": ["M"]}
    inline = requests(tmp_path, "", {"values": values, **spec})
    file = requests(tmp_path, "", {"file": "rows.yaml", **spec})
    assert [(r.params, r.rows) for r in inline] == [(r.params, r.rows) for r in file]
    assert [r.params["tile"] for r in inline] == [2, 2, 3, 3]
    assert inline[0].rows == ({"M": 1}, {"M": 4})
    bare = requests(tmp_path, "", values, targets=["gfx942"])
    assert [r.params for r in bare] == values


def test_swept_parameters_are_combined_with_rows_and_are_keys(tmp_path: Path) -> None:
    rows = {**FULL, "params": {"tile_m": "$tileM"}}
    made = requests(tmp_path, TUNED, rows, kwargs={"bias": [True, False], "unit": 1})
    assert len(made) == 6
    (kernel,) = load_manifest(tmp_path / "m.yaml").kernels
    keys, swept = table_keys(kernel)
    assert keys is not None
    assert (keys.names, keys.nearest, swept) == (("N", "K", "bias"), ("M",), ("bias",))
    assert {row["bias"] for r in made for row in r.rows} == {True, False}
    assert all(row["bias"] is r.params["bias"] for r in made for row in r.rows)


def test_the_best_of_rows_with_the_same_keys(tmp_path: Path) -> None:
    csv = "M,tile,time\n16,1,3.5\n16,2,1.5\n16,3,1.5\n32,4,9\n"
    rows = {"file": "tuned.csv", "params": ["tile"], "keys": ["M"], "best": "$time"}
    made = requests(tmp_path, csv, rows, targets=["gfx942"])
    assert [(r.params, r.rows) for r in made] == [
        ({"tile": 2}, ({"M": 16},)),
        ({"tile": 4}, ({"M": 32},)),
    ]


def test_a_dollar_sign_in_a_cell_stays_one(tmp_path: Path) -> None:
    (made,) = requests(tmp_path, "name,a\n$a,1\n", targets=["gfx942"])
    assert made.params == {"name": "$a", "a": 1}


def test_the_manifest_is_identified_by_its_row_files_too(tmp_path: Path) -> None:
    first = load_manifest(write(tmp_path, "a\n1\n")).sha256
    again = load_manifest(write(tmp_path, "a\n1\n")).sha256
    other = load_manifest(write(tmp_path, "a\n2\n")).sha256
    assert first == again != other


def test_many_rows_are_quick_to_merge(tmp_path: Path) -> None:
    lines = [f"{m},{n},{m % 7}" for m in range(100) for n in range(50)]
    csv = "\n".join(["M,N,tile", *lines])
    rows = {"file": "tuned.csv", "params": ["tile"], "keys": ["M", "N"], "nearest": ["M"]}
    made = requests(tmp_path, csv, rows)
    assert len(made) == 14
    assert sum(len(r.rows) for r in made) == 10_000


CSV = "M,tile,dtype\n16,8,bf16\n32,x,f16\n"
ERRORS: list[tuple[str, Any, str]] = [
    (CSV, "no.csv", "m.yaml:9:9: kernels[0].rows: no file 'no.csv' beside the manifest"),
    ("", "tuned.csv", "tuned.csv:1:1: the file is empty"),
    ("M,M\n1,2\n", "tuned.csv", "tuned.csv:1:3: the column 'M' is there twice"),
    ("M,N\n1,2\n1\n", "tuned.csv", "tuned.csv:3:1: the row has 1 cells, and the header 2"),
    ("M,N\n1,2,3\n", "tuned.csv", "tuned.csv:2:3: the row has 3 cells, and the header 2"),
    ('M,N\n1,"2\n3"\n', "tuned.csv", "tuned.csv:2:1: not CSV: unexpected end of data; a cell"),
    ("M\n1\n\xff\n".encode("latin-1"), "tuned.csv", "tuned.csv:3:1: the file is not UTF-8 text"),
    ("M\n", "tuned.csv", "no row of tuned.csv is left: of 0, none is dropped"),
    ("M a\n1\n", "tuned.csv", "the column 'M a' of tuned.csv cannot be a parameter's name"),
    ("targets\n1\n", "tuned.csv", "the column 'targets' of tuned.csv cannot be a parameter's name"),
    (
        CSV,
        {"file": "tuned.csv", "params": ["tiel"]},
        "kernels[0].rows.params.tiel: tuned.csv has no column 'tiel'; did you mean 'tile'?",
    ),
    (
        CSV,
        {"file": "tuned.csv", "params": {"a": "${tile * $M}"}},
        "is not an expression",
    ),
    (
        CSV,
        {"file": "tuned.csv", "params": ["tile"]},
        "tuned.csv:3:4: tile is text here ('x') and a number at line 2; correct one, or say how",
    ),
    (
        CSV,
        {"file": "tuned.csv", "params": ["tile"], "columns": {"tile": {"type": "int"}}},
        "tuned.csv:3:4: tile: 'x' is not an integer",
    ),
    (
        "M,tile\n1,\n",
        {"file": "tuned.csv", "params": ["tile"], "columns": {"tile": {"type": "int"}}},
        "tuned.csv:2:3: tile: the cell is empty; expected int",
    ),
    (
        "M,tile\n1,2.5\n",
        {"file": "tuned.csv", "params": ["tile"], "columns": {"tile": {"type": "int"}}},
        "tuned.csv:2:3: tile: '2.5' is not an integer",
    ),
    (
        "M,ok\n1,maybe\n",
        {"file": "tuned.csv", "params": ["ok"], "columns": {"ok": {"type": "bool"}}},
        "tuned.csv:2:3: ok: 'maybe' is not true or false",
    ),
    (
        'note,M\n"a,b",8\n"c",0\n',
        {"file": "tuned.csv", "params": {"tile": "${64 // M}"}},
        "tuned.csv:3:5: row.tile: '64 // M': integer division or modulo by zero",
    ),
    (
        CSV,
        {"file": "tuned.csv", "params": {"tile": "${M * dtype}"}},
        "tuned.csv:2:1: row.tile: 'bf16' is not a number",
    ),
    (
        CSV,
        {"file": "tuned.csv", "params": ["M"], "where": "$M"},
        "tuned.csv:2:1: row.where: 16 is not true or false",
    ),
    (
        CSV,
        {"file": "tuned.csv", "params": ["M"], "where": "${M > 99}"},
        "no row of tuned.csv is left: of 2, 2 by where are dropped",
    ),
    (
        CSV,
        {"file": "tuned.csv", "params": ["M"], "targets": "gfx1201$dtype"},
        "tuned.csv:2:6: row.targets: ",
    ),
    (
        CSV,
        {"file": "tuned.csv", "params": ["M"], "targets": "${'gfx1201' if M else ''}"},
        "no row of tuned.csv is left: of 2, 2 by targets are dropped",
    ),
    (
        CSV,
        {"file": "tuned.csv", "params": ["M"], "keys": ["dtype"], "nearest": ["dtype"]},
        "tuned.csv:2:6: row.dtype: 'bf16' is not a 64-bit integer, as a nearest key must be",
    ),
    (
        "M,tile\n1,2\n1,3\n",
        {"file": "tuned.csv", "params": ["tile"], "keys": ["M"]},
        "tuned.csv:3:1: row: M=1 is at line 2 too, with other parameters (tile=2, here tile=3)",
    ),
    (
        "M,tile,t\n1,2,x\n",
        {"file": "tuned.csv", "params": ["tile"], "keys": ["M"], "best": "$t"},
        "tuned.csv:2:5: row.best: 'x' is not a number",
    ),
    (
        CSV,
        {"file": "tuned.csv", "params": ["tile"], "best": "$M"},
        "rows.best: best chooses among rows with the same keys: add keys",
    ),
    (CSV, {"file": "tuned.csv", "keys": ["M"]}, "rows with keys need params"),
    (CSV, {"file": "tuned.csv", "params": ["M"], "nearest": ["M"]}, "rows.nearest: nearest says"),
    (
        CSV,
        {"file": "tuned.csv", "params": ["M"], "keys": ["M"], "nearest": ["N"]},
        "'N' is not a key of these rows; expected M",
    ),
    (CSV, {"file": "tuned.csv", "wher": "x"}, "unknown key 'wher'; did you mean 'where'?"),
    (CSV, {"params": ["M"]}, "rows come either from a file or from values"),
    (
        CSV,
        {"file": "tuned.csv", "columns": {"m": "Mm"}},
        "rows.columns.m: tuned.csv has no column 'Mm'; did you mean 'M'?",
    ),
    (
        CSV,
        {"values": [{"M": 1}], "columns": {"m": "M"}},
        "rows.columns: columns are for a CSV file",
    ),
    (CSV, {"file": "tuned.csv", "params": ["targets"]}, "'targets' is not a name for a parameter"),
    (CSV, [{"M": 1}, {"N": 1}], "m.yaml:11:5: kernels[0].rows[1]: the row has no 'M'"),
    (CSV, [{"M": 1}, {"M": 1, "N": 1}], "kernels[0].rows[1].N: the first row has no 'N'"),
    (CSV, [{"M": {"type": "f32"}}], "a cell is text, a number, true, false or null"),
    (
        CSV,
        [{"M": 1}, {"M": "a"}],
        "m.yaml:11:8: M is text here ('a') and a number at line 10; correct one",
    ),
    (CSV, [3], "expected a row of values by column, found a number"),
]


@pytest.mark.parametrize(("csv", "rows", "message"), ERRORS, ids=[m for _, _, m in ERRORS])
def test_what_is_wrong_is_said_at_its_place(
    tmp_path: Path, csv: str | bytes, rows: Any, message: str
) -> None:
    path = write(tmp_path, "", rows)
    (tmp_path / "tuned.csv").write_bytes(csv if isinstance(csv, bytes) else csv.encode())
    with pytest.raises(ManifestError) as caught:
        expand(load_manifest(path))
    assert message in str(caught.value).replace(f"{tmp_path}/", "")


def test_what_is_wrong_with_the_kernel(tmp_path: Path) -> None:
    assert "either rows or a matrix" in error(tmp_path, CSV, matrix=[{"a": 1}])
    keyed = {"file": "tuned.csv", "params": ["M"], "keys": ["dtype"]}
    assert "the key 'dtype' is a parameter under kwargs too" in error(
        tmp_path, CSV, keyed, kwargs={"dtype": ["a", "b"]}
    )


def test_an_error_further_on_names_the_row(tmp_path: Path) -> None:
    args = {"x": {"dtype": "$dtype", "shape": ["?"]}}
    rows = {"file": "tuned.csv", "params": ["M", "dtype"]}
    said = error(tmp_path, "M,dtype\n1,bf16\n2,bf17\n", rows, args=args)
    assert "'bf17' is not an element type; expected" in said
    assert "(for gemm with M=2, dtype=bf17)" in said


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("", None, None),
        (" 16 ", None, 16),
        ("007", None, 7),
        ("007", "text", "007"),
        ("-3", None, -3),
        ("1e3", None, 1000.0),
        ("1.", None, 1.0),
        ("True", None, True),
        ("1", "bool", True),
        ("0", "bool", False),
        ("16.0", "int", 16),
        ("16", "float", 16.0),
        ("nan", None, "nan"),
        ("bf16", None, "bf16"),
    ],
)
def test_cells(text: str, kind: str | None, value: Any) -> None:
    found = read_cell(text, kind)
    assert found == value
    assert type(found) is type(value)


@settings(max_examples=60)
@given(
    st.lists(
        st.lists(
            st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=6),
            min_size=3,
            max_size=3,
        ),
        max_size=6,
    )
)
def test_csv_cells_are_read_and_placed_as_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]
) -> None:
    def quoted(cell: str) -> str:
        return '"' + cell.replace('"', '""') + '"'

    path = tmp_path_factory.mktemp("csv") / "t.csv"
    lines = ["a,b,c", *(",".join(map(quoted, row)) for row in rows)]
    path.write_text("\r\n".join(lines) + "\r\n", newline="", encoding="utf-8")
    file = read_csv(path, "t.csv")
    assert [list(row.cells) for row in file.rows] == rows
    for row in file.rows:
        for index, cell in enumerate(row.cells):
            place = file.place(row, index)
            assert lines[place.line - 1][place.column - 1 :].startswith(quoted(cell))


def test_keys_are_plain_json(tmp_path: Path) -> None:
    for request in requests(tmp_path, TUNED, FULL):
        for row in request.rows:
            canonical_json(dict(row))


def test_the_documented_table(tmp_path: Path) -> None:
    root = Path(__file__).parents[2] / "docs"
    (block,) = (
        part.partition("```")[0]
        for part in (root / "manifest.md").read_text().split("```yaml\n")
        if "tuned_gemm.csv" in part.partition("```")[0]
    )
    made = expand(parse_manifest(block.encode(), "m.yaml", root / "examples"))
    gemm = [r for r in made if r.kernel == "gemm" and r.params["bias"]]
    assert [(str(r.target), r.params["tile_m"], [row["M"] for row in r.rows]) for r in gemm] == [
        ("gfx942", 16, [16, 32]),
        ("gfx942", 128, [512]),
        ("gfx950", 32, [16]),
    ]
