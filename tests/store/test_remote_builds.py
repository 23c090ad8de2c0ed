"""Builds with a remote cache: a real nginx with WebDAV, and machines that share nothing else."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from flyc_cli.builder.build import Workers, build
from flyc_cli.builder.outcomes import COMPILED, SAME_INPUT, SHARED
from flyc_cli.store.files import Store
from flyc_cli.store.remote import RemoteCache, RemoteCacheWarning
from flyc_cli.store.remote_settings import Remote
from tests.store import project
from tests.store.test_remote import DATA, SHA, plain_environment  # noqa: F401

pytestmark = pytest.mark.compile

NGINX = shutil.which("nginx") or "/usr/sbin/nginx"
CONFIGURATION = """
daemon off; worker_processes 1; user root; pid {root}/pid; error_log {root}/errors;
events {{}}
http {{
  access_log {root}/access; client_max_body_size 0; client_body_temp_path {root}/bodies;
  server {{
    listen 127.0.0.1:{plain};
    listen 127.0.0.1:{tls} ssl;
    ssl_certificate {root}/server.pem; ssl_certificate_key {root}/server.key;
    location /cache/ {{ alias {root}/held/; dav_methods PUT; create_full_put_path on; }}
    location /read/ {{ alias {root}/held/; }}
    location /locked/ {{
      alias {root}/held/; dav_methods PUT; create_full_put_path on;
      auth_basic cache; auth_basic_user_file {root}/users;
    }}
  }}
}}
"""


class Nginx:
    """A server with a plain and a TLS port; `root` is its directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        with socket.socket() as one, socket.socket() as two:
            for held in (one, two):
                held.bind(("127.0.0.1", 0))
            self.plain, self.tls = one.getsockname()[1], two.getsockname()[1]
        _certificates(root)
        (root / "users").write_text("me:{PLAIN}sesame\n")
        (root / "held").mkdir()
        (root / "nginx.conf").write_text(
            CONFIGURATION.format(root=root, plain=self.plain, tls=self.tls)
        )
        command = [NGINX, "-p", str(root), "-c", str(root / "nginx.conf")]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.tls)) == 0:
                    return
            assert self.process.poll() is None, self.process.communicate()[1]
            time.sleep(0.05)
        raise AssertionError("nginx does not listen")

    def url(self, location: str = "cache", *, tls: bool = False) -> str:
        scheme, port = ("https", self.tls) if tls else ("http", self.plain)
        return f"{scheme}://127.0.0.1:{port}/{location}"

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate()


def _certificates(root: Path) -> None:
    """An authority of our own, and a certificate of it for the loopback address."""
    (root / "names").write_text("subjectAltName=IP:127.0.0.1")
    key = ["-newkey", "rsa:2048", "-nodes", "-days", "2"]
    for command in (
        ["req", "-x509", *key, "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem"],
        ["req", *key[:3], "-subj", "/CN=127.0.0.1", "-keyout", "server.key", "-out", "server.csr"],
        ["x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2",
         "-CAcreateserial", "-extfile", "names", "-out", "server.pem"],
    ):  # fmt: skip
        subprocess.run(["openssl", *command], cwd=root, check=True, capture_output=True)


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    if not os.access(NGINX, os.X_OK):
        assert not os.environ.get("FLYC_REQUIRE_NGINX"), "nginx is not installed"
        pytest.skip("nginx is not installed")
    server = Nginx(tmp_path_factory.mktemp("nginx"))
    yield server
    server.stop()


def test_it_speaks_the_protocol(nginx: Nginx) -> None:
    cache = RemoteCache(Remote.at(nginx.url()))
    key = "ab" * 32
    assert (cache.blob(SHA), cache.record(key)) == (None, None)
    cache.put_blob(DATA)
    cache.put_record(key, b"one")
    cache.put_record(key, b"two")
    assert (cache.blob(SHA), cache.record(key)) == (DATA, b"two")
    assert (nginx.root / "held" / "cas" / SHA).read_bytes() == DATA


