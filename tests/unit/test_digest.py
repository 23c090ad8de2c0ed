"""Digests are hashlib's, whichever code makes them."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_loader import digest


@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(0, 600))
def test_digests_are_those_of_hashlib(parts: list[bytes], much: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digest, "_MUCH", much)
        views = [memoryview(part) for part in parts]
        assert digest.sha256(*views) == hashlib.sha256(b"".join(parts)).digest()


def test_an_interpreter_without_code_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert digest._sha256 is not None
    monkeypatch.setattr(digest, "_sha256", None)
    assert digest.sha256(b"a", b"b") == hashlib.sha256(b"ab").digest()
