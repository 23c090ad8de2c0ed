"""YAML with places: what text means, what is refused, and where."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flyc_cli.manifest import source
from flyc_cli.manifest.source import ManifestError, Place, parse_document, read_document


def parse(text: str) -> source.Document:
    return parse_document(text.encode(), "m.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("12", 12),
        ("-3", -3),
        ("0", 0),
        ("0x1F", 31),
        ("0o17", 15),
        ("0b101", 5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("2.", 2.0),
        ("'yes'", "yes"),
        ('"1_000"', "1_000"),
        ("12:30:45", "12:30:45"),
        ("2024-01-02", "2024-01-02"),
        ("gfx942:xnack-", "gfx942:xnack-"),
        ("1.2.3", "1.2.3"),
        ("$N", "$N"),
    ],
)
def test_scalars_mean_one_thing(text: str, value: object) -> None:
    found = parse(f"a: {text}\n").value["a"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("yes", "yes is unclear: write true"),
        ("on", "on is unclear: write true"),
        ("True", "True is unclear: write true"),
        ("OFF", "OFF is unclear: write false"),
        ("010", "010 is unclear"),
        ("1_000", "1_000 is unclear"),
        (".inf", ".inf is not a finite number"),
        ("-.INF", "-.INF is not a finite number"),
        (".nan", ".nan is not a finite number"),
        ("1e999", "too large for a 64-bit float"),
        ("18446744073709551616", "does not fit 64 bits"),
        ("9" * 6000, "does not fit 64 bits"),
        ("!!str 1", "tags"),
        ("!env X", "tags"),
        ("*nobody", "no anchor &nobody"),
    ],
)
def test_unclear_scalars_are_refused_where_they_are(text: str, message: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse(f"first: 1\nlist: [0, {text}]\n")
    assert caught.value.place == Place("m.yaml", 2, 11)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("", 1, 1, "empty"),
        ("# only a comment\n", 1, 1, "empty"),
        ("a: 1\n--- \nb: 2\n", 2, 1, "one YAML document"),
        ("a: 1\nb: 2\na: 3\n", 3, 1, "the key 'a' is already at line 1"),
        ("a:\n  - {b: 1, b: 2}\n", 2, 12, "the key 'b' is already at line 2"),
        ("a: [1, 2\nb: 3\n", 2, 2, "not YAML"),
        ("a: [1, ${N * 2}]\n", 1, 9, 'write "${...}" in quotes'),
        ("a:\n\tb: 1\n", 2, 1, "indent with spaces"),
        ("a: b: c\n", 1, 5, "not YAML"),
        ("a: \x07\n", 1, 4, "the character '\\x07' is not allowed"),
        ("base: &b {x: 1}\nuse:\n  <<: *b\n", 3, 3, "merge keys"),
        ("? [1, 2]\n: 3\n", 1, 3, "a key is plain text"),
        ("a: &x [*x]\n", 1, 8, "no anchor &x"),
        ("[" * 60 + "]" * 60, 1, 42, "nested deeper than 40 levels"),
        ("[" * 100_000, 1, 42, "nested deeper than 40 levels"),
        ("{a: " * 60, 1, 165, "nested deeper than 40 levels"),
    ],
)
def test_refused_documents(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse(text)
    assert message in caught.value.message
    assert (caught.value.place.line, caught.value.place.column) == (line, column)
    assert str(caught.value).startswith(f"m.yaml:{line}:{column}: ")


def test_not_utf8() -> None:
    with pytest.raises(ManifestError, match=r"m.yaml:2:1: .*not UTF-8"):
        parse_document(b"a: 1\nb: \xff\n", "m.yaml")


def test_a_byte_order_mark_is_fine() -> None:
    assert parse_document(b"\xef\xbb\xbfa: 1\n", "m.yaml").value == {"a": 1}


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="cannot read the manifest: No such file"):
        read_document(tmp_path / "none.yaml")
    with pytest.raises(ManifestError, match="cannot read the manifest: Is a directory"):
        read_document(tmp_path)


def test_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_BYTES", 8)
    (tmp_path / "m.yaml").write_text("a: 123456\n")
    with pytest.raises(ManifestError, match="larger than"):
        read_document(tmp_path / "m.yaml")


def test_aliases_expand_and_keep_the_place_of_their_anchor() -> None:
    document = parse("a: &x {k: [1, 2]}\nb: *x\n")
    assert document.value == {"a": {"k": [1, 2]}, "b": {"k": [1, 2]}}
    assert document.spot.at("b", "k", 1).place == Place("m.yaml", 1, 15)


def test_an_alias_bomb_of_1e20_values_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 20)]
    with pytest.raises(ManifestError, match="more than 1,000,000 values"):
        parse("\n".join(lines))


def test_an_alias_tower_is_refused() -> None:
    lines = ["a0: &a0 [x]", *(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 60))]
    with pytest.raises(ManifestError, match="nested deeper than 40 levels"):
        parse("\n".join(lines))


def test_every_key_and_value_has_its_place() -> None:
    document = parse("top:\n  - name: x\n    shape: [1, 2]\n")
    spot = document.spot
    assert spot.at("top").keys[("top",)] == Place("m.yaml", 1, 1)
    assert spot.at("top", 0, "shape", 1).place == Place("m.yaml", 3, 16)
    assert spot.at("top", 0, "shape", 9, "deeper").place == Place("m.yaml", 3, 12)
    assert spot.at("top", 0, "shape", 1).name == "top[0].shape[1]"


_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=8)
_DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=12,
)


@settings(deadline=None)
@given(_DATA, st.sampled_from([True, False, None]))
def test_reads_what_yaml_writes(data: object, flow: bool | None) -> None:
    text = yaml.safe_dump(data, default_flow_style=flow, allow_unicode=True)
    assert parse(text).value == data


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_a_value_or_a_manifest_error(text: str) -> None:
    try:
        place = parse_document(text.encode("utf-8", "surrogatepass"), "m.yaml").spot.place
    except ManifestError as error:
        place = error.place
    assert place.line >= 1
    assert place.column >= 1
