"""What is special about `capture`: example arguments, and the device that the code sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flyc_cli.manifest.forms import Resolve, make_form
from flyc_cli.manifest.messages import shown
from flyc_cli.manifest.model import (
    Arg,
    ArgDefaults,
    Device,
    ExampleArg,
    Request,
    ScalarArg,
    TensorArg,
)
from flyc_cli.manifest.source import Spot
from runtime_loader.signature import Form, TensorForm

# Name, units as HIP counts them and memory (bytes) of a device of each processor (AMD's data
# sheets; on RDNA, HIP counts workgroup processors). There is none to name for gfx1250 yet.
KNOWN_DEVICES = {
    "gfx90a": Device("AMD Instinct MI250X", 104, 64 << 30),
    "gfx942": Device("AMD Instinct MI300X", 304, 192 << 30),
    "gfx950": Device("AMD Instinct MI355X", 256, 288 << 30),
    "gfx1100": Device("AMD Radeon RX 7900 XTX", 48, 24 << 30),
    "gfx1201": Device("AMD Radeon RX 9070 XT", 32, 16 << 30),
}


def example_arguments(
    args: Mapping[str, Arg], resolve: Resolve, spot: Spot
) -> tuple[tuple[Form, ...], dict[str, Any]]:
    """The tensors (and the stream) that captured code is called with, and the plain values."""
    forms: list[Form] = []
    values: dict[str, Any] = {}
    for name, arg in args.items():
        if isinstance(arg, ExampleArg):
            values[name] = arg.value
        elif isinstance(arg, ScalarArg) and arg.type == "stream":
            forms.append(make_form(name, arg, ArgDefaults(), resolve, spot.at(name)))
        elif isinstance(arg, TensorArg):
            forms.append(_example_tensor(name, arg, resolve, spot.at(name)))
        else:
            spot.at(name).fail(
                "captured code is called with tensors ({dtype, shape}), numbers and a stream; "
                "write an example, or pass text and objects under kwargs"
            )
    return tuple(forms), values


def _example_tensor(name: str, arg: TensorArg, resolve: Resolve, spot: Spot) -> TensorForm:
    for key in ("align", "divisible_by", "layout", "stride_bits"):
        if getattr(arg, key) is not None:
            spot.at(key).fail(
                f"an example tensor has no {key}: what the launcher assumes of it is decided by "
                "the captured code"
            )
    layout = "static" if arg.strides is None else None
    form = make_form(name, replace(arg, layout=layout), ArgDefaults(), resolve, spot)
    assert isinstance(form, TensorForm)
    for key, extents in (("shape", form.shape), ("strides", form.strides)):
        for i, extent in enumerate(extents):
            if extent < 0:
                spot.at(key, i).fail("an example tensor has numbers only")
    return form


def for_target(request: Request, raw: Mapping[str, Any], resolve: Resolve, spot: Spot) -> Request:
    """The request with the device of its target, which only captured code needs to have."""
    known = KNOWN_DEVICES.get(request.target.processor)
    if known is None and {"name", "units", "memory"} - set(raw):
        if request.source.kind != "capture" and not raw:
            return request
        spot.fail(
            f"describe the device for {request.target.processor}, as in device: {{name: ..., "
            "units: 256, memory: 309237645312}"
        )
    fields: dict[str, Any] = dict(vars(known)) if known else {}
    for key, value in raw.items():
        resolved = resolve(value, spot.at("device", key))
        if key == "name" and not isinstance(resolved, str):
            spot.at("device", key).fail(f"{shown(resolved)} is not text")
        if key != "name" and (type(resolved) is not int or resolved < 1):
            spot.at("device", key).fail(f"{shown(resolved)} is not a number from 1")
        fields[key] = resolved
    return replace(request, source=replace(request.source, device=Device(**fields)))
