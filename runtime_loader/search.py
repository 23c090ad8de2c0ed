"""Several bundles as one: a search path, and the bundles that installed packages bring."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from runtime_loader import log
from runtime_loader.errors import BundleError, MissError
from runtime_loader.kernel import Kernel
from runtime_loader.loader import Bundle, Stats, load
from runtime_loader.specialisation import Specialisation
from runtime_loader.table import Table

T = TypeVar("T")

PATH_VARIABLE = "FLYC_BUNDLE_PATH"
ENTRY_POINTS = "flyc.bundles"

_SUFFIX = ".flybundle"
# The file that a build names after its content, beside the link that names the newest one.
_BY_CONTENT = re.compile(r"(.+)-[0-9a-f]{16}\.flybundle")


def load_all(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None = None, **options: Any
) -> Bundles:
    """Open every bundle of a search path; `options` are those of `load`.

    `paths` are files, and directories with `*.flybundle` in them; a file named after its content
    is left out beside the link to the newest one. By default those of `FLYC_BUNDLE_PATH`, then
    those that installed packages name in the entry points `flyc.bundles`: each is a path, or a
    function that returns one or several. Raises `BundleError` if there is none, and what `load`
    raises.
    """
    if paths is None:
        listed = os.environ.get(PATH_VARIABLE, "").split(os.pathsep)
        searched = [*filter(None, listed), *_of_packages()]
        where = f"{PATH_VARIABLE} names none, and no installed package has one"
    else:
        searched = [os.fspath(p) for p in ([paths] if isinstance(paths, _PATH) else paths)]
        where = f"there is none in {os.pathsep.join(searched) or 'an empty list'}"
    bundles: dict[str, Bundle] = {}
    for path in searched:
        for file in _files(path):
            bundle = load(file, **options)
            bundles.setdefault(bundle.id, bundle)
    if not bundles:
        raise BundleError(f"no bundle: {where}. Give load_all files, or directories of them")
    return Bundles(list(bundles.values()))


_PATH = (str, os.PathLike)


def _files(path: str) -> list[str]:
    if not os.path.isdir(path):
        return [path]
    names = sorted(name for name in os.listdir(path) if name.endswith(_SUFFIX))
    kept = []
    for name in names:
        match = _BY_CONTENT.fullmatch(name)
        if match is None or match[1] + _SUFFIX not in names:
            kept.append(os.path.join(path, name))
    return kept


def _of_packages() -> Iterator[str]:
    from importlib.metadata import entry_points

    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        try:
            found = point.load()
            found = found() if callable(found) else found
            paths = list(map(os.fspath, [found] if isinstance(found, _PATH) else found))
        except Exception as error:
            raise BundleError(
                f"entry point {point.name} = {point.value} of {ENTRY_POINTS} gives no bundle: "
                f"{error}"
            ) from error
        yield from paths


class Bundles:
    """Bundles in order; whichever has what is asked for first gives it.

    `shadowed` are the kernels that several have, with the paths of their bundles in order. A
    specialisation of such a kernel comes from the first that has it, a tuned table from the first
    that has one.
    """

    def __init__(self, bundles: Sequence[Bundle]) -> None:
        self.bundles = tuple(bundles)
        having: dict[str, list[str]] = {}
        for bundle in bundles:
            for name in bundle.kernels():
                having.setdefault(name, []).append(bundle.path)
        self._names = list(having)
        self.shadowed = {name: tuple(paths) for name, paths in having.items() if len(paths) > 1}
        for name, (first, *others) in self.shadowed.items():
            log.warning("kernel %s of %s goes before that of %s", name, first, ", ".join(others))

    def kernels(self) -> list[str]:
        """The names of all kernels, those of the first bundle first."""
        return list(self._names)

    def having(self, name: str) -> list[Bundle]:
        """The bundles that have a kernel, in order. Raises `MissError` when none has."""
        found = [bundle for bundle in self.bundles if name in bundle.kernels()]
        if not found:
            from runtime_loader.nearest import did_you_mean

            raise MissError(
                f"no bundle has a kernel {name!r}{did_you_mean(name, self._names)}; searched: "
                + ", ".join(bundle.path for bundle in self.bundles)
            )
        return found

    def specialisations(self, name: str) -> list[Specialisation]:
        """Every specialisation of a kernel, without those that an earlier bundle has."""
        found: dict[bytes, Specialisation] = {}
        for bundle in self.having(name):
            for spec in bundle.specialisations(name):
                found.setdefault(spec.key(), spec)
        return list(found.values())

    def kernel(self, name: str, /, *, device: int | None = None, **params: Any) -> Kernel:
        """As `Bundle.kernel`, from the first bundle that has it."""
        return self._first(name, lambda bundle: bundle.kernel(name, device=device, **params))

    def kernel_for(self, name: str, /, *, device: int | None = None, **keys: Any) -> Kernel:
        """As `Bundle.kernel_for`, by the first bundle that has a table for the kernel."""
        return self._first(name, lambda bundle: bundle.kernel_for(name, device=device, **keys))

    def table(self, name: str) -> Table:
        """As `Bundle.table`, of the first bundle that has one."""
        return self._first(name, lambda bundle: bundle.table(name))

    def preload(
        self, devices: int | Iterable[int] | None = None, kernels: Iterable[str] | None = None
    ) -> int:
        """As `Bundle.preload`, of every bundle, what is shadowed included."""
        names = None if kernels is None else list(kernels)
        ordinals = devices if isinstance(devices, int) or devices is None else list(devices)
        for name in names or ():
            self.having(name)
        return sum(
            bundle.preload(ordinals, [n for n in bundle.kernels() if names is None or n in names])
            for bundle in self.bundles
        )

    def stats(self) -> Stats:
        """The sum of what the bundles have done."""
        parts = [bundle.stats() for bundle in self.bundles]
        return Stats(*(sum(values) for values in zip(*map(_values, parts), strict=True)))

    def close(self) -> None:
        """Close them all; kernels stay usable."""
        for bundle in self.bundles:
            bundle.close()

    def _first(self, name: str, ask: Callable[[Bundle], T]) -> T:
        misses: list[MissError] = []
        for bundle in self.having(name):
            try:
                return ask(bundle)
            except MissError as error:
                misses.append(error)
        if len(misses) == 1:
            raise misses[0]
        raise MissError("\n".join(str(error) for error in misses))

    def __enter__(self) -> Bundles:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Bundles {', '.join(os.path.basename(bundle.path) for bundle in self.bundles)}>"


def _values(stats: Stats) -> tuple[int, int, int, int]:
    return stats.loads, stats.launches, stats.misses, stats.bytes
