"""A captured call: the host code that a manifest names, with its example arguments and device."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from flyc_cli.frontends import flydsl_adapter as adapter
from flyc_cli.frontends.errors import InputError
from flyc_cli.frontends.sources import python_values
from flyc_cli.manifest.model import Request
from runtime_loader.signature import StreamForm, TensorForm


def described_torch(request: Request) -> AbstractContextManager[None]:
    """What lets kernel modules that import torch ask it for the device while they are traced."""
    device = request.source.device
    if device is None or "torch" not in sys.modules:
        return nullcontext()
    from flyc_cli.frontends.described_device import Description, described_answers

    return described_answers(Description(request.target, **vars(device)))


def captured_call(request: Request) -> Callable[[], object]:
    """What runs the captured function once, imports included, on the described device.

    The module is imported there too, since host code asks for the device at import time.
    """
    try:
        # Recording replaces what tuned kernels call, so it must be there before they are.
        import flydsl.autotune  # noqa: F401

        from flyc_cli.frontends.described_device import (
            Description,
            Stream,
            described_device,
            example_tensor,
        )
    except ModuleNotFoundError as error:
        raise InputError(
            f"capturing {request.source} needs {error.name}, which is not installed: "
            "pip install torch (the CPU build is enough)"
        ) from None
    source = request.source
    assert source.device is not None
    device = Description(request.target, **vars(source.device))

    def run() -> object:
        with described_device(device, data=source.host_data):
            function = adapter.import_object(source.module, source.qualname)
            if not callable(function):
                raise InputError(f"{source} is {type(function).__name__}, not a function")
            arguments: dict[str, Any] = {**python_values(source.kwargs), **source.examples}
            for form in request.args:
                if isinstance(form, TensorForm):
                    arguments[form.name] = example_tensor(form)
                elif isinstance(form, StreamForm):
                    arguments[form.name] = Stream()
            return function(**arguments)

    return run
