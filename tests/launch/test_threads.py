"""Threads that launch on several devices at once: nothing is lost, doubled or crossed.

Every thread chooses devices, kernels, streams and ways of calling at random; each call has an
address of its own. What the test device recorded must be what the threads asked for, and a call's
two launches in their order. `FLYC_STRESS_SECONDS` sets how long (`make test-threads`: a minute).
"""

from __future__ import annotations

import os
import random
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import runtime_loader as rt
from runtime_loader import hip
from runtime_loader.kernel import Kernel
from tests.hip_device.device import HipTestDevice
from tests.launch.samples import specialisation
from tests.launch.test_launch import Array

pytestmark = [pytest.mark.device, pytest.mark.compile]

SECONDS = float(os.environ.get("FLYC_STRESS_SECONDS", "2"))
THREADS, CALLS = 32, 200
COLUMNS = (32, 64, 128)
CODE_OF_DEVICE = ("gfx942", "gfx942", "gfx1100", "gfx1250")

# Kernel, device, stream and arguments of a launch.
_Launched = tuple[str, int, int, bytes]


@pytest.fixture(scope="session")
def many(make_bundle: Callable[..., Path], code_objects: dict[str, bytes]) -> Path:
    return make_bundle(
        *(
            specialisation(target, code_objects[target], N=columns)
            for target in dict.fromkeys(CODE_OF_DEVICE)
            for columns in COLUMNS
        )
    )


class Worker(threading.Thread):
    """Makes `CALLS` calls; `launched` is what they must have launched, `problems` what failed.

    `op` is an operator that all threads share.
    """

    def __init__(
        self, bundle: rt.Bundle, op: rt.Op, streams: list[int], number: int, seed: int
    ) -> None:
        super().__init__()
        self._bundle = bundle
        self._op = op
        self._streams = streams
        self._number = number
        self._random = random.Random(f"{seed} {number}")
        self._kernels: dict[tuple[int, int], Kernel] = {}
        self.launched: list[_Launched] = []
        self.problems: list[BaseException] = []

    def run(self) -> None:
        try:
            for call in range(CALLS):
                self._call((self._number * CALLS + call + 1) * 4096)
        except BaseException as error:
            self.problems.append(error)

    def _call(self, address: int) -> None:
        pick = self._random
        ordinal, columns = pick.randrange(len(CODE_OF_DEVICE)), pick.choice(COLUMNS)
        hip.runtime().set_device(ordinal)
        kernel = self._kernels.get((ordinal, columns))
        if kernel is None or pick.random() < 0.1:
            named = pick.choice(({}, {"device": ordinal}))
            kernel = self._bundle.kernel("scale", N=columns, **named)
            self._kernels[ordinal, columns] = kernel
        rows, parts, factor = pick.randrange(1, 99), pick.randrange(1, 9), float(pick.randrange(99))
        stream = pick.choice((0, self._streams[ordinal]))
        if pick.random() < 0.05:
            with pytest.raises(rt.ArgumentError):
                kernel(Array(address, (rows, columns + 1), ordinal), parts, factor, stream)
        x = Array(address, (rows, columns), ordinal)
        self._launch(kernel, x, parts, factor, stream)
        self.launched += [
            ("scale", ordinal, stream, struct.pack("<Qif", address, rows, factor)),
            ("pair", ordinal, stream, struct.pack("<Qiq", address, rows, rows)),
        ]

    def _launch(self, kernel: Kernel, x: Array, parts: int, factor: float, stream: int) -> None:
        way = self._random.randrange(5)
        if way == 0:
            kernel(x, parts, factor, stream)
        elif way == 1:
            kernel(stream=stream, factor=factor, x=x, parts=parts)
        elif way == 2:
            kernel.bind(x, factor=factor)(parts, stream)
        elif way == 3:
            kernel.bind(stream=stream).each([(x, parts, factor)])
        else:
            self._op(x, parts, factor=factor, stream=stream)


def test_threads_devices_and_kernels_at_random(device: HipTestDevice, many: Path) -> None:
    bundle = rt.load(many)
    streams = []
    for ordinal in range(len(CODE_OF_DEVICE)):
        device.check("hipSetDevice", ordinal)
        streams.append(device.create("hipStreamCreateWithFlags", 1))
    end = time.monotonic() + SECONDS
    seed = total = 0
    while time.monotonic() < end or seed == 0:
        op = bundle.op("scale")
        workers = [Worker(bundle, op, streams, number, seed) for number in range(THREADS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert [problem for worker in workers for problem in worker.problems] == []
        asked = Counter(launch for worker in workers for launch in worker.launched)
        records = device.take_launches()
        seen = Counter((r.kernel, r.device, r.stream, r.kernarg) for r in records)
        assert seen == asked
        of_call: dict[bytes, list[str]] = {}
        for record in records:
            of_call.setdefault(record.kernarg[:8], []).append(record.kernel)
        assert set(map(tuple, of_call.values())) == {("scale", "pair")}
        total += len(records)
        seed += 1
    print(f"{THREADS} threads, {seed} rounds, {total} launches in {SECONDS} s")
    assert device.calls()["hipModuleLoadData"] == device.live_modules() == len(CODE_OF_DEVICE)
