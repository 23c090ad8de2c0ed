"""Launches that wait for their end, so that a fault is that of the very launch (`FLYC_SYNC=1`).

Kernels are then launched by the Python code. Captured launches do not wait: they do not run.
"""

from __future__ import annotations

from runtime_loader.capture import undisturbed
from runtime_loader.evaluate import ConcreteLaunch
from runtime_loader.hip import Hip


class SynchronousHip(Hip):
    """A HIP runtime whose launches wait for what ran before them, and then for their own end."""

    synchronous = True

    def launch_packed(
        self, function: int, size: tuple[int, ...], stream: int, kernarg: bytes, doing: str
    ) -> None:
        self._wait(stream, f"waiting for what ran before {doing}")
        super().launch_packed(function, size, stream, kernarg, doing)
        self._wait(stream, f"{doing}, until its end")

    def launch_with_attributes(
        self, function: int, launch: ConcreteLaunch, offsets: tuple[int, ...], doing: str
    ) -> None:
        self._wait(launch.stream, f"waiting for what ran before {doing}")
        super().launch_with_attributes(function, launch, offsets, doing)
        self._wait(launch.stream, f"{doing}, until its end")

    def _wait(self, stream: int, doing: str) -> None:
        if not self.is_captured(stream):
            undisturbed(self, lambda: self.call("hipStreamSynchronize", doing, stream))
