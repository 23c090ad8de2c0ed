"""Signing bundles, and refusing those that nobody trusted has signed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

import runtime_loader as rt
from flyc_cli.bundle_writer import WrittenBundle, write_bundle
from flyc_cli.main import cli
from flyc_cli.signing import sign_bundle
from runtime_loader.bundle_file import BundleFile
from runtime_loader.checked import canonical_json
from runtime_loader.trust import key_id
from tests.fuzz.bundle_seeds import family, with_stages

ROOT = Path(__file__).parents[2]


class Key:
    """A key pair on disk: `private` (PEM), and the directory `trusted` with the public one."""

    def __init__(self, directory: Path, name: str) -> None:
        key = Ed25519PrivateKey.generate()
        self.private = directory / f"{name}.key"
        self.private.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )
        self.trusted = directory / f"trusted-{name}"
        self.trusted.mkdir()
        public = key.public_key()
        pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        (self.trusted / f"{name}.pem").write_bytes(pem)
        self.raw = public.public_bytes_raw()
        self.id = key_id(self.raw)


@pytest.fixture
def key(tmp_path: Path) -> Key:
    return Key(tmp_path, "release")


@pytest.fixture
def other(tmp_path: Path) -> Key:
    return Key(tmp_path, "stranger")


@pytest.fixture
def bundle(tmp_path: Path) -> WrittenBundle:
    return write_bundle(tmp_path / "out", with_stages("b", family(4)))


def load_trusted(bundle: Path, key: Key) -> rt.Bundle:
    return rt.load(bundle, trust="required", keys=key.trusted)


@pytest.mark.parametrize("embed", [False, True])
def test_what_a_trusted_key_signed_is_loaded(
    bundle: WrittenBundle, key: Key, other: Key, embed: bool
) -> None:
    with pytest.raises(rt.TrustError, match="is not signed, and a signature is required"):
        load_trusted(bundle.link, key)
    signature, path = sign_bundle(bundle.link, key.private, embed=embed)
    assert signature.key == key.id
    assert path == (bundle.path if embed else Path(f"{bundle.path}.sig"))
    for place in (bundle.link, bundle.path):
        assert load_trusted(place, key).id == bundle.id
    with pytest.raises(rt.TrustError) as caught:
        load_trusted(bundle.link, other)
    assert f"key {key.id} is not trusted here" in str(caught.value)
    assert str(caught.value).endswith(f"Trusted are: {other.id}.")
    # A second signature is added, and each of the two is enough.
    sign_bundle(bundle.link, other.private, embed=embed)
    assert load_trusted(bundle.link, key).id == load_trusted(bundle.link, other).id


def test_embedding_changes_nothing_else(bundle: WrittenBundle, key: Key, other: Key) -> None:
    before = BundleFile.open(bundle.path)
    records = list(before.scan())
    size = bundle.path.stat().st_size
    sign_bundle(bundle.path, key.private, embed=True)
    once = bundle.path.read_bytes()
    sign_bundle(bundle.path, key.private, embed=True)
    assert bundle.path.read_bytes() == once, "Ed25519 is deterministic, and so is the file"
    sign_bundle(bundle.path, other.private, embed=True)
    after = BundleFile.open(bundle.path, verify="open")
    assert (after.id, list(after.scan())) == (bundle.id, records)
    assert after.stage_names(records[1][0]) == before.stage_names(records[1][0])
    assert after.size - size < 1024
    assert list(before.scan()) == records, "who had mapped the old file goes on with it"
    assert sorted(p.name for p in bundle.path.parent.iterdir()) == sorted(
        [bundle.path.name, bundle.link.name]
    )


@pytest.mark.parametrize("embed", [False, True])
def test_a_changed_file_is_refused(bundle: WrittenBundle, key: Key, embed: bool) -> None:
    """One byte of what the id covers, anywhere: by the signature, or when it is used."""
    sign_bundle(bundle.path, key.private, embed=embed)
    whole = bundle.path.read_bytes()
    file = BundleFile.open(bundle.path)
    offsets = [40, 64 + 20, *(ref.offset + 3 for _, ref in file.sections.values())]
    for offset in offsets:
        changed = bytearray(whole)
        changed[offset] ^= 1
        copy = bundle.path.with_name("changed.flybundle")
        copy.write_bytes(changed)
        sidecar = Path(f"{bundle.path}.sig")
        if not embed:
            Path(f"{copy}.sig").write_bytes(sidecar.read_bytes())
        with pytest.raises((rt.BundleError, rt.TrustError)):
            rt.load(copy, trust="required", keys=key.trusted, verify="open")


def test_a_valid_signature_over_another_bundle_is_refused(
    bundle: WrittenBundle, key: Key, tmp_path: Path
) -> None:
    """What an attacker can make: a sound bundle of other content, with the old signature."""
    _, sidecar = sign_bundle(bundle.path, key.private)
    forged = write_bundle(tmp_path / "forged", with_stages("b", family(5)))
    Path(f"{forged.path}.sig").write_bytes(sidecar.read_bytes())
    text = f"key {key.id} signed bundle {bundle.id[:16]}, and this one is {forged.id[:16]}"
    with pytest.raises(rt.TrustError, match=text):
        load_trusted(forged.path, key)
    # Naming the id of the forged bundle in it does not help.
    relabelled = sidecar.read_text().replace(bundle.id, forged.id)
    Path(f"{forged.path}.sig").write_text(relabelled)
    with pytest.raises(rt.TrustError, match=f"said to be by key {key.id} is not by that key"):
        load_trusted(forged.path, key)


def test_the_environment_can_require_and_not_loosen(
    bundle: WrittenBundle, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYC_TRUST", "required")
    with pytest.raises(rt.TrustError, match="no key is trusted here"):
        rt.load(bundle.path)
    monkeypatch.setenv("FLYC_TRUSTED_KEYS", key.raw.hex())
    with pytest.raises(rt.TrustError, match="is not signed"):
        rt.load(bundle.path, trust=None)
    sign_bundle(bundle.path, key.private)
    assert rt.load(bundle.path).id == bundle.id
    monkeypatch.setenv("FLYC_TRUST", "requierd")
    with pytest.raises(rt.TrustError, match="FLYC_TRUST='requierd' is no policy"):
        rt.load(bundle.path)
    monkeypatch.delenv("FLYC_TRUST")
    with pytest.raises(rt.TrustError, match="trust='yes' is no policy"):
        rt.load(bundle.path, trust="yes")  # type: ignore[arg-type]


def test_keys_alone_require_a_signature(bundle: WrittenBundle, key: Key) -> None:
    with pytest.raises(rt.TrustError, match="is not signed"):
        rt.load(bundle.path, keys=key.trusted)
    with pytest.raises(rt.TrustError, match="no key is trusted here"):
        rt.load(bundle.path, keys=[])


def _elliptic(path: Path) -> None:
    public = generate_private_key(SECP256R1()).public_key()
    path.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, r"keys .*k\.pem cannot be read: No such file"),
        (lambda path: path.mkdir(), "no key is trusted here"),
        (lambda path: path.write_text("hello"), r"k\.pem is not a public key in PEM format"),
        (_elliptic, r"k\.pem is not an Ed25519 public key"),
    ],
)
def test_bad_keys(
    bundle: WrittenBundle, tmp_path: Path, make: Callable[[Path], None], said: str
) -> None:
    make(tmp_path / "k.pem")
    with pytest.raises(rt.TrustError, match=said):
        rt.load(bundle.path, keys=tmp_path / "k.pem")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not valid JSON"),
        (b"\xff\xfe", "is not valid JSON"),
        (b"[]", "is list, not an object"),
        (canonical_json({"signatures": [1]}), "is int, not an object"),
        (canonical_json({"signatures": [{"key": "k", "bundle": "b", "signature": "x"}]}), "hexad"),
        (
            canonical_json({"signatures": [{"key": "k", "bundle": "b", "signature": ""}] * 33}),
            "33 signatures, where 32 are allowed",
        ),
        (b" " * 70_000, "has more than 65536 bytes"),
    ],
)
def test_bad_signature_files(bundle: WrittenBundle, key: Key, content: bytes, said: str) -> None:
    Path(f"{bundle.path}.sig").write_bytes(content)
    with pytest.raises(rt.BundleError, match=said):
        load_trusted(bundle.path, key)


def test_a_signature_of_any_length_is_only_wrong(bundle: WrittenBundle, key: Key) -> None:
    for length in (0, 1, 63, 64, 65, 1000):
        made = {"key": key.id, "bundle": bundle.id, "signature": "00" * length}
        Path(f"{bundle.path}.sig").write_bytes(canonical_json({"signatures": [made]}))
        with pytest.raises(rt.TrustError, match="is not by that key"):
            load_trusted(bundle.path, key)


WITHOUT = """
import sys
sys.modules["cryptography"] = None
import runtime_loader as rt
assert rt.load(sys.argv[1]).id
try:
    rt.load(sys.argv[1], trust="required", keys=sys.argv[2])
