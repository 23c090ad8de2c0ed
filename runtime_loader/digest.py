"""SHA-256. Little is hashed by the interpreter's own code, so that a start need not load OpenSSL;
much by OpenSSL, which is faster and releases the GIL.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# OpenSSL takes about as long to load as the other code takes for this many bytes.
_MUCH = 1 << 18


def _own_code() -> Callable[..., Any] | None:
    for module in ("_sha2", "_sha256"):  # since CPython 3.12, and before
        try:
            made: Callable[..., Any] = __import__(module).sha256
        except ImportError:
            continue
        return made
    return None


_sha256 = _own_code()


def sha256(*parts: bytes | memoryview) -> bytes:
    """The digest of these bytes, one part after the other."""
    make = _sha256
    if make is None or sum(map(len, parts)) >= _MUCH:
        import hashlib

        make = hashlib.sha256
    state = make()
    for part in parts:
        state.update(part)
    digest: bytes = state.digest()
    return digest
