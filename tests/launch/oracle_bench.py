"""Compares our launches with those of FlyDSL's own host launcher, on the HIP test device."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from flyc_cli.builder.supervisor import Built
from flyc_cli.bundle_writer import BundleContents, write_bundle
from runtime_loader import hip
from runtime_loader.errors import ArgumentError, HipError, PlanError
from runtime_loader.kernel import Kernel
from runtime_loader.loader import Bundle, load
from tests.hip_device.device import HipTestDevice, LaunchRecord
from tests.hip_device.oracle import FlyDslOracle, OracleDiedError, OracleHipError
from tests.launch.oracle_arguments import STREAM, Drawn

_ENTRY = re.compile(r"^  llvm\.func @([\w$.]+)\([^\n]*llvm\.emit_c_interface", re.MULTILINE)
# A process that FlyDSL's launcher killed takes seconds to replace, so one death has to do.
_MOST_DEATHS = 1


@dataclass(frozen=True)
class Subject:
    """One specialisation, loaded by us, with the host module that FlyDSL would run."""

    kernel: Kernel
    host: str
    entry: str


class OracleBench:
    """Our loader in this process and FlyDSL's runtime in another, each on the same test device.

    FLYC_HIP_LIBRARY has to name `library`.
    """

    def __init__(self, library: Path) -> None:
        self._device = HipTestDevice(library)
        self._oracle = FlyDslOracle(library, ["gfx942"])
        self._target = ""
        self._stream = 0
        self._oracle_stream = 0
        self._deaths = 0

    def close(self) -> None:
        self._oracle.close()
        self._device.reset()

    def subject(self, bundle: Bundle, built: Built) -> Subject:
        """Load a specialisation from its bundle, on a device of its target."""
        spec = built.specialisation
        self._configure(str(spec.target))
        (entry,) = _ENTRY.findall(built.host)
        return Subject(bundle.kernel(spec.kernel, **spec.params), built.host, entry)

    def check(self, subject: Subject, arguments: Sequence[Drawn]) -> int:
        """Launch on both sides and compare; the number of launches, 0 where both refuse.

        Where we refuse, FlyDSL must have been refused by HIP, died, or computed what LLVM leaves
        undefined.
        """
        values = [self._stream if d.value is STREAM else d.value for d in arguments]
        try:
            subject.kernel(*values)
        except (ArgumentError, HipError, PlanError) as error:
            self._device.take_launches()
            self._check_refusal(subject, arguments, error)
            return 0
        ours = _plain(self._device.take_launches(), self._stream)
        theirs = _plain(self._theirs(subject, arguments), self._oracle_stream)
        assert ours == theirs
        return len(ours)

    def _theirs(self, subject: Subject, arguments: Sequence[Drawn]) -> tuple[LaunchRecord, ...]:
        self._oracle_stream = self._oracle_stream or self._oracle.create_stream()
        stream = self._oracle_stream.to_bytes(8, "little")
        slots = [slot if isinstance(slot, bytes) else stream for d in arguments for slot in d.slots]
        return self._oracle.launches(subject.host, subject.entry, slots)

    def _check_refusal(
        self, subject: Subject, arguments: Sequence[Drawn], error: Exception
    ) -> None:
        if isinstance(error, PlanError):
            self._check_undefined(subject, arguments, error)
            return
        with pytest.raises(OracleHipError) as refused:
            self._theirs(subject, arguments)
        if isinstance(error, HipError):
            assert error.code == refused.value.code

    def _check_undefined(
        self, subject: Subject, arguments: Sequence[Drawn], error: PlanError
    ) -> None:
        """A division that LLVM leaves undefined ends FlyDSL's process on x86-64."""
        if "divided" not in str(error) or self._deaths == _MOST_DEATHS:
            return
        self._deaths += 1
        with pytest.raises(OracleDiedError):
            self._theirs(subject, arguments)
        self._oracle_stream = 0

    def _configure(self, target: str) -> None:
        if target == self._target:
            return
        self._target = target
        self._device.configure(target)
        hip._runtime = None
        self._stream = self._device.create("hipStreamCreate")
        self._oracle.configure([target])
        self._oracle_stream = 0


def bundle_of(directory: Path, built: Sequence[Built]) -> Bundle:
    """These specialisations as a bundle, opened."""
    contents = BundleContents(
        name="oracle",
        meta={},
        specialisations=[b.specialisation for b in built],
        code_objects={b.specialisation.code_object: b.code_object for b in built},
        parameter_order={b.request.kernel: tuple(b.request.params) for b in built},
    )
    return load(write_bundle(directory, contents).link)


def _plain(records: Sequence[LaunchRecord], stream: int) -> list[LaunchRecord]:
    """Without the handles and counters of the process."""
    own = {stream: 1, 0: 0}
    return [
        replace(record, sequence=0, module_id=0, stream=own[record.stream]) for record in records
    ]
