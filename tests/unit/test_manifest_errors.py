"""What is wrong in a manifest is said in one line, at its place, by parser and schema alike."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flyc_cli.manifest import ManifestError, expand, parse_manifest
from flyc_cli.manifest.source import parse_document

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
SCHEMA = ROOT / "manifests" / "flyc-manifest.schema.json"

HEAD = "flyc: 1\nname: m\ntargets: [gfx942, gfx950]\nkernels:\n  - name: k\n"  # five lines
KERNEL = HEAD + "    launcher: m:f\n"
FACTORY = HEAD + "    factory: m:f\n"

# (manifest with «» around the place of the error, part of the message)
WRONG_SHAPE = [
    ("«[1, 2]»", "expected a manifest, found a list"),
    ("«flyc: 1»", "a manifest needs the key 'name'"),
    ("flyc: «2»\nname: m\nkernels: []\n", "manifest version 2; this flyc reads version 1"),
    ("flyc: «true»\nname: m\nkernels: []\n", "manifest version true"),
    (KERNEL + "«kernel»: []\n", "unknown key 'kernel'; did you mean 'kernels'?"),
    (KERNEL + "    «constexprs»: {N: 1}\n", "did you mean 'constexpr'?"),
    (KERNEL.replace("name: m", "name: «a/b»"), "expected a name of letters"),
    (KERNEL.replace("name: k", "name: «k*»"), "expected a name of letters"),
    (KERNEL.replace("name: k", "name: «7»"), "found a number (7)"),
    (KERNEL.replace("[gfx942, gfx950]", "«[]»"), "the list of targets is empty"),
    (KERNEL.replace("[gfx942, gfx950]", "«gfx942»"), "expected a list of targets, found text"),
    (
        KERNEL.replace("gfx950", "«gfx951»"),
        "flyc does not build for gfx951; it builds for gfx90a, gfx942",
    ),
    (KERNEL.replace("gfx950", "«gfx94»"), "did you mean 'gfx942'?"),
    (KERNEL.replace("gfx950", "«mi300»"), "'mi300' is not a target ID"),
    (KERNEL.replace("gfx950", "«gfx1201:xnack+»"), "gfx1201 has no feature xnack"),
    (KERNEL.replace("gfx950", "«950»"), "expected a target such as gfx942, found a number"),
    (KERNEL.replace("gfx950", "«gfx942»"), "listed twice"),
    ("flyc: 1\nname: m\ntargets: [gfx942]\nkernels: «[]»\n", "the list of kernels is empty"),
    ("flyc: 1\nname: m\ntargets: [gfx942]\nkernels: «{}»\n", "expected a list of kernels"),
    ("flyc: 1\nname: m\ntargets: [gfx942]\nkernels: [«gemm»]\n", "expected a kernel, found text"),
    (HEAD.replace("- name", "- «name") + "»", "one of launcher, factory"),
    (KERNEL.replace("- name", "- «name") + "    factory: m:g\n»", "one of launcher, factory"),
    (HEAD + "    launcher: «norms.rmsnorm»\n", "is not package.module:name, such as norms:rmsnorm"),
    (HEAD + "    launcher: «m:f g»\n", "is not package.module:name"),
    (HEAD + "    launcher: «':m'»\n", "is not package.module:name"),
    (HEAD + "    factory: «[m:f]»\n", "expected a name such as gemms:compile_gemm"),
    (KERNEL + "    «kwargs»: {a: 1}\n", "kwargs is for a factory"),
    (KERNEL + "    «select»: 0\n", "select is for a factory"),
    (FACTORY + "    select: «true»\n", "expected the index (a number) or the key (text)"),
    (FACTORY + "    select: «1.5»\n", "expected the index (a number) or the key (text)"),
    (KERNEL + "    constexpr: «[N, 3]»\n", "expected values by name (constexpr), found a list"),
    (KERNEL + "    constexpr: {N: «[]»}\n", "the list of values is empty"),
    (KERNEL + "    constexpr: {N: [«[1, 2]»]}\n", "write {list: [...]} or {tuple: [...]}"),
    (KERNEL + "    constexpr: {N: {«typ»: bf16}}\n", "did you mean 'type'?"),
    (KERNEL + "    constexpr: {N: «{type: f32, list: []}»}\n", "a typed value has one key"),
    (KERNEL + "    constexpr: {N: «{}»}\n", "a typed value has one key"),
    (KERNEL + "    constexpr: {N: {tuple: «3»}}\n", "expected a list of values"),
    (KERNEL + "    constexpr: {N: {object: «np»}}\n", "is not package.module:name"),
    (KERNEL + "    constexpr: {«block-size»: 1}\n", "'block-size' is not a name for a parameter"),
    (KERNEL + "    constexpr: {«targets»: 1}\n", "cannot be a parameter's name"),
    (KERNEL + "    matrix: «[]»\n", "the list of rows is empty"),
    (KERNEL + "    matrix: [«3»]\n", "expected a row of values by name"),
    (KERNEL + "    matrix: [{a: «[1, 2]»}]\n", "a list here is not swept"),
    (KERNEL + "    matrix: [{«a-b»: 1}]\n", "not a name for a parameter"),
    (KERNEL + "    include: «{N: 1}»\n", "expected a list of rows"),
    (KERNEL + "    exclude: [«{}»]\n", "an exclusion needs a value, targets or when"),
    (KERNEL + "    args: «[x]»\n", "expected arguments by name"),
    (KERNEL + "    args: {x: «f»}\n", "'f' is not a type of scalar"),
    (KERNEL + "    args: {x: {dtype: «bf17», shape: ['?']}}\n", "did you mean 'bf16'?"),
    (KERNEL + "    args: {x: {dtype: f32, shape: «'?'»}}\n", "expected a list such as"),
    (KERNEL + "    args: {x: {dtype: f32, shape: [«?», 4]}}\n", 'in quotes: "?"'),
    (KERNEL + "    args: {x: {dtype: f32, shape: [«true»]}}\n", "found true or false"),
    (KERNEL + "    args: {x: {dtype: f32, shape: [«'?x'»]}}\n", "is not a number from 1"),
    (KERNEL + "    args: {x: {dtype: f32, shape: «[]»}}\n", "1 to 8 dimensions"),
    (KERNEL + "    args: {x: {dtype: f32, shape: ['?'], «strids»: [1]}}\n", "'strides'?"),
    (KERNEL + "    args: {x: {dtype: f32, shape: ['?'], layout: «row»}}\n", "is not a layout"),
    (KERNEL + "    args: {x: {dtype: f32, shape: ['?'], stride_bits: «16»}}\n", "32 or 64"),
    (KERNEL + "    args: {x: {pointer: «f31»}}\n", "did you mean 'f32'?"),
    (KERNEL + "    args: {x: {struct: «{}»}}\n", "the struct has no fields"),
    (KERNEL + "    args: {x: «{constexpr: 4}»}\n", "only a field of a struct"),
    (KERNEL + "    args: {x: {struct: {n: {constexpr: «[4]»}}}}\n", "a list here is not swept"),
    (KERNEL + "    args: {x: {struct: {n: {constexpr: 4, «align»: 8}}}}\n", "'align'"),
    (KERNEL + "    hints: {«wave_per_eu»: 2}\n", "did you mean 'waves_per_eu'?"),
    (KERNEL + "    budgets: {«vgpr»: 2}\n", "did you mean 'vgprs'?"),
    (KERNEL + "    budgets: {vgprs: «-2»}\n", "expected a number from 0"),
    (KERNEL + "    budgets: {lds: «lots»}\n", "a number of bytes, or a size such as 64KiB"),
    (KERNEL + "    budgets: {targets: {gfx942: {«targets»: {}}}}\n", "a budget has"),
    (KERNEL + "    hints: {fast_fp_math: «1»}\n", "1 is not true or false"),
    (KERNEL + "    hints: {waves_per_eu: «-1»}\n", "not a number of waves"),
    (KERNEL + "    hints: {waves_per_eu: «[1, 2, 3]»}\n", "expected [least, most]"),
    (KERNEL + "    hints: {llvm_options: «fast»}\n", "not a mapping of LLVM options"),
    (KERNEL + "    hints: {llvm_options: {a: «1.5»}}\n", "not true, false, an integer or text"),
    (KERNEL + "    env: {«path»: x}\n", "is not a variable name"),
    (KERNEL + "    env: {«FLYDSL_GPU_ARCH»: gfx942}\n", "flyc sets FLYDSL_GPU_ARCH itself; use t"),
    (KERNEL + "    env: {«COMPILE_ONLY»: '1'}\n", "flyc sets COMPILE_ONLY itself"),
    (KERNEL + "    env: {«PYTHONPATH»: x}\n", "use python_path"),
    (KERNEL + "    env: {A: «1»}\n", 'numbers in quotes, as in "1"'),
    ("python_path: «.»\n" + KERNEL, "expected a list of directories"),
    ("toolchain: «{}»\n" + KERNEL, "a toolchain has rocm, llvm or both"),
    ("toolchain: {«rocn»: .}\n" + KERNEL, "did you mean 'rocm'?"),
    ("defaults: {«arg»: {}}\n" + KERNEL, "did you mean 'args'?"),
    ("defaults: {args: {align: «3»}}\n" + KERNEL, "a power of two"),
    ("defaults: {args: {«shape»: []}}\n" + KERNEL, "unknown key 'shape'"),
    ("defaults: {hints: {«fast_math»: true}}\n" + KERNEL, "did you mean 'fast_fp_math'?"),
    ("defaults: {targets: «[]»}\n" + KERNEL, "the list of targets is empty"),
]

WRONG_MEANING = [
    ("python_path: [., «nowhere»]\n" + KERNEL, "no directory 'nowhere'"),
    ("toolchain: {rocm: «nowhere»}\n" + KERNEL, "no directory 'nowhere'"),
    (KERNEL + "  - {name: «k», launcher: m:g}\n", "the kernel 'k' is already at line 5"),
    ("flyc: 1\nname: m\nkernels: [«{name: k, launcher: m:f}»]\n", "no targets: add targets:"),
    ("defaults: {targets: [«gfx90a»]}\n" + KERNEL, "not among the targets of the manifest"),
    (KERNEL + "    targets: [«gfx1100»]\n", "(gfx942, gfx950)"),
    (KERNEL + "    targets: [«gfx942:xnack-»]\n", "not among the targets of the manifest"),
    (KERNEL + "    targets: [gfx950]\n    matrix: [{a: 1, targets: [«gfx942»]}]\n", "this kernel"),
    (KERNEL + "    constexpr: {N: [1, 2, «1»]}\n", "the value 1 is listed twice"),
    (KERNEL + "    constexpr: {«class»: 1}\n", "is not a name for a parameter"),
    (
        FACTORY + "    kwargs: {N: 1}\n    constexpr: {«N»: 2}\n",
        "the parameter 'N' is already under kwargs",
    ),
    (
        KERNEL + "    constexpr: {«N»: 2}\n    matrix: [{N: 1}]\n",
        "write N: $N to pass that column under constexpr",
    ),
    (KERNEL + "    matrix: [{a: 1}, {«b»: 1}]\n", "'b' is not a parameter; expected a"),
    (KERNEL + "    matrix: [{a: 1, b: 2}, «{a: 2}»]\n", "the row has no 'b'"),
    (KERNEL + "    matrix: [«{targets: [gfx942]}»]\n", "a row needs at least one value"),
    (KERNEL + "    matrix: [{a: 1}, «{a: 1}»]\n", "also at line 7"),
    (KERNEL + "    constexpr: {N: 1}\n    include: [{«M»: 1}]\n", "'M' is not a parameter"),
    (KERNEL + "    include: [{«M»: 1}]\n", "none: this kernel has none"),
    (KERNEL + "    constexpr: {N: [1, 2]}\n    include: [«{N: 2}»]\n", "could not tell them apart"),
    (
        KERNEL + "    constexpr: {N: [1, 2], M: [1, 2]}\n    include: [«{N: 5}»]\n",
        "the row needs a value for 'M'",
    ),
    (
        KERNEL.replace("- name", "- «name") + "    constexpr: {N: [{tuple: [1]}, {list: [1]}]}\n»",
        "could not tell them apart",
    ),
    (KERNEL + "    constexpr: {N: 1}\n    exclude: [{«M»: 1}]\n", "'M' is not a parameter"),
    (
        KERNEL + "    constexpr: {N: [1, 2]}\n    exclude: [{N: «3»}]\n",
        "matches nothing: N is never 3; it is 1 or 2",
    ),
    (
        KERNEL + "    constexpr: {N: [1, 2]}\n    exclude: [{N: 1}, «{N: 1}»]\n",
        "matches nothing that an earlier one leaves",
    ),
    (
        KERNEL + "    constexpr: {N: [1, 2]}\n    exclude: [{when: «$N»}]\n",
        "1 is not true or false",
    ),
    (
        KERNEL.replace("- name", "- «name") + "    constexpr: {N: 1}\n    exclude: [{N: 1}]\n»",
        "'k' expands to nothing",
    ),
    (KERNEL + "    constexpr: {N: «$M»}\n", "$M is not a parameter"),
    (KERNEL + "    constexpr: {N: «'${N +}'»}\n", "is not an expression"),
    (KERNEL + "    constexpr: {N: «$M», M: $N}\n", "N -> M -> N: the values need each other"),
    (KERNEL + "    constexpr: {N: «'${1 // 0}'»}\n", "division"),
    (KERNEL + "    constexpr: {N: {type: «f33»}}\n", "'f33' is not a type"),
    (KERNEL + "    constexpr: {N: {enum: «m:FAST»}}\n", "names no member"),
    (KERNEL + "    constexpr: {N: 1}\n    args: {«N»: i32}\n", "already a compile-time value"),
    (KERNEL + "    matrix: [{N: 1}]\n    args: {«N»: i32}\n", "already a compile-time value"),
    (
        KERNEL + "    constexpr: {N: 1}\n    args: {x: {dtype: f32, shape: [«$n»]}}\n",
        "$n is not a parameter; did you mean 'N'?; this kernel has N",
    ),
    (
        KERNEL + "    constexpr: {N: [4, 0]}\n    args: {x: {dtype: f32, shape: [«$N»]}}\n",
        '0 is not a number from 1 to 2147483647, "?" (dynamic) or "?8" (dynamic, a multiple of '
        "8) (for k with N=0)",
    ),
    (KERNEL + "    args: {x: {dtype: f32, shape: «['?', 1]»}}\n", "add leading_dim: 0"),
    (KERNEL + "    args: {x: {dtype: f32, shape: ['?'], align: «6»}}\n", "6 is not a power of two"),
    (KERNEL + "    args: {s: stream, t: «stream»}\n", "a launcher has one stream"),
    (KERNEL + "    budgets: {targets: {«gfx1201»: {vgprs: 2}}}\n", "not among the targets"),
    (KERNEL + "    args: {x: {struct: {s: «stream»}}}\n", "not a field"),
    (KERNEL + "    args: {x: {struct: {n: {constexpr: «$m»}}}}\n", "$m is not a parameter"),
    (KERNEL + "    hints: {waves_per_eu: «[3, 2]»}\n", "expected [least, most]"),
    (KERNEL + "    hints: {waves_per_eu: «$w»}\n", "$w is not a parameter"),
    (KERNEL + "    env: {A: «$»}\n", "write $$ for a dollar"),
    (
        KERNEL + "    constexpr: {N: 1}\n    hints: {fast_fp_math: «$N»}\n",
        "1 is not true or false (for k with N=1)",
    ),
    ("defaults: {env: {A: «$N»}}\n" + KERNEL, "defaults.env.A: $N is not a parameter"),
]


def marked(text: str) -> tuple[str, int, int]:
    """The text without its marks, and where the first one was."""
    before = text.partition("«")[0]
    line = before.count("\n") + 1
    return text.replace("«", "").replace("»", ""), line, len(before) - before.rfind("\n")


def errors_of(text: str) -> ManifestError:
    with pytest.raises(ManifestError) as caught:
        expand(parse_manifest(text.encode(), "m.yaml", ROOT))
    return caught.value


@pytest.mark.parametrize(("text", "message"), [*WRONG_SHAPE, *WRONG_MEANING])
def test_every_error_is_at_its_place(text: str, message: str) -> None:
    plain, line, column = marked(text)
    error = errors_of(plain)
    assert message in str(error)
    assert (error.place.line, error.place.column) == (line, column)
    assert str(error).startswith(f"m.yaml:{error.place.line}:{error.place.column}: ")
    assert "\n" not in str(error)


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    loaded = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(loaded)
    return jsonschema.Draft202012Validator(loaded)


@pytest.mark.parametrize("text", [text for text, _ in WRONG_SHAPE])
def test_the_schema_refuses_wrong_shapes(
    schema: jsonschema.Draft202012Validator, text: str
) -> None:
    assert not schema.is_valid(parse_document(marked(text)[0].encode(), "m.yaml").value)


def _examples() -> list[Any]:
    document = (ROOT / "docs" / "manifest.md").read_text()
    blocks = [part.partition("```")[0] for part in document.split("```yaml\n")[1:]]
    examples = [pytest.param(text, EXAMPLES, id=f"docs-{i}") for i, text in enumerate(blocks)]
    for path in sorted(ROOT.glob("manifests/**/manifest.yaml")):
        name = str(path.parent.relative_to(ROOT))
        examples.append(pytest.param(path.read_text(), path.parent, id=name))
    return examples


@pytest.mark.parametrize(("text", "directory"), _examples())
def test_samples_and_documented_examples_are_valid(
    schema: jsonschema.Draft202012Validator, text: str, directory: Path, tmp_path: Path
) -> None:
    schema.validate(parse_document(text.encode(), "m.yaml").value)
    if directory == EXAMPLES:  # with the code object that one of them names
        directory = Path(shutil.copytree(EXAMPLES, tmp_path / "examples"))
        (directory / "axpy.co").touch()
    requests = expand(parse_manifest(text.encode(), "m.yaml", directory))
    assert len({request.key() for request in requests}) == len(requests) > 0


def test_the_first_example_of_the_reference_is_counted_right() -> None:
    text = _examples()[0].values[0]
    assert len(expand(parse_manifest(text.encode(), "m.yaml", ROOT))) == 22


def test_the_error_quoted_in_the_reference() -> None:
    text = _examples()[0].values[0].replace("$N]", "$M]", 1).encode()
    with pytest.raises(ManifestError) as caught:
        parse_manifest(text, "manifest.yaml", ROOT)
    assert f"\n    {caught.value}\n" in (ROOT / "docs" / "manifest.md").read_text()


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items: Any = ()
    if isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
    inner = [found for key, item in items for found in _paths(item, (*path, key))]
    return [path, *inner] if path else inner


_EXAMPLES = [yaml.safe_load(example.values[0]) for example in _examples()[:5]]
_TEXT = st.sampled_from(["", "?", "?8", "$N", "${N", "bf16", "gfx942", "m:f", "stream", "a b", "*"])
_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.floats(0, 1) | _TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_TEXT, inner, max_size=2),
    max_leaves=3,
)


@settings(deadline=None)
@given(st.data())
def test_a_damaged_manifest_is_never_a_crash(data: st.DataObject) -> None:
    manifest = json.loads(json.dumps(data.draw(st.sampled_from(_EXAMPLES))))
    *parents, last = data.draw(st.sampled_from(_paths(manifest)))
    place = manifest
    for step in parents:
        place = place[step]
    if data.draw(st.booleans()):
        del place[last]
    else:
        place[last] = data.draw(_ANYTHING)
    text = yaml.safe_dump(manifest, sort_keys=False).encode()
    with contextlib.suppress(ManifestError):
        requests = expand(parse_manifest(text, "m.yaml", ROOT))
        assert len({request.key() for request in requests}) == len(requests) > 0
