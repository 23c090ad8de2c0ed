"""Triton's dispatch of an RMSNorm with the arguments of ours, for a GPU that is the test device."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from triton.backends.amd.driver import HIPDriver
from triton.backends.compiler import GPUTarget


class TestDeviceDriver(HIPDriver):
    """Triton's own driver, which would ask torch which device and stream are current."""

    def __init__(self, target: str) -> None:
        super().__init__()
        self.target = target
        self.get_current_device = lambda: 0
        self.get_current_stream = lambda device: 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("hip", self.target, 64)


@triton.jit
def rmsnorm(x, weight, out, rows, eps, N: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    row = tl.program_id(0)
    columns = tl.arange(0, N)
    values = tl.load(x + row * N + columns).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values) / N + eps)
    tl.store(out + row * N + columns, values * scale * tl.load(weight + columns))


def dispatch(target: str, columns: int, library: str) -> Callable[..., Any]:
    """A function that launches on one stream: (x, weight, out, rows, eps)."""
    os.environ["TRITON_LIBHIP_PATH"] = library
    triton.runtime.driver.set_active(TestDeviceDriver(target))

    def launch(x: Any, weight: Any, out: Any, rows: int, eps: float) -> None:
        rmsnorm[(rows,)](x, weight, out, rows, eps, N=columns, num_warps=4)

    return launch