except rt.TrustError as error:
    print(error)
"""


def test_without_the_extra_a_required_signature_is_a_refusal(
    bundle: WrittenBundle, key: Key
) -> None:
    sign_bundle(bundle.path, key.private)
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(bundle.path), str(key.trusted)],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    assert "pip install 'flyc[sign]'. A required signature is never skipped." in ran.stdout


def flyc(*args: object) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [str(arg) for arg in args])
    return result.exit_code, result.output


def test_the_commands(
    bundle: WrittenBundle, key: Key, other: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, text = flyc("verify", bundle.link)
    assert (code, "no key is trusted here" in text) == (2, True)
    code, text = flyc("verify", bundle.link, "--unsigned")
    assert (code, "is whole; signatures not looked at" in text) == (0, True)
    code, text = flyc("sign", bundle.link, "--key", key.private)
    assert (code, f"bundle {bundle.id[:16]} signed by key {key.id}" in text) == (0, True)
    code, text = flyc("verify", bundle.link, "--keys", key.trusted)
    assert (code, text) == (
        0, f"{bundle.link}: bundle {bundle.id[:16]} is whole; signed by key {key.id}\n"
    )  # fmt: skip
    code, text = flyc("verify", bundle.link, "--keys", other.trusted)
    assert (code, f"key {key.id} is not trusted here" in text) == (2, True)
    monkeypatch.setenv("FLYC_TRUSTED_KEYS", f"{other.trusted}:{key.trusted}")
    code, text = flyc("verify", bundle.link, "--json")
    assert (code, f'"{key.id}"' in text) == (0, True)


def test_signing_keys_that_cannot_sign(
    bundle: WrittenBundle, key: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = tmp_path / "locked.key"
    private = Ed25519PrivateKey.generate()
    encryption = BestAvailableEncryption(b"sesame")
    locked.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    code, text = flyc("sign", bundle.path, "--key", locked)
    assert (code, "is encrypted: set FLYC_SIGNING_PASSWORD" in text) == (2, True)
    monkeypatch.setenv("FLYC_SIGNING_PASSWORD", "wrong")
    code, text = flyc("sign", bundle.path, "--key", locked)
    assert (code, "FLYC_SIGNING_PASSWORD is not its password" in text) == (2, True)
    code, text = flyc("sign", bundle.path, "--key", key.private)
    assert (code, "is not encrypted, but FLYC_SIGNING_PASSWORD is set" in text) == (2, True)
    monkeypatch.setenv("FLYC_SIGNING_PASSWORD", "sesame")
    assert flyc("sign", bundle.path, "--key", locked)[0] == 0
    monkeypatch.delenv("FLYC_SIGNING_PASSWORD")
    code, text = flyc("sign", bundle.path, "--key", tmp_path / "none.key")
    assert (code, "cannot be read: No such file" in text) == (2, True)
    code, text = flyc("sign", bundle.path, "--key", key.trusted / "release.pem")
    assert (code, "is not a private key in PEM format" in text) == (2, True)


def test_damaged_bundles_are_not_signed(bundle: WrittenBundle, key: Key) -> None:
    data = bytearray(bundle.path.read_bytes())
    data[BundleFile.open(bundle.path).sections[b"index"][1].offset + 3] ^= 1
    bundle.path.write_bytes(data)
    assert flyc("sign", bundle.path, "--key", key.private)[0] == 2
    assert not Path(f"{bundle.path}.sig").exists()
