"""What kernels take of the hardware against what the manifest lets them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from flyc_cli.builder.outcomes import Built, Failed
from runtime_loader.bundle_file import BundleFile
from runtime_loader.catalogue import Catalogue
from runtime_loader.code_object import machine_code
from runtime_loader.errors import FlycError
from runtime_loader.specialisation import Resources, Specialisation

STAGE = "budgets"

_WORDS = {
    "vgprs": "VGPRs",
    "agprs": "AGPRs",
    "sgprs": "SGPRs",
    "spills": "spilled registers",
    "lds": "bytes of LDS",
    "scratch": "bytes of scratch",
    "code_size": "bytes of code",
    "waves": "waves per SIMD",
}

# By symbol and name of the resource.
Taken = Mapping[str, Mapping[str, int]]


def over_budget(built: Sequence[Built], previous: Path) -> list[Failed]:
    """The specialisations that take more than their budget, with the numbers of those in the
    bundle at `previous`, if there is one."""
    wanted = [one for one in built if any(v is not None for v in vars(one.request.budget).values())]
    failures = []
    for one in wanted:
        lines = list(_exceeded(one, _before(previous, one.specialisation)))
        if lines:
            failures.append(Failed(one.request, "budget", STAGE, "\n".join(lines), entry=one.entry))
    return failures


def taken(spec: Specialisation, code_object: bytes | memoryview) -> Taken:
    """What each kernel that a specialisation launches takes."""
    code = machine_code(code_object)
    return {
        kernel.symbol: {**_counted(kernel.resources), "code_size": len(code[kernel.symbol])}
        for kernel in spec.kernels
    }


def _counted(resources: Resources) -> dict[str, int]:
    return {
        "vgprs": resources.vgprs,
        "agprs": resources.agprs,
        "sgprs": resources.sgprs,
        "spills": resources.vgpr_spills + resources.sgpr_spills,
        "lds": resources.lds,
        "scratch": resources.scratch,
        "waves": resources.waves_per_simd,
    }


def _exceeded(built: Built, before: Taken) -> Iterator[str]:
    for symbol, found in taken(built.specialisation, built.code_object).items():
        for name, bound in vars(built.request.budget).items():
            if bound is None:
                continue
            least = name == "waves"
            if found[name] < bound if least else found[name] > bound:
                earlier = before.get(symbol, {}).get(name)
                history = "" if earlier is None else f" (the previous bundle: {earlier:,})"
                yield (
                    f"{symbol}: {found[name]:,} {_WORDS[name]}, and the budget is "
                    f"{'at least' if least else 'at most'} {bound:,}{history}"
                )


def _before(previous: Path, spec: Specialisation) -> Taken:
    """What the previous bundle says of the same specialisation; nothing if it is not there."""
    try:
        file = BundleFile.open(previous)
    except FlycError:
        return {}
    try:
        found = Catalogue(file).specialisation(spec.kernel, spec.params, spec.target)
        return {} if found is None else taken(found[0], file.blob(found[1]))
    except FlycError:
        return {}
    finally:
        file.close()
