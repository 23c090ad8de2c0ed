"""What a bundle offers: its records read by meaning, and what to say about what it lacks."""

from __future__ import annotations

import itertools
import os

from runtime_loader.checked import Fields, canonical_json, parse_json
from runtime_loader.errors import BundleError, MissError
from runtime_loader.format import Ref
from runtime_loader.records import dataclass
from runtime_loader.specialisation import Specialisation, format_params, specialisation_key
from runtime_loader.target import Target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from runtime_loader.bundle_file import BundleFile
    from runtime_loader.hip import Device

# What an error message looks through and shows at most; a bundle may hold 100,000 of them.
_SCAN_LIMIT = 10_000
_SHOW_LIMIT = 8


@dataclass(frozen=True)
class KernelRecord:
    """A kernel of the bundle: parameter names in manifest order, values of those that have only
    one (`fixed`), targets, and the number of its specialisations."""

    kernel: str
    params: tuple[str, ...]
    fixed: dict[str, Any]
    targets: tuple[str, ...]
    specialisations: int


class Catalogue:
    """Reads the records of one bundle; nothing is kept, so its size costs nothing."""

    def __init__(self, file: BundleFile) -> None:
        self._file = file
        self._name = f"{os.path.basename(file.path)} ({file.id[:16]})"

    def kernels(self) -> list[str]:
        """The names of all kernels, sorted by their UTF-8."""
        names = []
        key = self._file.next_key(b"")
        while key is not None:
            name = key.split(b"\0")[0]
            names.append(name.decode(errors="replace"))
            key = self._file.next_key(name + b"\1")
        return names

    def kernel_record(self, kernel: str) -> KernelRecord:
        """The record of a kernel. Raises `MissError` with the nearest names."""
        record = self._file.find(kernel.encode() + b"\0")
        if record is None:
            from runtime_loader.nearest import did_you_mean

            names = self.kernels()
            raise MissError(
                f"{self._name} has no kernel {kernel!r}{did_you_mean(kernel, names)}; "
                f"it has {_listing(names)}"
            )
        what = f"{self._name}: record of {kernel}"
        fields = Fields(parse_json(record, what), what)
        return KernelRecord(
            kernel=fields.text("kernel"),
            params=tuple(str(name) for name in fields.items("params")),
            fixed=fields.mapping("fixed"),
            targets=tuple(str(target) for target in fields.items("targets")),
            specialisations=fields.integer("specialisations"),
        )

    def specialisation(
        self, kernel: str, params: dict[str, Any], target: Target | str
    ) -> tuple[Specialisation, Ref] | None:
        """The specialisation with exactly these parameters, and where its code object is."""
        record = self._file.find(specialisation_key(kernel, params, target))
        return None if record is None else self._read(kernel, record)

    def specialisations(self, kernel: str) -> Iterator[Specialisation]:
        """All of a kernel's, by parameters and target."""
        self.kernel_record(kernel)
        prefix = kernel.encode() + b"\0"
        for key, record in self._file.scan(prefix):
            if key != prefix:
                yield self._read(kernel, record)[0]

    def variants(self, kernel: str) -> Iterator[tuple[dict[str, Any], list[str]]]:
        """Each set of parameters of a kernel with the targets it was built for; reads keys only."""
        prefix = kernel.encode() + b"\0"
        keys = (key[len(prefix) :].split(b"\0") for key in self._file.keys(prefix) if key != prefix)
        for text, group in itertools.groupby(keys, lambda parts: parts[0]):
            params = parse_json(text, f"{self._name}: a key of {kernel}")
            if not isinstance(params, dict):
                raise BundleError(f"{self._name}: a key of {kernel} has no parameters")
            yield params, [parts[-1].decode(errors="replace") for parts in group]

    def select(
        self, kernel: str, given: dict[str, Any], device: Device
    ) -> tuple[Specialisation, Ref]:
        """The most specific specialisation for a device; parameters with one value may be left out.

        Raises `MissError`, which says what was asked for, what was tried, and what is there.
        """
        record = self.kernel_record(kernel)
        params = self._complete(record, given)
        for target in device.target.candidates():
            found = self.specialisation(kernel, params, target)
            if found is not None:
                return found
        missing = [name for name in record.params if name not in params]
        raise self._needs(record, missing) if missing else self._miss(record, params, device)

    def check_params(self, kernel: str, given: dict[str, Any]) -> dict[str, Any]:
        """These parameters as JSON has them. Raises `MissError` for a name that there is not."""
        complete = self._complete(self.kernel_record(kernel), given)
        return {name: complete[name] for name in given}

    def _read(self, kernel: str, record: bytes) -> tuple[Specialisation, Ref]:
        what = f"{self._name}: a specialisation of {kernel}"
        fields = Fields(parse_json(record, what), what)
        spec = Specialisation.read(fields)
        ref = Ref.from_json(fields.optional("blob"), what)
        if spec.kernel != kernel or ref.sha256.hex() != spec.code_object:
            raise BundleError(f"{what} contradicts itself about its kernel or code object")
        return spec, ref

    def _complete(self, record: KernelRecord, given: dict[str, Any]) -> dict[str, Any]:
        params = dict(record.fixed)
        for name, value in given.items():
            if name not in record.params:
                from runtime_loader.nearest import did_you_mean

                raise MissError(
                    f"{record.kernel} in {self._name} has no parameter {name!r}"
                    f"{did_you_mean(name, record.params)}; it has {_listing(record.params)}"
                )
            try:
                params[name] = parse_json(canonical_json(_plain(value)), name)
            except (TypeError, ValueError):
                raise MissError(
                    f"{record.kernel}: parameter {name} is {value!r:.60} of type "
                    f"{type(value).__name__}; parameters are plain numbers, strings, booleans or "
                    "lists, as the manifest writes them"
                ) from None
        return params

    def _needs(self, record: KernelRecord, missing: list[str]) -> MissError:
        values = self._values(record, missing)
        return MissError(
            f"{record.kernel} in {self._name} needs "
            + " and ".join(f"{name} (one of {values[name]})" for name in missing)
        )

    def _values(self, record: KernelRecord, names: list[str]) -> dict[str, str]:
        seen: dict[str, dict[str, Any]] = {name: {} for name in names}
        for params, _ in itertools.islice(self.variants(record.kernel), _SCAN_LIMIT):
            for name in names:
                value = params.get(name)
                seen[name].setdefault(repr(value), value)
        return {
            name: _listing(sorted(values.values(), key=_order)) for name, values in seen.items()
        }

    def _miss(self, record: KernelRecord, params: dict[str, Any], device: Device) -> MissError:
        asked = f"{record.kernel}({format_params(params)})"
        tried = ", ".join(str(target) for target in device.target.candidates())
        runnable = {str(target) for target in device.target.candidates()}

        def rank(variant: tuple[dict[str, Any], list[str]]) -> tuple[bool, int, float]:
            count, gap = _distance(params, variant[0])
            return count > 0 and runnable.isdisjoint(variant[1]), count, gap

        ranked = sorted(itertools.islice(self.variants(record.kernel), _SCAN_LIMIT), key=rank)
        lines = [f"{self._name} has no {asked} for {device}", f"tried targets: {tried}"]
        nearest, targets = ranked[0] if ranked else ({}, [])
        names = _different(params, nearest)
        if ranked and not names:
            lines.append(
                f"it has {asked} for {', '.join(targets)}; build it for one of the targets tried, "
                "or run it on another device"
            )
        elif ranked:
            differs = [f"{n} is {nearest.get(n)!r}, not {params.get(n)!r}" for n in names]
            values = self._values(record, names)
            lines.append(
                f"nearest: {record.kernel}({format_params(nearest)}) for {', '.join(targets)}, "
                f"where {' and '.join(differs)}"
            )
            lines.extend(f"values of {n}: {values[n]}" for n in names)
        lines.append(
            f"the bundle has {record.specialisations} specialisation(s) of {record.kernel}, for "
            + ", ".join(record.targets)
        )
        return MissError("\n  ".join(lines))


