"""Loads many kernels: threads read, decompress and check code objects, one loads them in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from runtime_loader.format import Ref
from runtime_loader.hip import Device
from runtime_loader.specialisation import Specialisation

if TYPE_CHECKING:
    from runtime_loader.blobs import Content
    from runtime_loader.loader import Bundle

_MOST_THREADS = 8
# What is read ahead for each thread: enough to keep them busy, little enough to hold.
_AHEAD = 2


def preload(
    bundle: Bundle, devices: Sequence[Device], names: Sequence[str], threads: int | None
) -> int:
    """Load what these devices can run of these kernels; return how many kernels that is.

    What fails first in the order of devices, kernels and parameters is raised, whatever the
    threads do.
    """
    wanted = [(device, *found) for device in devices for found in _runnable(bundle, device, names)]
    count = threads or min(_MOST_THREADS, os.cpu_count() or 1)
    waiting: deque[tuple[Device, Specialisation, Future[Content]]] = deque()
    with ThreadPoolExecutor(count, "runtime_loader") as pool:
        read: dict[str, Future[Content]] = {}
        try:
            for device, spec, ref in wanted:
                if bundle.has_loaded(spec, device):
                    continue
                if spec.code_object not in read:
                    read[spec.code_object] = pool.submit(bundle.read, ref)
                waiting.append((device, spec, read[spec.code_object]))
                if len(waiting) > count * _AHEAD:
                    _load(bundle, *waiting.popleft())
            while waiting:
                _load(bundle, *waiting.popleft())
        finally:
            pool.shutdown(cancel_futures=True)
    return len(wanted)


def _load(bundle: Bundle, device: Device, spec: Specialisation, image: Future[Content]) -> None:
    bundle.load(spec, device, image.result)


def _runnable(
    bundle: Bundle, device: Device, names: Sequence[str]
) -> Iterator[tuple[Specialisation, Ref]]:
    candidates = [str(target) for target in device.target.candidates()]
    for name in names:
        for params, targets in bundle.variants(name):
            if any(target in targets for target in candidates):
                yield bundle.select(name, device, **params)
