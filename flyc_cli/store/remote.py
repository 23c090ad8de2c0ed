"""A cache that machines share: Bazel's HTTP protocol, as bazel-remote, nginx or a proxy serve it.

`/cas/<sha256>` holds blobs, `/ac/<key>` records. A server may insist that a record is an
ActionResult of Bazel's Remote Execution API, so it is one, whose standard output is the record
(https://github.com/bazelbuild/remote-apis, remote_execution.proto: field 5, `stdout_raw`).

Whoever may write to the cache decides what builds get: a blob is only taken if it has the content
that its name says, but a record says which blobs are meant.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import io
import os
import ssl
import threading
import time
import urllib.parse
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from flyc_cli.store.files import checked_record, encoded_record
from flyc_cli.store.remote_settings import PASSWORD_VARIABLE, TOKEN_VARIABLE, USER_VARIABLE, Remote

MAX_BLOB = 1 << 28
MAX_RECORD = 1 << 24

_ATTEMPTS = 3
# What a whole request may take, in timeouts; each wait within it may take one.
_DEADLINE = 10
_FIRST_PAUSE = 0.1
_CHUNK = 1 << 16
_STDOUT_RAW = 5


class RemoteCacheWarning(UserWarning):
    """The remote cache did not answer as one does; the build goes on without it."""


class _RefusedError(Exception):
    """An answer that will not change if it is asked for again."""


class RemoteCache:
    """Talks to a remote cache, from any number of threads.

    A request is tried three times; when it fails all the same, that is one warning, and nothing
    more is asked of the cache.
    """

    def __init__(self, remote: Remote) -> None:
        self.remote = remote
        self._gone = False
        self._writable = not remote.read_only
        self._refused: set[int] = set()
        self._lock = threading.Lock()
        self._local = threading.local()

    def blob(self, sha256: str) -> bytes | None:
        """The bytes with this SHA-256, checked; None if the cache does not have them."""
        data = self._get(f"cas/{sha256}", MAX_BLOB)
        if data is not None and hashlib.sha256(data).hexdigest() != sha256:
            self._give_up(f"it answers with other bytes than those of {sha256}")
            return None
        return data

    def put_blob(self, data: bytes) -> None:
        self._put(f"cas/{hashlib.sha256(data).hexdigest()}", data)

    def record(self, key: str) -> bytes | None:
        """The value kept under `key`; None if there is none that is sound."""
        data = self._get(f"ac/{key}", MAX_RECORD)
        held = None if data is None else _standard_output(data)
        return None if held is None else checked_record(key, held)

    def put_record(self, key: str, value: bytes) -> None:
        held = encoded_record(key, value)
        self._put(f"ac/{key}", bytes([_STDOUT_RAW << 3 | 2]) + _varint(len(held)) + held)

    def _get(self, path: str, limit: int) -> bytes | None:
        if self._gone:
            return None
        status, data = self._ask("GET", path, None, limit)
        return data if status == 200 else None

    def _put(self, path: str, data: bytes) -> None:
        if self._gone or not self._writable:
            return
        status, _ = self._ask("PUT", path, data, _CHUNK)
        if status < 400:
            return
        with self._lock:
            told = status in self._refused
            self._refused.add(status)
        if status in (403, 405):
            self._writable = False
            why = f"it takes nothing ({status}); what is built stays on this machine"
        elif status == 413:
            why = (
                f"it does not take {len(data)} bytes ({status}), so what is large stays on this "
                "machine; let it take more (nginx: client_max_body_size 256m)"
            )
        else:
            why = f"it does not take all ({path}: status {status}); the build goes on"
        if not told:
            self._warn(why)

    def _ask(self, method: str, path: str, body: bytes | None, limit: int) -> tuple[int, bytes]:
        """The status and content of an answer; (0, b"") when the cache is given up."""
        pause = _FIRST_PAUSE
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._once(method, path, body, limit)
            except _RefusedError as error:
                self._give_up(str(error))
                return 0, b""
            except (OSError, http.client.HTTPException) as error:
                self._forget_connection()
                if attempt == _ATTEMPTS:
                    self._give_up(f"{method} fails {_ATTEMPTS} times: {_reason(error)}")
                    return 0, b""
            time.sleep(pause)
            pause *= 4
        raise AssertionError

    def _once(self, method: str, path: str, body: bytes | None, limit: int) -> tuple[int, bytes]:
        connection = self._connection()
        base = urllib.parse.urlsplit(self.remote.url).path
        headers = {"User-Agent": "flyc", **dict(self.remote.headers)}
        if body is not None:
            headers["Content-Type"] = "application/octet-stream"
            headers["Content-Length"] = str(len(body))
        deadline = time.monotonic() + _DEADLINE * self.remote.timeout
        connection.response_class = _answers_until(deadline)  # type: ignore[assignment]
        with contextlib.suppress(BrokenPipeError):  # the answer says why it takes no more
            pieces = None if body is None else _pieces(body, deadline)
            connection.request(method, f"{base}/{path}", pieces, headers)
        answer = connection.getresponse()
        parts: list[bytes] = []
        size = 0
        while chunk := answer.read1(_CHUNK):
            parts.append(chunk)
            size += len(chunk)
            if size > limit:
                raise _RefusedError(f"it answers with more than {limit} bytes")
        answer.close()
        if answer.length:
            raise http.client.HTTPException(f"an answer ends {answer.length} bytes early")
        if answer.status >= 500 or answer.status == 429:
            raise http.client.HTTPException(f"status {answer.status}")
        if answer.status == 401 or (method == "GET" and answer.status == 403):
            raise _RefusedError(
                f"it wants other credentials (status {answer.status}); set {TOKEN_VARIABLE}, or "
                f"{USER_VARIABLE} and {PASSWORD_VARIABLE}"
            )
        if 300 <= answer.status < 400:
            raise _RefusedError(f"it answers with a redirection (status {answer.status})")
        if answer.status == 200 and "html" in (answer.getheader("Content-Type") or ""):
            raise _RefusedError("it answers with a web page: is this the address of a cache?")
        return answer.status, b"".join(parts)

    def _connection(self) -> http.client.HTTPConnection:
        """This thread's, in this process."""
        pid = os.getpid()
        if getattr(self._local, "pid", None) != pid:
            parsed = urllib.parse.urlsplit(self.remote.url)
            assert parsed.hostname is not None
            if parsed.scheme == "https":
                context = ssl.create_default_context(cafile=self.remote.ca_file)
                self._local.connection = http.client.HTTPSConnection(
                    parsed.hostname, parsed.port, timeout=self.remote.timeout, context=context
                )
            else:
                self._local.connection = http.client.HTTPConnection(
                    parsed.hostname, parsed.port, timeout=self.remote.timeout
                )
            self._local.pid = pid
        connection: http.client.HTTPConnection = self._local.connection
        return connection

    def close(self) -> None:
        """Close this thread's connection."""
        self._forget_connection()

    def _forget_connection(self) -> None:
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()

    def _give_up(self, why: str) -> None:
        with self._lock:
            told, self._gone = self._gone, True
        if not told:
            self._warn(f"{why}; the build goes on without it")

    def _warn(self, text: str) -> None:
        warnings.warn(f"remote cache {self.remote.url}: {text}", RemoteCacheWarning, stacklevel=2)

    def __reduce__(self) -> tuple[type[RemoteCache], tuple[Remote]]:
        return RemoteCache, (self.remote,)


