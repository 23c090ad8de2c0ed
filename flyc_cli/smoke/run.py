"""One specialisation of a bundle, launched repeatedly on a device, and what each launch took."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flyc_cli.inspect.bundle import open_bundle, variants
from flyc_cli.inspect.selection import AmbiguousError
from flyc_cli.smoke.inputs import Inputs
from flyc_cli.smoke.memory import Workspace
from runtime_loader import hip
from runtime_loader.evaluate import ConcreteLaunch
from runtime_loader.hip import Device
from runtime_loader.loader import load
from runtime_loader.specialisation import Specialisation, format_params


@dataclass(frozen=True)
class RunReport:
    """What was launched, with which arguments (name, text), and the seconds of each iteration."""

    spec: Specialisation
    device: Device
    arguments: tuple[tuple[str, str], ...]
    launches: tuple[ConcreteLaunch, ...]
    seconds: tuple[float, ...]

    @property
    def fastest(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def run(
    path: Path,
    kernel: str,
    given: Mapping[str, str],
    *,
    shapes: Mapping[str, str],
    values: Mapping[str, str],
    iterations: int,
    device: int | None = None,
) -> RunReport:
    """Launch one specialisation `iterations` times, after one launch that is not timed.

    Times are those between events around each call, on the device's clock; everything that is
    allocated is freed again. Raises `MissError`, `AmbiguousError`, `ArgumentError`,
    `HipUnavailableError`, `HipError`, and `BundleError`.
    """
    with open_bundle(path) as file:
        chosen = variants(file, kernel, given)
    if len(chosen) > 1:
        raise AmbiguousError([f"{kernel}({format_params(params)})" for params in chosen])
    runtime = hip.runtime()
    where = runtime.device(device)
    runtime.set_device(where.ordinal)
    with load(path) as bundle, Workspace(runtime) as workspace:
        loaded = bundle.kernel(kernel, device=where.ordinal, **chosen[0])
        spec = loaded.specialisation
        arguments = Inputs(workspace, shapes, values).make(spec.signature)
        call = [argument.value for argument in arguments]
        launches = loaded.launches(*call)
        doing = f"running {spec.label()} on {where}"
        loaded(*call)
        workspace.synchronise(doing)
        start, stop = workspace.event(), workspace.event()
        seconds = []
        for _ in range(iterations):
            workspace.record(start)
            loaded(*call)
            workspace.record(stop)
            seconds.append(workspace.seconds(start, stop, doing))
    made = tuple((argument.name, argument.text) for argument in arguments)
    return RunReport(spec, where, made, tuple(launches), tuple(seconds))