def test_credentials_and_certificates(nginx: Nginx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYC_REMOTE_CACHE_CA", str(nginx.root / "ca.pem"))
    with pytest.warns(RemoteCacheWarning, match="other credentials"):
        assert RemoteCache(Remote.at(nginx.url("locked", tls=True))).blob(SHA) is None
    monkeypatch.setenv("FLYC_REMOTE_CACHE_USER", "me")
    monkeypatch.setenv("FLYC_REMOTE_CACHE_PASSWORD", "sesame")
    cache = RemoteCache(Remote.at(nginx.url("locked", tls=True)))
    cache.put_blob(DATA)
    assert cache.blob(SHA) == DATA
    monkeypatch.delenv("FLYC_REMOTE_CACHE_CA")
    with pytest.warns(RemoteCacheWarning, match="CERTIFICATE_VERIFY_FAILED"):
        assert RemoteCache(Remote.at(nginx.url("locked", tls=True))).blob(SHA) is None


def test_a_place_that_can_only_be_read(nginx: Nginx) -> None:
    cache = RemoteCache(Remote.at(nginx.url("read")))
    with pytest.warns(RemoteCacheWarning, match=r"it takes nothing \(405\)"):
        cache.put_blob(b"new")


def on_machine(
    manifest: Path, root: Path, remote: Remote | None
) -> tuple[dict[str, str], dict[str, bytes]]:
    """A build with a store of its own: where each came from, and its code object."""
    built = project.build(manifest, Store(root), remote=remote)
    return project.origins(built), {name: one.code_object for name, one in built.items()}


def test_what_one_machine_built_another_takes(nginx: Nginx, tmp_path: Path) -> None:
    remote = Remote.at(nginx.url())
    manifest = _project(tmp_path / "here")
    origins, code = on_machine(manifest, tmp_path / "a", remote)
    assert set(origins.values()) == {COMPILED}
    # Another checkout, and an empty store.
    other = _project(tmp_path / "there" / "here")
    origins, again = on_machine(other, tmp_path / "b", remote)
    assert set(origins.values()) == {SHARED}
    assert again == code
    # From then on without asking.
    seen = (nginx.root / "access").read_text().count("\n")
    origins, _ = on_machine(other, tmp_path / "b", remote)
    assert set(origins.values()) == {SAME_INPUT}
    assert (nginx.root / "access").read_text().count("\n") == seen


def test_what_others_built_since_is_found_beside_what_is_here(nginx: Nginx, tmp_path: Path) -> None:
    """Both machines know of the kernel, and each has built another version of its helper."""
    remote = Remote.at(nginx.url("cache/versions"))
    first, second = _project(tmp_path / "here"), _project(tmp_path / "there" / "here")
    on_machine(first, tmp_path / "a", remote)
    on_machine(second, tmp_path / "b", remote)
    helper = first.parent / "lib" / "helper.py"
    helper.write_text("import other_helper\n\nVALUE = other_helper.VALUE\n")
    (helper.parent / "other_helper.py").write_text("VALUE = 17\n")
    assert COMPILED in on_machine(first, tmp_path / "a", remote)[0].values()
    for name in ("helper.py", "other_helper.py"):
        shutil.copy(helper.parent / name, second.parent / "lib" / name)
    assert set(on_machine(second, tmp_path / "b", remote)[0].values()) == {SAME_INPUT, SHARED}


def test_damage_over_there_is_never_used(nginx: Nginx, tmp_path: Path) -> None:
    remote = Remote.at(nginx.url("cache/damaged"))
    manifest = _project(tmp_path / "here")
    _, code = on_machine(manifest, tmp_path / "a", remote)
    held = sorted((nginx.root / "held" / "damaged").rglob("*"))
    for number, path in enumerate(path for path in held if path.is_file()):
        data = path.read_bytes()
        half = len(data) // 2
        path.write_bytes(data[:half] if number % 2 else data[:half] + b"?" + data[half + 1 :])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RemoteCacheWarning)
        origins, again = on_machine(manifest, tmp_path / "b", remote)
    assert set(origins.values()) == {COMPILED}
    assert again == code


def test_the_bundle_is_the_same_and_a_cache_that_is_gone_is_told_once(
    nginx: Nginx, tmp_path: Path
) -> None:
    manifest = _project(tmp_path / "here")
    alone = build(manifest, tmp_path / "alone", jobs=2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        remote = Remote.at(f"http://127.0.0.1:{taken.getsockname()[1]}/", read_only=True)
        workers = Workers(storage=Store(tmp_path / "store"), remote=remote)
        with pytest.warns(RemoteCacheWarning, match="the build goes on without it") as told:
            without = build(manifest, tmp_path / "without", jobs=2, workers=workers)
    assert len([one for one in told if one.category is RemoteCacheWarning]) == 1
    assert without.path.read_bytes() == alone.path.read_bytes()


def _project(directory: Path) -> Path:
    """Two kernels; the second takes its value from a helper in another folder."""
    directory.mkdir(parents=True)
    project.write_kernel(directory, "plain", "def value():\n    return 3\n")
    project.write_kernel(
        directory, "helped", "import helper\n\n\ndef value():\n    return helper.VALUE\n"
    )
    manifest = project.write_manifest(directory, ["plain", "helped"])
    (directory / "lib" / "helper.py").write_text("VALUE = 5\n")
    return manifest
