"""Settings of the remote cache that cannot be used are told of before anything is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyc_cli.store.remote_settings import Remote, RemoteCacheError


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TOKEN", "USER", "PASSWORD", "CA", "TIMEOUT"):
        monkeypatch.delenv(f"FLYC_REMOTE_CACHE_{name}", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("cache:8080", "is no address of a remote cache"),
        ("ftp://host/", "is no address of a remote cache"),
        ("http:///cas", "is no address of a remote cache"),
        ("me:sesame@host/", "is no address of a remote cache"),
        ("http://me:sesame@host:abc/", "is no address of a remote cache"),
        ("http://me:sesame@host/", "put credentials into FLYC_REMOTE_CACHE_TOKEN"),
        ("http://host:abc/", "is no address of a remote cache"),
        ("http://host:99999/", "is no address of a remote cache"),
        ("http://host:-1/", "is no address of a remote cache"),
        ("http://host:0/", "is no address of a remote cache"),
        ("http://a..b/", "is no address of a remote cache"),
        ("http://a b/", "is no address of a remote cache"),
        (f"http://{'a' * 70}.org/", "is no address of a remote cache"),
        ("http://[::1/", "is no address of a remote cache"),
        ("http://host/größer", "is no address of a remote cache"),
        ("http://host/a b", "is no address of a remote cache"),
        ("http://host/a?b=c", "is no address of a remote cache"),
        ("http://host/a#b", "is no address of a remote cache"),
    ],
)
def test_an_address_that_cannot_be_used(url: str, message: str) -> None:
    with pytest.raises(RemoteCacheError, match=message) as caught:
        Remote.at(url)
    assert "sesame" not in str(caught.value)


def test_settings_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for timeout in ("soon", "-1", "0", "nan", "inf", "1e9"):
        monkeypatch.setenv("FLYC_REMOTE_CACHE_TIMEOUT", timeout)
        with pytest.raises(RemoteCacheError, match=f"TIMEOUT={timeout} is no number of seconds"):
            Remote.at("http://host")
    monkeypatch.delenv("FLYC_REMOTE_CACHE_TIMEOUT")
    monkeypatch.setenv("FLYC_REMOTE_CACHE_CA", "/nowhere.pem")
    with pytest.raises(RemoteCacheError, match="there is no such file"):
        Remote.at("https://host")
    monkeypatch.delenv("FLYC_REMOTE_CACHE_CA")
    (tmp_path / "netrc").write_text("nonsense")
    with pytest.raises(RemoteCacheError, match="the netrc file cannot be read"):
        Remote.at("https://host")
    (tmp_path / "netrc").write_text("machine host login me password open sesame")
    with pytest.raises(RemoteCacheError, match=r"netrc, line 1: bad follower$"):
        Remote.at("https://host")


@pytest.mark.parametrize("token", ["sesame\n", "ses\rame", "sesäme", "sesame\u20ac", "ses ame"])
def test_a_token_that_is_none_is_not_shown(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYC_REMOTE_CACHE_TOKEN", token)
    with pytest.raises(RemoteCacheError, match="TOKEN holds what no token can") as caught:
        Remote.at("https://host")
    assert "ses" not in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None