def _check_deadline(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError("it takes too long")


def _pieces(body: bytes, deadline: float) -> Iterator[bytes]:
    for at in range(0, len(body), _CHUNK):
        _check_deadline(deadline)
        yield body[at : at + _CHUNK]


class _ReaderUntil(io.RawIOBase):
    """Reads from a socket until a deadline, however little comes at a time."""

    def __init__(self, raw: io.RawIOBase, deadline: float) -> None:
        self._raw = raw
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        _check_deadline(self._deadline)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _answers_until(deadline: float) -> Callable[..., http.client.HTTPResponse]:
    """What makes answers whose status, headers and content must all be there by the deadline."""

    def answer(*arguments: Any, **options: Any) -> http.client.HTTPResponse:
        made = http.client.HTTPResponse(*arguments, **options)
        made.fp = io.BufferedReader(_ReaderUntil(made.fp.detach(), deadline))
        return made

    return answer


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _standard_output(message: bytes) -> bytes | None:
    """Field 5 of a protocol buffer; None if there is none, or it is none.

    A server may add fields (bazel-remote: which worker it was).
    """
    at = 0
    try:
        while at < len(message):
            tag, at = _read_varint(message, at)
            kind = tag & 7
            if kind == 2:
                size, at = _read_varint(message, at)
                if at + size > len(message):
                    return None
                if tag >> 3 == _STDOUT_RAW:
                    return message[at : at + size]
                at += size
            elif kind == 0:
                _, at = _read_varint(message, at)
            elif kind in (1, 5):
                at += 8 if kind == 1 else 4
            else:
                return None
    except IndexError:
        return None
    return None


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
        if shift > 63:
            raise IndexError(at)
