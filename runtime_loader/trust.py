"""Who signed a bundle: Ed25519 signatures over its id, and the keys that are trusted here.

The id commits to everything that the loader uses, through SHA-256s that are checked before use, so
a signature over the id is one over all of that. Signatures stand in the bundle (section `sigs`,
outside of the id) or beside it (`<file>.sig`); docs/format.md has the layout. Checking them takes
`cryptography` (extra `flyc[sign]`); without it a required signature is a refusal.
"""

from __future__ import annotations

import hashlib
import os

from runtime_loader.checked import Fields, canonical_json, parse_json
from runtime_loader.errors import BundleError, TrustError
from runtime_loader.format import MAX_SIGNATURES, SIGNATURES
from runtime_loader.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Literal, TypeAlias

    from runtime_loader.bundle_file import BundleFile

    Keys: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    # Takes a signature and the message; False when it is not one by this key.
    Check: TypeAlias = Callable[[bytes, bytes], bool]

POLICY_VARIABLE = "FLYC_TRUST"
KEYS_VARIABLE = "FLYC_TRUSTED_KEYS"
SIDECAR_SUFFIX = ".sig"

_PURPOSE = b"flybundle signature 1\0"
_MOST_SIGNATURES = 32
_RAW_KEY_DIGITS = 64


@dataclass(frozen=True)
class Signature:
    """One signature: by the key of this id, over the bundle of this id (both in hex)."""

    key: str
    bundle: str
    signature: bytes

    def to_json(self) -> dict[str, str]:
        return {"key": self.key, "bundle": self.bundle, "signature": self.signature.hex()}

    @classmethod
    def read(cls, fields: Fields) -> Signature:
        try:
            value = bytes.fromhex(fields.text("signature"))
        except ValueError:
            raise BundleError(f"{fields.what}: its signature is not hexadecimal") from None
        return cls(fields.text("key"), fields.text("bundle"), value)


def check_policy(
    file: BundleFile, trust: Literal["required"] | None = None, keys: Keys | None = None
) -> None:
    """Raise `TrustError` when the policy refuses this bundle.

    A signature is required when the caller says so or names keys, or `FLYC_TRUST` says so; neither
    can loosen what the other requires.
    """
    policies = {"trust": trust, POLICY_VARIABLE: os.environ.get(POLICY_VARIABLE) or None}
    for name, policy in policies.items():
        if policy not in (None, "required"):
            raise TrustError(f"{name}={policy!r} is no policy; it can be 'required'")
    if any(policies.values()) or keys is not None:
        check_signatures(file, trusted_keys(keys), signatures_of(file))


def check_signatures(
    file: BundleFile, trusted: Mapping[str, Check], signatures: Sequence[Signature]
) -> list[str]:
    """The ids of the keys among `trusted` whose signatures hold for this bundle.

    Raises `TrustError` when there is none, with what every signature lacks.
    """
    if not signatures:
        raise TrustError(
            f"{file.path} is not signed, and a signature is required: it has none inside, and "
            f"there is no {file.path}{SIDECAR_SUFFIX}. Sign it with `flyc sign`."
        )
    good, reasons = [], []
    for signature in signatures:
        check = trusted.get(signature.key)
        if check is None:
            reasons.append(f"key {signature.key} is not trusted here")
        elif check(signature.signature, message(file.id)):
            good.append(signature.key)
        elif signature.bundle != file.id:
            reasons.append(
                f"key {signature.key} signed bundle {signature.bundle[:16]}, and this one is "
                f"{file.id[:16]}: the file or its signature was exchanged, or changed after signing"
            )
        else:
            reasons.append(f"the signature said to be by key {signature.key} is not by that key")
    if not good:
        raise TrustError(
            f"{file.path} (id {file.id[:16]}) has no signature that is trusted: "
            f"{'; '.join(reasons)}. Trusted are: {', '.join(sorted(trusted))}."
        )
    return sorted(set(good))


def message(bundle_id: str) -> bytes:
    """What is signed, for a bundle's id in hex."""
    return _PURPOSE + bytes.fromhex(bundle_id)


def signatures_of(file: BundleFile) -> list[Signature]:
    """The signatures in a bundle, then those beside it, and beside what a link to it names."""
    found = embedded_signatures(file)
    paths = dict.fromkeys((file.path, os.path.realpath(file.path)))
    for path in paths:
        found += read_sidecar(path + SIDECAR_SUFFIX)
    return found


