"""docs/refusals.md: each of its messages is what a build or a call really says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runtime_loader.binding import Binder
from runtime_loader.errors import ArgumentError, PlanError
from runtime_loader.hip import Device
from runtime_loader.signature import PointerForm, StructForm
from runtime_loader.target import Target
from tests.compile.building import Outcomes, build, launches, pointer, request, scalar

pytestmark = pytest.mark.compile

DOCUMENT = (Path(__file__).parents[2] / "docs" / "refusals.md").read_text()
OUT, N = PointerForm("out", "i32", 16), scalar("n")
PAIR = StructForm("pair", (scalar("first"), scalar("second")))
NUMBER = StructForm("number", (scalar("value"),))

BUILDS = {
    "prints": request("launchers:prints", pointer("out", "i32"), N),
    "computes_floats": request(
        "launchers:computes_floats", pointer("out", "i32"), N, scalar("scale", "f32")
    ),
    "reads_memory": request("launchers:reads_memory", pointer("out", "i32"), N),
    "forgets_the_stream": request("launchers:forgets_the_stream", pointer("out", "i32"), N),
    "launches_nothing": request("launchers:launches_nothing", pointer("out", "i32"), N),
    "clustered": request("launchers:clustered", pointer("out", "i32"), N),
    "endless": request("launchers:endless", pointer("out", "i32"), N),
    "unannotated_struct": request("refusals:unannotated_struct", OUT, PAIR),
    "default_out_of_range": request("refusals:default_out_of_range", OUT, scalar("n", "i8")),
    "any_number": request("refusals:any_number", OUT, N),
    "any_names": request("refusals:any_names", OUT, N),
    "own_class": request("refusals:own_class", OUT, NUMBER),
    "plain": request("refusals:plain", OUT, N),
}
# The builds that fail, in the order of the document's rows.
FAILING = (
    *("prints", "computes_floats", "reads_memory", "forgets_the_stream", "launches_nothing"),
    *("clustered", "unannotated_struct", "default_out_of_range"),
)


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    return build(BUILDS)


def _documented() -> list[str]:
    """The messages of the document's tables."""
    rows = re.findall(r"^\| (?!FlyDSL takes)[^|]+ \| ([^|]+) \| [^|]+ \|$", DOCUMENT, re.MULTILINE)
    assert rows
    return rows


def test_every_message_is_said(outcomes: Outcomes) -> None:
    said = [outcomes.failed(name).message for name in FAILING]
    with pytest.raises(PlanError) as endless:
        launches(outcomes.built("endless"), 4096, 2)
    binder = Binder(
        outcomes.built("plain").specialisation.signature, "plain", Device(0, Target.parse("gfx942"))
    )
    for arguments in ((4104, 1), (4096, 2**31)):
        with pytest.raises(ArgumentError) as refused:
            binder.bind(arguments, {})
        said.append(str(refused.value))
    said.insert(6, str(endless.value))
    for message, text in zip(_documented(), said, strict=True):
        assert message in text


def test_what_flydsl_refuses_too(outcomes: Outcomes) -> None:
    for name in ("any_number", "any_names"):
        assert "the launcher takes any number of arguments (*" in outcomes.failed(name).message


def test_an_argument_class_of_the_author(outcomes: Outcomes) -> None:
    (launch,) = launches(outcomes.built("own_class"), 4096, 9)
    assert launch.kernarg == (4096).to_bytes(8, "little") + (9).to_bytes(4, "little")
