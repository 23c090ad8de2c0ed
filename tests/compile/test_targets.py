"""Code objects are for the target that was asked for, whatever else the same run builds."""

import io

import pytest
from elftools.elf.elffile import ELFFile

from runtime_loader.code_object import read_code_object
from tests.compile.building import TARGETS, Outcomes, build, launches, pointer, request

pytestmark = pytest.mark.compile

WITH_FEATURES = (
    *("gfx90a:xnack+", "gfx90a:xnack-", "gfx90a:sramecc-", "gfx942:xnack+", "gfx942:xnack-"),
    *("gfx942:sramecc+", "gfx942:sramecc-", "gfx942:sramecc-:xnack+", "gfx950:sramecc+:xnack-"),
)
LACKING = ("gfx1100:xnack+", "gfx1201:sramecc-")

# AMDGPUUsage, "ELF Header": the machine, and xnack and sramecc as any, off or on.
MACHINES = {
    "gfx90a": 0x3F,
    "gfx942": 0x4C,
    "gfx950": 0x4F,
    "gfx1100": 0x41,
    "gfx1201": 0x4E,
    "gfx1250": 0x49,
}
XNACK = {"any": 0x100, "-": 0x200, "+": 0x300}
SRAMECC = {"any": 0x400, "-": 0x800, "+": 0xC00}
UNSUPPORTED = 0


def exchange(target):
    return request("warps:exchange", pointer("out", "i32"), target=target)


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    return build({target: exchange(target) for target in (*TARGETS, *WITH_FEATURES, *LACKING)})


def flags(code_object: bytes) -> int:
    return int(ELFFile(io.BytesIO(code_object)).header["e_flags"])


@pytest.mark.parametrize("target", [*TARGETS, *WITH_FEATURES])
def test_the_elf_header_says_the_target(outcomes, target) -> None:
    built = outcomes.built(target)
    processor, *features = target.split(":")
    state = {feature[:-1]: feature[-1] for feature in features}
    found = flags(built.code_object)
    assert found & 0xFF == MACHINES[processor]
    cdna = processor in ("gfx90a", "gfx942", "gfx950")
    assert found & 0x300 == (XNACK[state.get("xnack", "any")] if cdna else UNSUPPORTED)
    has_sramecc = cdna or processor == "gfx1250"
    assert found & 0xC00 == (SRAMECC[state.get("sramecc", "any")] if has_sramecc else UNSUPPORTED)
    assert str(read_code_object(built.code_object).target) == target


@pytest.mark.parametrize("target", LACKING)
def test_a_feature_that_the_processor_lacks_fails(outcomes, target) -> None:
    failed = outcomes.failed(target)
    assert failed.stage == "code-object"
    assert target in failed.message


@pytest.mark.parametrize("target", ["gfx942", "gfx1100"])
def test_one_target_does_not_leak_into_another(outcomes, target) -> None:
    """Kernel modules freeze the wave size at import; each target has its own process."""
    wave = 64 if target == "gfx942" else 32
    together = outcomes.built(target)
    alone = build({target: exchange(target)}).built(target)
    assert together.code_object == alone.code_object
    assert together.specialisation == alone.specialisation
    (launch,) = launches(together, 0)
    assert (launch.grid, launch.block) == ((wave, 1, 1), (wave, 1, 1))
    assert together.specialisation.kernels[0].resources.wavefront == wave
