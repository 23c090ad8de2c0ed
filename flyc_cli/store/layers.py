"""The store of this machine, with one behind it that machines share."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from flyc_cli.store.files import Store
from flyc_cli.store.remote import RemoteCache


@dataclass(frozen=True)
class Layers:
    """A `Storage`: what is read is looked for here first and kept here; what is kept goes to both.

    `shared_first`: records are those of the remote, which others may have changed since.
    `fetched` gets the SHA-256 of each blob that came from the remote.
    """

    local: Store
    remote: RemoteCache
    shared_first: bool = False
    fetched: set[str] = field(default_factory=set)

    def blob(self, sha256: str) -> bytes | None:
        data = self.local.blob(sha256)
        if data is None:
            data = self.remote.blob(sha256)
            if data is not None:
                self.fetched.add(sha256)
                with contextlib.suppress(OSError):
                    self.local.put_blob(data)
        return data

    def put_blob(self, data: bytes) -> str:
        self.remote.put_blob(data)
        return self.local.put_blob(data)

    def record(self, key: str) -> bytes | None:
        if self.shared_first:
            return self.remote.record(key)
        value = self.local.record(key)
        if value is None:
            value = self.remote.record(key)
            if value is not None:
                with contextlib.suppress(OSError):
                    self.local.put_record(key, value)
        return value

    def put_record(self, key: str, value: bytes) -> None:
        self.remote.put_record(key, value)
        self.local.put_record(key, value)