def _distance(wanted: dict[str, Any], has: dict[str, Any]) -> tuple[int, float]:
    """How far a variant is from what was asked: parameters that differ, then by how much."""
    names = _different(wanted, has)
    return len(names), sum(_gap(wanted[name], has.get(name)) for name in names)


def _gap(a: Any, b: Any) -> float:
    """Between two values that differ: 0 to 1 for numbers, by their ratio, and 1 for others."""
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return 0.0 if a == b else abs(a - b) / (abs(a) + abs(b))
    return 1.0


def _different(wanted: dict[str, Any], has: dict[str, Any]) -> list[str]:
    """Names of the parameters that are not the same JSON: 1, 1.0 and true are three values."""
    return [
        name
        for name, value in wanted.items()
        if name not in has or canonical_json(value) != canonical_json(has[name])
    ]


def _plain(value: Any) -> Any:
    """numpy's integers and the like as plain ones."""
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        return value
    return value.__index__()


def _order(value: Any) -> tuple[float, str]:
    """Numbers by size, then everything else by its text."""
    return (value, "") if isinstance(value, (int, float)) else (float("inf"), str(value))


def _listing(values: Any) -> str:
    """The first few values, and how many more there are."""
    shown = [str(value) for value in values]
    if not shown:
        return "none"
    rest = len(shown) - _SHOW_LIMIT
    return ", ".join(shown[:_SHOW_LIMIT]) + (f" and {rest} more" if rest > 0 else "")
