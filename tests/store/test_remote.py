"""The remote cache's client against servers that keep to the protocol, and ones that do not."""

from __future__ import annotations

import hashlib
import pickle
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyc_cli.store import remote as remote_module
from flyc_cli.store.files import Store, encoded_record
from flyc_cli.store.layers import Layers
from flyc_cli.store.remote import RemoteCache, RemoteCacheWarning, _standard_output
from flyc_cli.store.remote_settings import Remote

KEY = hashlib.sha256(b"a key").hexdigest()
DATA = b"some bytes" * 1000
SHA = hashlib.sha256(DATA).hexdigest()


class Cache(BaseHTTPRequestHandler):
    """A server as bazel-remote is; subclasses answer differently."""

    protocol_version = "HTTP/1.1"
    held: dict[str, bytes]
    asked: list[str]

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.asked.append(f"GET {self.path}")
        found = self.held.get(self.path)
        self.answer(404) if found is None else self.answer(200, found)

    def do_PUT(self) -> None:
        self.asked.append(f"PUT {self.path}")
        self.held[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(handler: type[Cache]) -> Iterator[tuple[str, type[Cache]]]:
    own = type("Own", (handler,), {"held": {}, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), own)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/cache", own
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TOKEN", "USER", "PASSWORD", "CA", "TIMEOUT"):
        monkeypatch.delenv(f"FLYC_REMOTE_CACHE_{name}", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setattr(remote_module, "_FIRST_PAUSE", 0.001)


def test_blobs_and_records_come_back() -> None:
    with serving(Cache) as (url, server):
        cache = RemoteCache(Remote.at(url + "/"))
        assert cache.blob(SHA) is None
        assert cache.record(KEY) is None
        cache.put_blob(DATA)
        cache.put_record(KEY, b"value")
        other = pickle.loads(pickle.dumps(cache))
        assert other.blob(SHA) == DATA
        assert other.record(KEY) == b"value"
        assert set(server.held) == {f"/cache/cas/{SHA}", f"/cache/ac/{KEY}"}
        # An ActionResult (remote_execution.proto) whose stdout_raw, field 5, is the record.
        held = encoded_record(KEY, b"value")
        assert server.held[f"/cache/ac/{KEY}"] == b"\x2a" + bytes([len(held) & 127 | 128, 1]) + held


def test_one_connection_serves_many_requests() -> None:
    connections: list[object] = []

    class Counting(Cache):
        def setup(self) -> None:
            connections.append(self)
            super().setup()

    with serving(Counting) as (url, _):
        cache = RemoteCache(Remote.at(url))
        for number in range(20):
            cache.put_record(hashlib.sha256(bytes([number])).hexdigest(), b"")
    assert len(connections) == 1


def test_nothing_is_sent_to_a_cache_that_is_only_read() -> None:
    with serving(Cache) as (url, server):
        cache = RemoteCache(Remote.at(url, read_only=True))
        cache.put_blob(DATA)
        cache.put_record(KEY, b"value")
        assert cache.blob(SHA) is None
        assert server.asked == [f"GET /cache/cas/{SHA}"]


def answering(status: int, body: bytes = b"", **headers: str) -> type[Cache]:
    class Answering(Cache):
        def do_GET(self) -> None:
            self.asked.append("GET")
            self.answer(status, body, **headers)

    return Answering


class Slow(Cache):
    def do_GET(self) -> None:
        self.asked.append("GET")
        time.sleep(0.6)


class Resets(Cache):
    def do_GET(self) -> None:
        self.asked.append("GET")
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True


class Truncates(Cache):
    def do_GET(self) -> None:
        self.asked.append("GET")
        self.send_response(200)
        self.send_header("Content-Length", str(len(DATA)))
        self.end_headers()
        self.wfile.write(DATA[:100])
        self.close_connection = True


class Endless(Cache):
    def do_GET(self) -> None:
        self.asked.append("GET")
        self.send_response(200)
        self.end_headers()
        self.close_connection = True
        try:
            while True:
                self.wfile.write(bytes(1 << 16))
        except OSError:
            pass


BAD = [
    (answering(200, b"other bytes"), "other bytes than those of", 1),
    (answering(200, DATA, Content_Type="text/html"), "a web page", 1),
    (answering(302, Location="http://example.invalid/"), "a redirection", 1),
    (answering(401), "other credentials", 1),
    (answering(403), "other credentials", 1),
    (answering(500), "GET fails 3 times: status 500", 3),
    (answering(503), "GET fails 3 times", 3),
    (answering(429), "GET fails 3 times: status 429", 3),
    (Slow, "GET fails 3 times", 3),
    (Resets, "GET fails 3 times", 3),
    (Truncates, "GET fails 3 times: an answer ends 9900 bytes early", 3),
    (Endless, "answers with more than", 1),
]


@pytest.mark.parametrize(("handler", "message", "requests"), BAD)
def test_a_server_that_misbehaves_is_told_once_and_asked_no_more(
    handler: type[Cache], message: str, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYC_REMOTE_CACHE_TIMEOUT", "0.2")
    monkeypatch.setattr(remote_module, "MAX_BLOB", 1 << 20)
    with serving(handler) as (url, server):
        cache = RemoteCache(Remote.at(url))
        with pytest.warns(RemoteCacheWarning, match=f"^remote cache {url}: .*{message}"):
            assert cache.blob(SHA) is None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert cache.blob(SHA) is None
            assert cache.record(KEY) is None
            cache.put_blob(DATA)
        assert len(server.asked) == requests


def dripping(head: bytes, drops: bytes) -> type[Cache]:
    """Answers a byte at a time, and in the end well."""

    class Drips(Cache):
        def do_GET(self) -> None:
            self.asked.append("GET")
            self.close_connection = True
            try:
                self.wfile.write(head)
                for byte in drops:
                    self.wfile.write(bytes([byte]))
                    time.sleep(0.005)
                self.wfile.write(b"\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            except OSError:
                pass

    return Drips


LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 3000\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
DRIPS = [
    (b"HTTP/1.1 ", bytes(3000)),
    (b"HTTP/1.1 200 OK\r\nX-Long: ", b"x" * 3000),
    (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 150),
    (LENGTH, bytes(3000)),
    (b"HTTP/1.1 200 OK\r\n\r\n", bytes(3000)),
    (CHUNKED + b"bb8\r\n", bytes(3000)),
    (CHUNKED, b"1\r\nx\r\n" * 600),
    (CHUNKED + b"0\r\nX-Long: ", b"x" * 3000),
]


@pytest.mark.parametrize(("head", "drops"), DRIPS)
def test_a_server_that_drips_holds_nothing_up(
    head: bytes, drops: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYC_REMOTE_CACHE_TIMEOUT", "0.05")
    monkeypatch.setattr(remote_module, "_DEADLINE", 4)
    with serving(dripping(head, drops)) as (url, server):
        cache = RemoteCache(Remote.at(url))
        with pytest.warns(RemoteCacheWarning, match="GET fails 3 times: it takes too long"):
            assert cache.blob(SHA) is None
        assert len(server.asked) == 3


def test_a_server_that_reads_slowly_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sips(Cache):
        def do_PUT(self) -> None:
            self.asked.append("PUT")
            left = int(self.headers["Content-Length"])
            while left and (got := self.connection.recv(min(left, 1 << 16))):
                left -= len(got)
                time.sleep(0.02)
            self.answer(200)

    monkeypatch.setenv("FLYC_REMOTE_CACHE_TIMEOUT", "0.1")
    monkeypatch.setattr(remote_module, "_DEADLINE", 2)
    with serving(Sips) as (url, server):
        cache = RemoteCache(Remote.at(url))
        with pytest.warns(RemoteCacheWarning, match="PUT fails 3 times: (it takes too long|timed)"):
            cache.put_blob(bytes(1 << 25))
        assert len(server.asked) == 3


def test_a_server_that_is_not_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        cache = RemoteCache(Remote.at(url))
        with pytest.warns(RemoteCacheWarning, match="Connection refused; the build goes on"):
            assert cache.record(KEY) is None


def test_a_failure_that_passes_is_no_failure() -> None:
    class Flaky(Cache):
        def do_GET(self) -> None:
            if len(self.asked) < 2:
                self.asked.append("GET")
                self.answer(503)
            else:
                super().do_GET()

    with serving(Flaky) as (url, server), warnings.catch_warnings():
        warnings.simplefilter("error")
        server.held[f"/cache/cas/{SHA}"] = DATA
        cache = RemoteCache(Remote.at(url))
        assert cache.blob(SHA) == DATA
        cache.close()


@pytest.mark.parametrize("status", [403, 405])
def test_a_server_that_takes_nothing_is_still_read(status: int) -> None:
    class ReadOnly(Cache):
        def do_PUT(self) -> None:
            self.asked.append("PUT")
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(status)

    with serving(ReadOnly) as (url, server):
        server.held[f"/cache/cas/{SHA}"] = DATA
        cache = RemoteCache(Remote.at(url))
        with pytest.warns(RemoteCacheWarning, match="it takes nothing"):
            cache.put_blob(DATA)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cache.put_record(KEY, b"value")
            assert cache.blob(SHA) == DATA
        assert server.asked == ["PUT", f"GET /cache/cas/{SHA}"]


@pytest.mark.parametrize("close", [False, True])
@pytest.mark.parametrize(
    ("status", "message"),
    [
        (413, "it does not take 33554432 bytes .*nginx: client_max_body_size"),
        (400, "it does not take all .cas/.*: status 400"),
        (404, "it does not take all"),
        (409, "it does not take all"),
    ],
)
def test_what_a_server_does_not_take_is_told_once(status: int, message: str, close: bool) -> None:
    """Also when it answers before it has read all."""
    large = bytes(1 << 25)

    class Choosy(Cache):
        def do_PUT(self) -> None:
            size = int(self.headers["Content-Length"])
            if size < len(large):
                super().do_PUT()
                return
            if not close:
                self.rfile.read(size)
            self.close_connection = close
            self.answer(status)

    with serving(Choosy) as (url, _):
        cache = RemoteCache(Remote.at(url))
        with pytest.warns(RemoteCacheWarning, match=message):
            cache.put_blob(large)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cache.put_blob(DATA)
            cache.put_blob(large)
        assert cache.blob(SHA) == DATA


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"plain text",
        b"\x2a\x05ab",
        b"\x2a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x2a\x03abc",
        encoded_record(KEY, b"value"),
        b"\x2a" + bytes([len(encoded_record(SHA, b"v"))]) + encoded_record(SHA, b"v"),
    ],
)
def test_a_record_that_is_none_counts_as_absent(body: bytes) -> None:
    with serving(answering(200, body)) as (url, _):
        assert RemoteCache(Remote.at(url)).record(KEY) is None


@given(st.binary(max_size=60))
def test_any_bytes_are_an_action_result_or_none(data: bytes) -> None:
    found = _standard_output(data)
    assert found is None or found in data


def test_fields_that_a_server_adds_are_passed_over() -> None:
    worker = b"\x4a\x08worker-1"  # execution_metadata, field 9
    exit_code = b"\x20\x00"
    assert _standard_output(exit_code + worker + b"\x2a\x03abc" + worker) == b"abc"


def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **given: str) -> str:
    seen: list[str] = []

    class Listening(Cache):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization") or "")
            self.answer(404)

    for name, value in given.items():
        if name == "netrc":
            (tmp_path / "netrc").write_text(value)
        else:
            monkeypatch.setenv(f"FLYC_REMOTE_CACHE_{name}", value)
    with serving(Listening) as (url, _):
        remote = Remote.at(url)
        RemoteCache(remote).record(KEY)
    for secret in given.values():
        assert secret not in repr(remote)
    return seen[0]


def test_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    entry = "machine 127.0.0.1 login me password sesame"
    assert credentials(monkeypatch, tmp_path) == ""
    assert credentials(monkeypatch, tmp_path, netrc=entry) == "Basic bWU6c2VzYW1l"
    basic = credentials(monkeypatch, tmp_path, netrc=entry, USER="some", PASSWORD="body")
    assert basic == "Basic c29tZTpib2R5"
    assert credentials(monkeypatch, tmp_path, USER="some", TOKEN="t0ken") == "Bearer t0ken"


def layers(url: str, root: Path) -> tuple[Layers, Layers]:
    cache = RemoteCache(Remote.at(url))
    return Layers(Store(root), cache), Layers(Store(root), cache, shared_first=True)


def test_layers_keep_here_what_they_find_there(tmp_path: Path) -> None:
    with serving(Cache) as (url, server):
        first, _ = layers(url, tmp_path / "a")
        first.put_blob(DATA)
        first.put_record(KEY, b"one")
        second, shared = layers(url, tmp_path / "b")
        assert second.blob(SHA) == DATA
        assert second.record(KEY) == b"one"
        server.asked.clear()
        assert second.blob(SHA) == DATA
        assert second.record(KEY) == b"one"
        assert server.asked == []
        first.put_record(KEY, b"two")
        assert (second.record(KEY), shared.record(KEY)) == (b"one", b"two")
