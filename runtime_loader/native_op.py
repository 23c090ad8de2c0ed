"""Operators that find the kernel of a call through the native extension.

The native code remembers what the Python code chose, by the same keys; whatever it does not
recognise or has not met goes there.
"""

from __future__ import annotations

from runtime_loader import _native
from runtime_loader.hip import Hip
from runtime_loader.op import Choices, Op


class NativeOp(_native.Selection, Op):
    """An `Op` whose calls find their kernels in C."""

    def _call_in_python(self, *args: object, **named: object) -> None:
        Op.__call__(self, *args, **named)

    def _made(self, choices: Choices, runtime: Hip) -> None:
        Op._made(self, choices, runtime)
        _, get_device, _, _ = runtime.launch_addresses(False)
        ordinal = choices.device.ordinal
        single = self._device is not None or runtime.single_device()
        try:
            self._prepare(choices.arguments, ordinal if single else -1, get_device)
            self._add_table(ordinal, choices.native_readers())
        except ValueError:  # it does not fit; or another thread was first
            return


_native.inherit_vectorcall(NativeOp)
