"""Finding a HIP library, without one."""

from __future__ import annotations

import pytest

from runtime_loader import hip, hip_library
from runtime_loader.errors import HipError, HipUnavailableError


def test_an_override_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYC_HIP_LIBRARY", "/no/such/libamdhip64.so")
    with pytest.raises(HipUnavailableError, match=r"^FLYC_HIP_LIBRARY=/no/such/libamdhip64\.so "):
        hip_library.find_library()


def test_no_library_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("libno-such-hip.so.7", "libno-such-hip.so")
    monkeypatch.delenv("FLYC_HIP_LIBRARY", raising=False)
    monkeypatch.setattr(hip_library, "NAMES", names)
    with pytest.raises(HipUnavailableError) as caught:
        hip_library.find_library()
    lines = str(caught.value).splitlines()
    assert lines[0] == "no HIP runtime library could be loaded; tried:"
    for line, name in zip(lines[1:], names, strict=False):
        assert line.startswith(f"  {name}: ")
    assert "FLYC_HIP_LIBRARY" in lines[-1]


def test_a_library_that_is_not_hip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYC_HIP_LIBRARY", "libc.so.6")
    monkeypatch.setattr(hip, "_runtime", None)
    with pytest.raises(HipUnavailableError, match=r"libc\.so\.6 has no symbol hip.*not a HIP"):
        hip.runtime()


def test_a_failure_is_tried_again_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYC_HIP_LIBRARY", "/no/such/library")
    monkeypatch.setattr(hip, "_runtime", None)
    for _ in range(2):
        with pytest.raises(HipUnavailableError, match="no/such"):
            hip.runtime()


def test_the_text_of_hip_errors() -> None:
    error = HipError("hipInit", 100, "hipErrorNoDevice", "no device", "starting")
    assert str(error) == "hipInit failed with hipErrorNoDevice (100: no device) while starting"
    assert (error.call, error.code, error.name) == ("hipInit", 100, "hipErrorNoDevice")
