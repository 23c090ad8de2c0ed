"""What changed between two bundles, for each specialisation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flyc_cli.builder.budgets import Taken, taken
from flyc_cli.inspect.bundle import open_bundle
from runtime_loader.bundle_file import BundleFile
from runtime_loader.catalogue import Catalogue
from runtime_loader.code_object import CodeObjectError, machine_code
from runtime_loader.format import Ref
from runtime_loader.specialisation import Specialisation

# `identical`: record and code object. `same code`: the code objects differ, not their
# instructions, and all that a launch looks at is the same. `interface`: signature, launch plan,
# kernarg layout or post-load functions differ, whatever the code.
Change = Literal["identical", "same code", "changed", "interface", "added", "removed"]


@dataclass(frozen=True)
class Difference:
    """One specialisation in both bundles, or in one; `old` and `new` are what its kernels take."""

    kernel: str
    params: Mapping[str, Any]
    target: str
    change: Change
    old: Taken
    new: Taken


@dataclass(frozen=True)
class BundleDiff:
    """Two bundles, their ids, and every specialisation of either, by kernel, parameters, target."""

    old: Path
    new: Path
    old_id: str
    new_id: str
    differences: tuple[Difference, ...]

    def counts(self) -> dict[Change, int]:
        """How many specialisations changed how; those with none are left out."""
        found: dict[Change, int] = {}
        for difference in self.differences:
            found[difference.change] = found.get(difference.change, 0) + 1
        return found

    @property
    def differs(self) -> bool:
        return any(difference.change != "identical" for difference in self.differences)


def diff_bundles(old: Path, new: Path) -> BundleDiff:
    """Compare the bundles at two paths. Raises `BundleError`."""
    with open_bundle(old) as before, open_bundle(new) as after:
        return BundleDiff(old, new, before.id, after.id, tuple(_differences(before, after)))


def _differences(old: BundleFile, new: BundleFile) -> Iterator[Difference]:
    """Both are read in the order of their keys, so that neither is held."""
    before, after = _specialisations(old), _specialisations(new)
    left, right = next(before, None), next(after, None)
    while left is not None or right is not None:
        if right is None or (left is not None and left[0] < right[0]):
            assert left is not None
            yield _one_sided(old, left, "removed")
            left = next(before, None)
        elif left is None or right[0] < left[0]:
            yield _one_sided(new, right, "added")
            right = next(after, None)
        else:
            yield _compared(old, left, new, right)
            left, right = next(before, None), next(after, None)


_Found = tuple[bytes, Specialisation, Ref]


def _specialisations(file: BundleFile) -> Iterator[_Found]:
    catalogue = Catalogue(file)
    for kernel in catalogue.kernels():
        for params, targets in catalogue.variants(kernel):
            for target in targets:
                found = catalogue.specialisation(kernel, params, target)
                if found is not None:
                    yield found[0].key(), *found


def _one_sided(file: BundleFile, found: _Found, change: Change) -> Difference:
    _, spec, ref = found
    own = _taken(file, spec, ref)
    old, new = ({}, own) if change == "added" else (own, {})
    return Difference(spec.kernel, spec.params, str(spec.target), change, old, new)


def _compared(old: BundleFile, left: _Found, new: BundleFile, right: _Found) -> Difference:
    _, before, old_ref = left
    _, after, new_ref = right
    change: Change
    if _interface(before) != _interface(after):
        change = "interface"
    elif before.code_object == after.code_object:
        change = "identical"
    else:
        images = [file.blob(ref) for file, ref in ((old, old_ref), (new, new_ref))]
        change = "same code" if _code(images[0]) == _code(images[1]) else "changed"
    return Difference(
        after.kernel,
        after.params,
        str(after.target),
        change,
        _taken(old, before, old_ref),
        _taken(new, after, new_ref),
    )


def _interface(spec: Specialisation) -> tuple[object, ...]:
    kernels = tuple((kernel.symbol, kernel.kernarg) for kernel in spec.kernels)
    return spec.signature, spec.plan, kernels, spec.post_load


def _code(image: bytes | memoryview) -> dict[str, bytes] | bytes:
    try:
        return machine_code(image)
    except CodeObjectError:
        return bytes(image)


def _taken(file: BundleFile, spec: Specialisation, ref: Ref) -> Taken:
    try:
        return taken(spec, file.blob(ref))
    except CodeObjectError:
        return {}
