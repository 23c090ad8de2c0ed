"""Opens bundles and loads their kernels on devices."""

from __future__ import annotations

import os
from types import TracebackType

from runtime_loader import hip
from runtime_loader.bundle_file import BundleFile
from runtime_loader.catalogue import Catalogue
from runtime_loader.checked import Fields
from runtime_loader.format import MAX_BLOB, Ref
from runtime_loader.kernel import Kernel
from runtime_loader.modules import load_functions
from runtime_loader.native import make_kernel
from runtime_loader.specialisation import Specialisation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

    from runtime_loader.table import Table
    from runtime_loader.trust import Keys

# Answers of tuned tables that a bundle remembers; shapes vary, but not without end.
_LOOKUPS_KEPT = 1 << 16


def load(
    path: str | os.PathLike[str],
    *,
    verify: Literal["use", "open"] = "use",
    trust: Literal["required"] | None = None,
    keys: Keys | None = None,
) -> Bundle:
    """Open a bundle. Nothing is read but its header, and no HIP library is needed yet.

    `verify`: check each blob before its first use, or everything now. `trust="required"` (or
    `FLYC_TRUST=required`): refuse a bundle that no key among `keys` (by default those that
    `FLYC_TRUSTED_KEYS` names; see `runtime_loader.trust`) has signed. Raises `BundleError` and
    `TrustError`.
    """
    file = BundleFile.open(os.fspath(path))
    if trust is not None or keys is not None or os.environ.get("FLYC_TRUST"):
        from runtime_loader.trust import check_policy  # it takes time that few loads need to take

        check_policy(file, trust, keys)
    if verify == "open":
        file.verify()
    return Bundle(file)


class Bundle:
    """An open bundle: kernels by name and parameters, for the devices of this machine.

    Kernels that it gave stay usable after `close`. With `keep=False` their modules may be unloaded
    once they are gone (`runtime_loader.modules`); launches then cost a question about captures.
    """

    def __init__(self, file: BundleFile, *, keep: bool = True) -> None:
        self._file = file
        self._keep = keep
        self.path = file.path
        self.id = file.id
        self._catalogue = Catalogue(file)
        self._kernels: dict[tuple[bytes, int], Kernel] = {}
        self._tables: dict[str, Table] = {}
        self._looked_up: dict[tuple[object, ...], Kernel] = {}

    @property
    def name(self) -> str:
        """The name that the manifest gave it."""
        return Fields(self._file.meta, f"{self.path}: its description").text("name")

    def kernels(self) -> list[str]:
        """The names of the kernels that the bundle has."""
        return self._catalogue.kernels()

    def specialisations(self, name: str) -> list[Specialisation]:
        """Every specialisation of a kernel. Raises `MissError` when there is no such kernel."""
        return list(self._catalogue.specialisations(name))

    def kernel(self, name: str, /, *, device: int | None = None, **params: Any) -> Kernel:
        """The specialisation with these parameters, selected and loaded for a device.

        `device` is an ordinal, by default the current device; the most specific code object that
        it can run is taken. Parameters that have only one value in the bundle may be left out.
        Nothing is ever compiled: `MissError` says what is there instead. Also raises
        `HipUnavailableError`, `HipError`, `CaptureError`, and `BundleError` when the bundle is
        damaged.
        """
        where = hip.runtime().device(device)
        spec, ref = self._catalogue.select(name, params, where)
        key = (spec.key(), where.ordinal)
        kernel = self._kernels.get(key)
        if kernel is None:
            kernel = self._kernels.setdefault(key, self._load(spec, ref, where))
        return kernel

    def table(self, name: str) -> Table:
        """The tuned table of a kernel. Raises `MissError` when it has none."""
        from runtime_loader.table import Table  # bundles without tables do without it

        self._catalogue.kernel_record(name)
        return Table(self._file, name)

    def kernel_for(self, name: str, /, *, device: int | None = None, **keys: Any) -> Kernel:
        """The specialisation that the kernel's tuned table has for these keys, as `kernel` does.

        That of the exact row, or else of the nearest (see `runtime_loader.table`). Raises
        `MissError` when the table has none for this device, and what `kernel` raises.
        """
        where = hip.runtime().device(device)
        asked = (name, where.ordinal, *keys.items(), *map(type, keys.values()))
        try:
            kernel = self._looked_up.get(asked)
        except TypeError:  # a list as key
            return self._look_up(name, keys, where)
        if kernel is None:
            if len(self._looked_up) >= _LOOKUPS_KEPT:
                self._looked_up.clear()
            kernel = self._looked_up[asked] = self._look_up(name, keys, where)
        return kernel

    def preload(self, device: int | None = None, kernels: list[str] | None = None) -> int:
        """Load all that a device can run of these kernels (default: all); return how many.

        Do this before capturing a graph: HIP cannot load a module during a capture.
        """
        catalogue = self._catalogue
        where = hip.runtime().device(device)
        candidates = [str(target) for target in where.target.candidates()]
        loaded = 0
        for name in self.kernels() if kernels is None else kernels:
            catalogue.kernel_record(name)
            for params, targets in catalogue.variants(name):
                if any(target in targets for target in candidates):
                    self.kernel(name, device=where.ordinal, **params)
                    loaded += 1
        return loaded

    def close(self) -> None:
        """Unmap the file. Modules stay loaded, because a captured graph may hold them."""
        self._file.close()

    def _look_up(self, name: str, keys: dict[str, Any], where: hip.Device) -> Kernel:
        table = self._tables.get(name) or self._tables.setdefault(name, self.table(name))
        row = table.find_or_raise(where.target.candidates(), **keys)
        return self.kernel(name, device=where.ordinal, **row.params)

    def _load(self, spec: Specialisation, ref: Ref, device: hip.Device) -> Kernel:
        runtime = hip.runtime()

        def image() -> bytes | memoryview:
            return self._file.blob(ref, MAX_BLOB)

        functions = load_functions(runtime, device, spec, image, keep=self._keep)
        on_capture = None if self._keep else functions.keep
        return make_kernel(runtime, device, spec, functions, on_capture)

    def __enter__(self) -> Bundle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Bundle {os.path.basename(self.path)} {self.id[:16]}>"
