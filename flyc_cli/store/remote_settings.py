"""Where the remote cache is and how to be let in, checked before anything is asked of it."""

from __future__ import annotations

import base64
import contextlib
import netrc
import os
import re
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field

from runtime_loader.errors import FlycError

TOKEN_VARIABLE = "FLYC_REMOTE_CACHE_TOKEN"
USER_VARIABLE = "FLYC_REMOTE_CACHE_USER"
PASSWORD_VARIABLE = "FLYC_REMOTE_CACHE_PASSWORD"
CA_VARIABLE = "FLYC_REMOTE_CACHE_CA"
TIMEOUT_VARIABLE = "FLYC_REMOTE_CACHE_TIMEOUT"

_TIMEOUT = 10.0
_MAX_TIMEOUT = 86400.0
_VISIBLE = re.compile(r"[!-~]+")


class RemoteCacheError(FlycError):
    """The address or the credentials of a remote cache cannot be used as they are given."""


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
        try:
            parsed = _parsed(url)
        except ValueError:  # whose text may hold a password
            raise RemoteCacheError(
                f"{_shown(url)} is no address of a remote cache: write http://host:port/path or "
                "https://…, in ASCII"
            ) from None
        if parsed.username or parsed.password:
            raise RemoteCacheError(
                f"{_shown(url)}: an address is logged and seen by others, so put credentials into "
                f"{TOKEN_VARIABLE}, {USER_VARIABLE} and {PASSWORD_VARIABLE}, or a netrc file"
            )
        ca_file = os.environ.get(CA_VARIABLE) or None
        if ca_file is not None and not os.path.isfile(ca_file):  # noqa: PTH113
            raise RemoteCacheError(f"{CA_VARIABLE}={ca_file}: there is no such file")
        headers = tuple(_credentials(parsed.hostname or ""))
        return cls(url.rstrip("/"), read_only, _timeout(), headers, ca_file)


def _parsed(url: str) -> urllib.parse.SplitResult:
    """The parts of an address that can be asked. Raises `ValueError` for any other."""
    parsed = urllib.parse.urlsplit(url)
    host = (parsed.hostname or "").encode("idna").decode("ascii")
    if (
        parsed.scheme not in ("http", "https")
        or not _VISIBLE.fullmatch(host)
        or not _VISIBLE.fullmatch(parsed.path or "/")
        or parsed.query
        or parsed.fragment
        or parsed.port == 0
    ):
        raise ValueError(url)
    return parsed


def _timeout() -> float:
    given = os.environ.get(TIMEOUT_VARIABLE)
    if not given:
        return _TIMEOUT
    with contextlib.suppress(ValueError):
        seconds = float(given)
        if 0 < seconds <= _MAX_TIMEOUT:
            return seconds
    raise RemoteCacheError(
        f"{TIMEOUT_VARIABLE}={given} is no number of seconds above 0 and up to {_MAX_TIMEOUT:.0f}"
    )


def _credentials(host: str) -> Iterator[tuple[str, str]]:
    token = os.environ.get(TOKEN_VARIABLE)
    if token:
        if not _VISIBLE.fullmatch(token):
            raise RemoteCacheError(
                f"{TOKEN_VARIABLE} holds what no token can (a line break, a space, a letter beyond "
                "ASCII): was more than the token put into it?"
            )
        yield "Authorization", f"Bearer {token}"
        return
    user, password = os.environ.get(USER_VARIABLE), os.environ.get(PASSWORD_VARIABLE)
    if not user:
        with contextlib.suppress(OSError):
            try:
                known = netrc.netrc(os.environ.get("NETRC")).authenticators(host)
            except netrc.NetrcParseError as error:
                raise RemoteCacheError(
                    f"the netrc file cannot be read: {error.filename}, line {error.lineno}: "
                    + error.msg.partition(" token ")[0]  # what follows may be a password
                ) from None
            if known:
                user, _, password = known
    if user:
        pair = f"{user}:{password or ''}".encode(errors="surrogateescape")
        yield "Authorization", f"Basic {base64.b64encode(pair).decode()}"


def _shown(url: str) -> str:
    """An address without what may be a password."""
    front, _, rest = url.rpartition("@")
    scheme, separator, _ = front.partition("://")
    return f"{scheme}{separator}{rest}" if separator else rest
