"""A cache that machines share: Bazel's HTTP protocol, as bazel-remote, nginx or a proxy serve it.

`/cas/<sha256>` holds blobs, `/ac/<key>` records. A server may insist that a record is an
ActionResult of Bazel's Remote Execution API, so it is one, whose standard output is the record
(https://github.com/bazelbuild/remote-apis, remote_execution.proto: field 5, `stdout_raw`).

Whoever may write to the cache decides what builds get: a blob is only taken if it has the content
that its name says, but a record says which blobs are meant.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import netrc
import os
import ssl
import threading
import time
import urllib.parse
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

from flyc_cli.store.files import checked_record, encoded_record
from runtime_loader.errors import FlycError

URL_VARIABLE = "FLYC_REMOTE_CACHE"
TOKEN_VARIABLE = "FLYC_REMOTE_CACHE_TOKEN"
USER_VARIABLE = "FLYC_REMOTE_CACHE_USER"
PASSWORD_VARIABLE = "FLYC_REMOTE_CACHE_PASSWORD"
CA_VARIABLE = "FLYC_REMOTE_CACHE_CA"
TIMEOUT_VARIABLE = "FLYC_REMOTE_CACHE_TIMEOUT"

MAX_BLOB = 1 << 28
MAX_RECORD = 1 << 24

_TIMEOUT = 10.0
_ATTEMPTS = 3
_FIRST_PAUSE = 0.1
_CHUNK = 1 << 16
_STDOUT_RAW = 5


class RemoteCacheError(FlycError):
    """The address or the credentials of a remote cache cannot be used as they are given."""


class RemoteCacheWarning(UserWarning):
    """The remote cache did not answer as one does; the build goes on without it."""


class _RefusedError(Exception):
    """An answer that will not change if it is asked for again."""


@dataclass(frozen=True)
class Remote:
    """Where a remote cache is. `read_only`: nothing is sent to it. Seconds for `timeout`."""

    url: str
    read_only: bool = False
    timeout: float = _TIMEOUT
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    ca_file: str | None = None

    @classmethod
    def at(cls, url: str, *, read_only: bool = False) -> Remote:
        """The cache at `url`, with what the environment says of it: `FLYC_REMOTE_CACHE_TOKEN`
        (bearer), `FLYC_REMOTE_CACHE_USER` and `_PASSWORD` or the netrc file (basic),
        `FLYC_REMOTE_CACHE_CA` (a PEM file), `FLYC_REMOTE_CACHE_TIMEOUT` (seconds). Raises
        `RemoteCacheError`."""
        parsed = urllib.parse.urlsplit(url)
        if parsed.scheme not in ("http", "https") or not parsed.hostname:
            raise RemoteCacheError(
                f"{_shown(url)} is no address of a remote cache: write http://host:port/path or "
                "https://…"
            )
        if parsed.username or parsed.password:
            raise RemoteCacheError(
                f"{_shown(url)}: an address is logged and seen by others, so put credentials into "
                f"{TOKEN_VARIABLE}, {USER_VARIABLE} and {PASSWORD_VARIABLE}, or a netrc file"
            )
        timeout = os.environ.get(TIMEOUT_VARIABLE, "")
        ca_file = os.environ.get(CA_VARIABLE) or None
        if ca_file is not None and not os.path.isfile(ca_file):  # noqa: PTH113
            raise RemoteCacheError(f"{CA_VARIABLE}={ca_file}: there is no such file")
        try:
            seconds = float(timeout) if timeout else _TIMEOUT
        except ValueError:
            raise RemoteCacheError(f"{TIMEOUT_VARIABLE}={timeout} is not a number") from None
        return cls(
            url.rstrip("/"), read_only, seconds, tuple(_credentials(parsed.hostname)), ca_file
        )


def _credentials(host: str) -> Iterator[tuple[str, str]]:
    token = os.environ.get(TOKEN_VARIABLE)
    if token:
        yield "Authorization", f"Bearer {token}"
        return
    user, password = os.environ.get(USER_VARIABLE), os.environ.get(PASSWORD_VARIABLE)
    if not user:
        with contextlib.suppress(OSError):
            try:
                known = netrc.netrc(os.environ.get("NETRC")).authenticators(host)
            except netrc.NetrcParseError as error:
                raise RemoteCacheError(f"the netrc file cannot be read: {error}") from None
            if known:
                user, _, password = known
    if user:
        pair = base64.b64encode(f"{user}:{password or ''}".encode()).decode()
        yield "Authorization", f"Basic {pair}"


class RemoteCache:
    """Talks to a remote cache, from any number of threads.

    A request is tried three times; when it fails all the same, that is one warning, and nothing
    more is asked of the cache.
    """

    def __init__(self, remote: Remote) -> None:
        self.remote = remote
        self._gone = False
        self._writable = not remote.read_only
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
        if status in (403, 405):
            with self._lock:
                told, self._writable = not self._writable, False
            if not told:
                self._warn(f"it takes nothing ({status}); what is built stays on this machine")

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
                    self._give_up(f"{method} fails {attempts_text(attempt)}: {_reason(error)}")
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
        connection.request(method, f"{base}/{path}", body, headers)
        answer = connection.getresponse()
        deadline = time.monotonic() + 10 * self.remote.timeout
        parts: list[bytes] = []
        size = 0
        while chunk := answer.read(_CHUNK):
            parts.append(chunk)
            size += len(chunk)
            if size > limit:
                raise _RefusedError(f"it answers with more than {limit} bytes")
            if time.monotonic() > deadline:
                raise TimeoutError("the answer does not end")
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


def attempts_text(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _shown(url: str) -> str:
    """An address without what may be a password."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


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
