"""Captured calls and selections in manifests: what they expand to, and errors at their place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flyc_cli.manifest import Device, ManifestError, Request, expand, parse_manifest
from flyc_cli.manifest.captures import KNOWN_DEVICES
from flyc_cli.manifest.tuned import Choice
from runtime_loader.signature import StreamForm, TensorForm
from runtime_loader.target import SUPPORTED

HEAD = "flyc: 1\nname: m\ntargets: [gfx942]\nkernels:\n  - name: k\n"
CAPTURE = HEAD + "    capture: ops:run\n"


def requests(text: str) -> tuple[Request, ...]:
    return expand(parse_manifest(text.encode(), "m.yaml", Path()))


def test_example_arguments_and_parameters() -> None:
    text = CAPTURE + (
        "    kwargs: {heads: [8, 16]}\n"
        "    args:\n"
        "      x: {dtype: bf16, shape: [4, $heads]}\n"
        "      y: {dtype: f32, shape: [4, 8], strides: [1, 4]}\n"
        "      eps: 0.5\n"
        "      causal: true\n"
        "      bias: null\n"
        "      stream: stream\n"
    )
    few, many = requests(text)
    assert (few.params, many.params) == ({"heads": 8}, {"heads": 16})
    assert many.args == (
        TensorForm("x", "bf16", (4, 16), (16, 1), 2),
        TensorForm("y", "f32", (4, 8), (1, 4), 4),
        StreamForm("stream"),
    )
    assert many.source.kind == "capture"
    assert many.source.kwargs == {"heads": 16}
    assert many.source.examples == {"eps": 0.5, "causal": True, "bias": None}
    assert not many.source.host_data
    assert requests(CAPTURE + "    tensors: cpu\n")[0].source.host_data


def test_each_target_has_its_device() -> None:
    (mi300, mi355) = requests(CAPTURE.replace("[gfx942]", "[gfx942, gfx950]"))
    assert mi300.source.device == KNOWN_DEVICES["gfx942"]
    assert mi355.source.device == KNOWN_DEVICES["gfx950"]
    assert set(SUPPORTED) - set(KNOWN_DEVICES) == {"gfx1250"}


def test_a_described_device() -> None:
    text = CAPTURE + "    params: {cus: [38, 304]}\n    device: {units: $cus}\n"
    known = KNOWN_DEVICES["gfx942"]
    devices = [request.source.device for request in requests(text)]
    assert devices == [Device(known.name, units, known.memory) for units in (38, 304)]
    text = CAPTURE.replace("gfx942", "gfx1250")
    text += "    device: {name: MI450, units: 256, memory: 1}\n"
    assert requests(text)[0].source.device == Device("MI450", 256, 1)


def test_columns_of_a_matrix_are_keyword_arguments() -> None:
    first, second = requests(CAPTURE + "    matrix: [{m: 1, n: 2}, {m: 3, n: 4}]\n")
    assert (first.source.kwargs, second.source.kwargs) == ({"m": 1, "n": 2}, {"m": 3, "n": 4})


def test_several_selections() -> None:
    text = HEAD + "    factory: m:f\n    select: [up, 0, both.down]\n"
    assert requests(text)[0].source.select == ("up", 0, "both.down")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CAPTURE + "    «launcher»: m:f\n", "this one has launcher or capture"),
        (CAPTURE + "    «select»: 0\n", "select is for a factory, not for a capture"),
        (CAPTURE + "    «constexpr»: {N: 1}\n", "not for a capture"),
        (HEAD + "    launcher: m:f\n    «tensors»: cpu\n", "tensors is for a capture"),
        (CAPTURE + "    tensors: «gpu»\n", "expected fake or cpu"),
        (CAPTURE + "    device: {«cus»: 3}\n", "unknown key 'cus'"),
        (CAPTURE + "    device: {units: «0»}\n", "0 is not a number from 1"),
        (CAPTURE + "    device: {units: «true»}\n", "true is not a number from 1"),
        (CAPTURE + "    device: {name: «3»}\n", "3 is not text"),
        (CAPTURE + "    device: {units: «$n»}\n", "$n is not a parameter"),
        (CAPTURE + "    args: {x: «f32»}\n", "write an example"),
        (CAPTURE + "    args: {x: «{pointer: f32}»}\n", "write an example"),
        (CAPTURE + "    args: {x: {dtype: f32, shape: [«'?'»]}}\n", "a number"),
        (CAPTURE + "    args: {x: {dtype: f32, shape: [2], strides: [«'?'»]}}\n", "numbers only"),
        (CAPTURE + "    args: {x: {dtype: f32, shape: [2], align: «16»}}\n", "has no align"),
        (CAPTURE + "    args: {x: {dtype: f32, shape: [2], layout: «static»}}\n", "has no layout"),
        (CAPTURE + "    kwargs: {x: 1}\n    args: {«x»: 2}\n", "already passed under kwargs"),
        (HEAD + "    launcher: m:f\n    args: {x: «3»}\n", "expected a tensor"),
        (HEAD + "    factory: m:f\n    select: «[]»\n", "is empty"),
        (HEAD + "    factory: m:f\n    select: [«1.5»]\n", "the index (a number) or the key"),
    ],
)
def test_every_error_is_at_its_place(text: str, message: str) -> None:
    before = text.partition("«")[0]
    with pytest.raises(ManifestError) as caught:
        requests(text.replace("«", "").replace("»", ""))
    assert message in str(caught.value)
    place = caught.value.place
    if "this one has" not in message:
        assert place.line == before.count("\n") + 1
        assert place.column == len(before) - before.rfind("\n")


def test_a_target_without_a_known_device_is_described() -> None:
    with pytest.raises(ManifestError, match="describe the device for gfx1250"):
        requests(CAPTURE.replace("gfx942", "gfx1250"))
    (launcher,) = requests(HEAD.replace("gfx942", "gfx1250") + "    launcher: m:f\n")
    assert launcher.source.device is None


CONFIG = {
    "version": 1,
    "identity": {"name": "t", "key": {"n": 4}, "device": {"arch": "gfx942", "compute_units": 304}},
    "config": {"block": 64},
}


def tuned(directory: Path, *configs: Any) -> tuple[Choice, ...]:
    for number, config in enumerate(configs):
        text = config if isinstance(config, str) else json.dumps(config)
        (directory / f"t-{number}.json").write_text(text)
    text = HEAD + "    launcher: m:f\n    tuned: t-*.json\n"
    (kernel,) = parse_manifest(text.encode(), "m.yaml", directory).kernels
    return kernel.tuned


def changed(path: str, value: Any) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(json.dumps(CONFIG))
    *parents, last = path.split(".")
    inner = config
    for name in parents:
        inner = inner[name]
    inner[last] = value
    return config


def test_offline_configs_are_choices(tmp_path: Path) -> None:
    found = tuned(tmp_path, CONFIG, changed("identity.key.n", [8, 2]))
    assert [(c.processor, c.keys, c.config) for c in found] == [
        ("gfx942", {"n": 4, "units": 304}, {"block": 64}),
        ("gfx942", {"n": [8, 2], "units": 304}, {"block": 64}),
    ]


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ([], "no file 't-*.json' beside the manifest"),
        (["{"], "t-0.json is not an offline config of flydsl.autotune"),
        (["[]"], "t-0.json is not an offline config"),
        ([changed("version", 2)], "its version is 2, not 1"),
        ([changed("identity.device", {})], "it has no 'compute_units'"),
        ([changed("identity.key.units", 3)], "its key 'units'"),
        ([CONFIG, changed("config.block", 128)], "for the same call, and chose differently"),
        ([CONFIG, changed("identity.key.m", 1)], "t-1.json has other keys than t-0.json"),
    ],
)
def test_offline_configs_that_are_wrong(tmp_path: Path, configs: list[Any], message: str) -> None:
    with pytest.raises(ManifestError, match="tuned: ") as caught:
        tuned(tmp_path, *configs)
    assert message in str(caught.value)