def embedded_signatures(file: BundleFile) -> list[Signature]:
    """The signatures in a bundle. Raises `BundleError` when they are damaged."""
    if SIGNATURES not in file.sections:
        return []
    content = file.blobs.read(file.sections[SIGNATURES][1], MAX_SIGNATURES, "its signatures", True)
    return parse_signatures(bytes(content), f"{file.path}: its signatures")


def read_sidecar(path: str) -> list[Signature]:
    """The signatures in a file; none when there is no such file."""
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_SIGNATURES + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TrustError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(content) > MAX_SIGNATURES:
        raise BundleError(f"{path} has more than {MAX_SIGNATURES} bytes, which no signatures need")
    return parse_signatures(content, path)


def parse_signatures(content: bytes, what: str) -> list[Signature]:
    """Decode what `write_signatures` gives."""
    found = Fields(parse_json(content, what), what).objects("signatures", Signature.read)
    if len(found) > _MOST_SIGNATURES:
        raise BundleError(f"{what}: {len(found)} signatures, where {_MOST_SIGNATURES} are allowed")
    return list(found)


def write_signatures(signatures: Sequence[Signature]) -> bytes:
    """Signatures as the section and the file beside a bundle hold them."""
    if len(signatures) > _MOST_SIGNATURES:
        raise TrustError(f"a bundle can have {_MOST_SIGNATURES} signatures, not {len(signatures)}")
    return canonical_json({"signatures": [signature.to_json() for signature in signatures]})


def key_id(public: bytes) -> str:
    """The id of a raw public key: the first 16 hex digits of its SHA-256."""
    return hashlib.sha256(public).hexdigest()[:16]


def trusted_keys(keys: Keys | None = None) -> dict[str, Check]:
    """The trusted keys by id.

    `keys` is a directory of public keys (`*.pem`), a PEM file, a raw public key in hex (64
    digits), or a list of those; by default `FLYC_TRUSTED_KEYS`, which separates them as PATH does.
    Raises `TrustError` when there is none, or one cannot be read.
    """
    if keys is None:
        named = [name for name in os.environ.get(KEYS_VARIABLE, "").split(os.pathsep) if name]
    else:
        listed = [keys] if isinstance(keys, (str, os.PathLike)) else keys
        named = [os.fspath(item) for item in listed]
    found: dict[str, Check] = {}
    for name in named:
        found.update(_keys_at(name))
    if not found:
        raise TrustError(
            "a signature is required, and no key is trusted here: give load(..., keys=directory), "
            f"or set {KEYS_VARIABLE} to a directory of public keys (*.pem)"
        )
    return found


def _keys_at(name: str) -> dict[str, Check]:
    if len(name) == _RAW_KEY_DIGITS and not os.path.exists(name):
        try:
            return dict([_check_by(bytes.fromhex(name))])
        except ValueError:
            raise TrustError(f"{name} is neither a public key in hex nor a path") from None
    try:
        if os.path.isdir(name):
            names = sorted(entry for entry in os.listdir(name) if entry.endswith(".pem"))
            return dict(_read_key(os.path.join(name, entry)) for entry in names)
        return dict([_read_key(name)])
    except OSError as error:
        raise TrustError(
            f"the trusted keys {name} cannot be read: {error.strerror or error}"
        ) from None


def _read_key(path: str) -> tuple[str, Check]:
    require_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    with open(path, "rb") as file:
        content = file.read(MAX_SIGNATURES)
    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        raise TrustError(f"{path} is not a public key in PEM format") from None
    if not isinstance(key, Ed25519PublicKey):
        raise TrustError(f"{path} is not an Ed25519 public key, which bundles are signed with")
    return _check_by(key.public_bytes_raw())


def _check_by(public: bytes) -> tuple[str, Check]:
    require_cryptography()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    key = Ed25519PublicKey.from_public_bytes(public)

    def check(signature: bytes, signed: bytes) -> bool:
        try:
            key.verify(signature, signed)
        except InvalidSignature:
            return False
        return True

    return key_id(public), check


def require_cryptography() -> None:
    """Raise `TrustError` when signatures cannot be checked or made here."""
    try:
        import cryptography.hazmat.primitives.asymmetric.ed25519  # noqa: F401
    except ImportError as error:
        raise TrustError(
            f"signatures need the package cryptography, which cannot be imported here ({error}): "
            "pip install 'flyc[sign]'. A required signature is never skipped."
        ) from None
