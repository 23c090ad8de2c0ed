"""A bundle that is exchanged for a newer one while its kernels are in use."""

from __future__ import annotations

import os
import weakref
from threading import Lock
from typing import Any

from runtime_loader import hip, log
from runtime_loader.kernel import Bound, Kernel
from runtime_loader.loader import Bundle, load
from runtime_loader.modules import Unloaded, unload_unused


class LiveKernel:
    """A kernel of a `Live` bundle: calls go to that of the bundle that is current at the time.

    `current` is that kernel; whoever keeps it, or what was bound of it, keeps its module loaded.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.current = kernel

    def __call__(self, *args: object, **named: object) -> None:
        """As `Kernel.__call__`."""
        self.current(*args, **named)

    def bind(self, *args: object, **named: object) -> Bound:
        """As `Kernel.bind`; what is bound stays with the bundle of its time."""
        return self.current.bind(*args, **named)

    def __repr__(self) -> str:
        return f"<LiveKernel {self.current!r}>"


class Live:
    """An open bundle that `swap` exchanges for another, with the kernels that it gave.

    `bundle` is the current one, and `options` are those of `load`, for every one.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        self._options = options
        self._lock = Lock()
        self._kernels: weakref.WeakValueDictionary[tuple[bytes, int], LiveKernel]
        self._kernels = weakref.WeakValueDictionary()
        self.bundle = self._load(path)

    def kernel(self, name: str, /, *, device: int | None = None, **params: Any) -> LiveKernel:
        """As `Bundle.kernel`; the same object for the same kernel, whichever bundle is current."""
        with self._lock:
            kernel = self.bundle.kernel(name, device=device, **params)
            key = (kernel.specialisation.key(), kernel.device.ordinal)
            live = self._kernels.get(key)
            if live is None:
                live = self._kernels[key] = LiveKernel(kernel)
            return live

    def swap(self, path: str | os.PathLike[str]) -> Unloaded:
        """Load the bundle at `path` and the kernels in use from it, change over, unload the old.

        Nothing changes unless the new one has every kernel that is in use, for its device. Calls
        that began before go to the old bundle, all later ones to the new. Then this waits until
        the devices have done the launches of the old one, and unloads what nothing holds any more:
        no kernel of it, nothing bound, no captured graph. What is still held goes with a later
        swap. Raises what `load` and `kernel` raise.
        """
        with self._lock:
            new = self._load(path)
            in_use = list(self._kernels.values())
            kernels = [_counterpart(new, live.current) for live in in_use]
            old, self.bundle = self.bundle, new
            for live, kernel in zip(in_use, kernels, strict=True):
                live.current = kernel
            log.info("exchanged bundle %s for %s", old.id[:16], new.id[:16])
            old.close()
            del old
            unloaded = unload_unused(hip.runtime())
        for reason in unloaded.failed:
            log.warning("%s", reason)
        return unloaded

    def close(self) -> None:
        """Close the current bundle; its kernels stay usable."""
        self.bundle.close()

    def _load(self, path: str | os.PathLike[str]) -> Bundle:
        return load(path, keep=False, **self._options)


def _counterpart(bundle: Bundle, kernel: Kernel) -> Kernel:
    spec = kernel.specialisation
    return bundle.kernel(spec.kernel, device=kernel.device.ordinal, **spec.params)
