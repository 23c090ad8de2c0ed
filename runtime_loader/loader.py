"""Opens bundles and loads their kernels on devices."""

from __future__ import annotations

import os
from types import TracebackType

from runtime_loader import hip, log
from runtime_loader.bundle_file import BundleFile
from runtime_loader.catalogue import Catalogue
from runtime_loader.checked import Fields
from runtime_loader.errors import MissError
from runtime_loader.format import Ref
from runtime_loader.kernel import Kernel
from runtime_loader.modules import load_functions
from runtime_loader.native import make_kernel, op_type
from runtime_loader.records import dataclass
from runtime_loader.specialisation import Specialisation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any, Literal

    from runtime_loader.blobs import Content
    from runtime_loader.op import Op
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
    on_miss: Callable[[MissError], object] | None = None,
    keep: bool = True,
) -> Bundle:
    """Open a bundle. Nothing is read but its header, and no HIP library is needed yet.

    `verify`: check each blob before its first use, or everything now. `trust="required"` (or
    `FLYC_TRUST=required`): refuse a bundle that no key among `keys` (by default those that
    `FLYC_TRUSTED_KEYS` names; see `runtime_loader.trust`) has signed. `on_miss` is called with each
    miss before it is raised. `keep=False`: modules may be unloaded again
    (`runtime_loader.live`). Raises `BundleError` and `TrustError`.
    """
    file = BundleFile.open(os.fspath(path))
    trusted = trust is not None or keys is not None or bool(os.environ.get("FLYC_TRUST"))
    if trusted:
        from runtime_loader.trust import check_policy  # it takes time that few loads need to take

        check_policy(file, trust, keys)
    if verify == "open":
        file.verify()
    log.info("opened %s (%s)", file.path, file.id[:16])
    return Bundle(file, keep=keep, copy_images=trusted, on_miss=on_miss)


@dataclass(frozen=True)
class Stats:
    """What a bundle has done in this process.

    `loads` is how many code objects it loaded onto devices, `bytes` their sizes; `launches` how
    many kernels its kernels launched, `misses` how often it lacked what it was asked for.
    """

    loads: int
    launches: int
    misses: int
    bytes: int


class Bundle:
    """An open bundle: kernels by name and parameters, for the devices of this machine.

    Kernels that it gave stay usable after `close`. With `keep=False` their modules may be unloaded
    once they are gone (`runtime_loader.modules`); launches then cost a question about captures.
    """

    def __init__(
        self,
        file: BundleFile,
        *,
        keep: bool = True,
        copy_images: bool = False,
        on_miss: Callable[[MissError], object] | None = None,
    ) -> None:
        self._file = file
        self._keep = keep
        # Raw code objects are given to HIP where they are mapped; after a check of signatures
        # nobody may change them any more.
        self._copy_images = copy_images
        self._on_miss = on_miss
        self._misses = 0
        self._sizes: list[int] = []  # of the code objects that it loaded
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
        try:
            spec, ref = self._catalogue.select(name, params, where)
        except MissError as error:
            raise self._missed(error) from None
        return self.load(spec, where, lambda: self.read(ref))

    def op(
        self,
        name: str,
        /,
        *,
        keys: Mapping[str, str] | None = None,
        device: int | None = None,
        **params: Any,
    ) -> Op:
        """A callable that selects the specialisation for each call (see `runtime_loader.op`).

        Only specialisations with these parameters are considered. `keys` says where the keys of the
        kernel's tuned table come from: argument names, `x.shape[0]`, `x.strides[1]`; a key called
        like an argument or a parameter needs nothing. `device` is an ordinal, by default whichever
        device is current at a call.
        """
        return op_type()(self, name, params, keys, device)

    def load(
        self,
        spec: Specialisation,
        device: hip.Device,
        image: Callable[[], Content],
        stream: int = 0,
    ) -> Kernel:
        """A specialisation of this bundle on a device; `image` gives its checked code object.

        `stream` is where it is to be launched, if that is known.
        """
        key = (spec.key(), device.ordinal)
        kernel = self._kernels.get(key)
        if kernel is not None:
            return kernel
        runtime = hip.runtime()

        def counted() -> Content:
            content = image()
            self._sizes.append(len(content))
            log.debug("loading %s on %s, %d bytes", spec.label(), device, len(content))
            return content

        functions = load_functions(runtime, device, spec, counted, keep=self._keep, stream=stream)
        on_capture = None if self._keep else functions.keep
        made = make_kernel(runtime, device, spec, functions, on_capture)
        return self._kernels.setdefault(key, made)

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

    def preload(
        self,
        devices: int | Iterable[int] | None = None,
        kernels: Iterable[str] | None = None,
        *,
        threads: int | None = None,
    ) -> int:
        """Load all that devices can run of these kernels (default: all); return how many.

        `devices` are ordinals, by default the current device. Code objects are read, decompressed
        and checked by several threads (default: one for each core, 8 at most). Do this before
        capturing a graph, during which nothing can be loaded. Raises what `kernel` raises.
        """
        from runtime_loader.preload import preload

        ordinals = [devices] if isinstance(devices, int) or devices is None else list(devices)
        names = self.kernels() if kernels is None else list(kernels)
        return preload(self, [hip.runtime().device(o) for o in ordinals], names, threads)

    def select(self, name: str, device: hip.Device, **params: Any) -> tuple[Specialisation, Ref]:
        """The specialisation that `kernel` takes, and where its code object is."""
        return self._catalogue.select(name, params, device)

    def check_params(self, name: str, params: dict[str, Any]) -> dict[str, Any]:
        """These parameters as the bundle has them. Raises `MissError` for a name that it lacks."""
        return self._catalogue.check_params(name, params)

    def has_table(self, name: str) -> bool:
        """Whether a kernel has a tuned table."""
        from runtime_loader.table import table_key

        return self._file.tables is not None and self._file.tables.find(table_key(name)) is not None

    def variants(self, name: str) -> Iterator[tuple[dict[str, Any], list[str]]]:
        """Each set of parameters of a kernel, with the targets that it was built for."""
        self._catalogue.kernel_record(name)
        return self._catalogue.variants(name)

    def has_loaded(self, spec: Specialisation, device: hip.Device) -> bool:
        """Whether it has given this specialisation on a device before."""
        return (spec.key(), device.ordinal) in self._kernels

    def read(self, ref: Ref) -> Content:
        """The bytes of a code object, checked."""
        return self._file.blob(ref, copied=self._copy_images)

    def stats(self) -> Stats:
        """What it has done so far."""
        launches = sum(kernel.launch_count for kernel in list(self._kernels.values()))
        return Stats(len(self._sizes), launches, self._misses, sum(self._sizes))

    def close(self) -> None:
        """Unmap the file. Modules stay loaded, because a captured graph may hold them."""
        self._file.close()

    def _look_up(self, name: str, keys: dict[str, Any], where: hip.Device) -> Kernel:
        try:
            table = self._tables.get(name) or self._tables.setdefault(name, self.table(name))
            row = table.find_or_raise(where.target.candidates(), **keys)
        except MissError as error:
            raise self._missed(error) from None
        return self.kernel(name, device=where.ordinal, **row.params)

    def _missed(self, error: MissError) -> MissError:
        self._misses += 1
        log.warning("%s", str(error))  # a record that lives on must not hold its frames
        if self._on_miss is not None:
            self._on_miss(error)
        return error

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
