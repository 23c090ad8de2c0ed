"""What kernels take from the hardware is what LLVM's own remarks say of them."""

import re

import pytest

from tests.compile.building import TARGETS, Outcomes, build, pointer, request

pytestmark = pytest.mark.compile

LIVE = (4, 60, 130)
CASES = [
    *((target, live, {}) for target in TARGETS for live in LIVE),
    # FlyDSL never compiles RDNA kernels for 64 lanes, others do.
    *((target, live, {"WAVE64": "1"}) for target in ("gfx1100", "gfx1201") for live in LIVE),
]
IDS = [f"{target}-{live}{'-wave64' if env else ''}" for target, live, env in CASES]


# Words of LDS and workitems of a workgroup, of which LDS limits the waves or does not.
SHARING = [(1024, 64), (3000, 256), (6912, 256), (9000, 64), (9000, 1024), (16384, 512)]
SHARING_IDS = {
    f"{target}-lds{4 * words}-{threads}": (target, words, threads)
    for target in TARGETS
    for words, threads in SHARING
}


@pytest.fixture(scope="module")
def remarks(tmp_path_factory):
    """Where each case's remarks go."""
    directory = tmp_path_factory.mktemp("remarks")
    return {name: directory / name for name in (*IDS, *SHARING_IDS)}


@pytest.fixture(scope="module")
def outcomes(remarks) -> Outcomes:
    return build(
        {
            name: request(
                "remarks:pressure",
                *(pointer("x"), pointer("out")),
                target=target,
                constexpr={"live": live},
                env={**env, "REMARKS": str(remarks[name])},
            )
            for name, (target, live, env) in zip(IDS, CASES, strict=True)
        }
        | {
            name: request(
                "remarks:sharing",
                pointer("out"),
                target=target,
                constexpr={"size": words, "threads": threads},
                env={"REMARKS": str(remarks[name])},
            )
            for name, (target, words, threads) in SHARING_IDS.items()
        }
    )


def said(text: str) -> dict[str, str]:
    """The numbers of LLVM's remarks."""
    return dict(re.findall(r": +([A-Z]\w*(?: \w+)?)(?: \[.*\])?: (\d+)", text))


@pytest.mark.parametrize("name", SHARING_IDS)
def test_waves_that_lds_leaves_room_for(outcomes, remarks, name) -> None:
    _, words, threads = SHARING_IDS[name]
    (kernel,) = outcomes.built(name).specialisation.kernels
    found = said(remarks[name].read_text())
    assert kernel.resources.lds == int(found["LDS Size"]) == 4 * words
    assert kernel.resources.workgroup == (threads, 1, 1)
    assert kernel.resources.waves_per_simd == int(found["Occupancy"])


@pytest.mark.parametrize(("name", "case"), list(zip(IDS, CASES, strict=True)), ids=IDS)
def test_registers_and_waves(outcomes, remarks, name, case) -> None:
    _, live, env = case
    (kernel,) = outcomes.built(name).specialisation.kernels
    found = said(remarks[name].read_text())
    resources = kernel.resources
    assert resources.waves_per_simd == int(found["Occupancy"])
    assert resources.vgprs == int(found["VGPRs"]) + int(found.get("AGPRs", 0))
    assert resources.scratch == int(found["ScratchSize"])
    assert resources.vgpr_spills == int(found["VGPRs Spill"])
    assert resources.sgpr_spills == int(found["SGPRs Spill"])
    assert resources.lds == int(found["LDS Size"])
    assert resources.allocated_vgprs >= resources.vgprs > live // 3
    assert resources.workgroup == (256, 1, 1)
    if env:
        assert resources.wavefront == 64
