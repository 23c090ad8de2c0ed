"""Signs bundles with Ed25519: beside the file, or inside of it in a section outside of its id."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from runtime_loader.bundle_file import BundleFile
from runtime_loader.errors import FlycError, TrustError
from runtime_loader.format import (
    ALIGNMENT,
    ANNEX,
    HEADER,
    MAGIC,
    MAJOR,
    MINOR,
    SECTION,
    SECTION_ENTRY_SIZE,
    SIGNATURES,
    Ref,
    header_check,
)
from runtime_loader.trust import (
    SIDECAR_SUFFIX,
    Signature,
    embedded_signatures,
    key_id,
    message,
    read_sidecar,
    require_cryptography,
    write_signatures,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PASSWORD_VARIABLE = "FLYC_SIGNING_PASSWORD"


def sign_bundle(bundle: Path, key: Path, *, embed: bool = False) -> tuple[Signature, Path]:
    """Sign `bundle` with the private key in a PEM file; returns where the signature went.

    It goes to `<file>.sig` of the file that `bundle` is or links to, or with `embed` into that
    file, which keeps its id and name. A signature by the same key is replaced, others are kept.
    Everything in the bundle is checked first: nobody wants to have signed a damaged one. Raises
    `BundleError`, `TrustError`, and `FlycError` when a file cannot be written.
    """
    private = _read_private_key(key)
    path = Path(os.path.realpath(bundle))
    file = BundleFile.open(path, verify="open")
    try:
        signature = Signature(
            key=key_id(private.public_key().public_bytes_raw()),
            bundle=file.id,
            signature=private.sign(message(file.id)),
        )
        if embed:
            _publish(path, _with_signatures(file, _with(signature, embedded_signatures(file))))
            return signature, path
        sidecar = path.with_name(path.name + SIDECAR_SUFFIX)
        _publish(sidecar, write_signatures(_with(signature, read_sidecar(str(sidecar)))))
        return signature, sidecar
    finally:
        file.close()


def _with(signature: Signature, others: Iterable[Signature]) -> list[Signature]:
    """All of them, by key; those over another bundle are of no use any more."""
    kept = [s for s in others if s.key != signature.key and s.bundle == signature.bundle]
    return sorted([*kept, signature], key=lambda s: s.key)


def _read_private_key(path: Path) -> Ed25519PrivateKey:
    require_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        content = path.read_bytes()
    except OSError as error:
        raise TrustError(f"the key {path} cannot be read: {error.strerror or error}") from None
    password = os.environ.get(PASSWORD_VARIABLE)
    try:
        key = load_pem_private_key(content, password.encode() if password else None)
    except TypeError:
        raise TrustError(
            f"the key {path} is encrypted: set {PASSWORD_VARIABLE} to its password"
            if not password
            else f"the key {path} is not encrypted, but {PASSWORD_VARIABLE} is set: unset it"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise TrustError(
            f"{path} is not a private key in PEM format, or {PASSWORD_VARIABLE} is not its password"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise TrustError(f"the key {path} is not an Ed25519 key, which bundles are signed with")
    return key


def _with_signatures(file: BundleFile, signatures: list[Signature]) -> bytes:
    """The bytes of the bundle with these signatures at its end, instead of those that it had."""
    data = bytearray(Path(file.path).read_bytes())
    sections = [(name, *entry) for name, entry in file.sections.items() if name != SIGNATURES]
    if SIGNATURES in file.sections:
        old = file.sections[SIGNATURES][1]
        end = old.offset + old.stored_size
        data[old.offset : end] = bytes(old.stored_size)
        if not any(data[end:]):
            del data[old.offset :]
    data += bytes(-len(data) % ALIGNMENT)
    content = write_signatures(signatures)
    ref = Ref(len(data), len(content), len(content), hashlib.sha256(content).digest())
    data += content
    data += bytes(-len(data) % ALIGNMENT)
    sections.append((SIGNATURES, ANNEX, ref))
    table = b"".join(SECTION.pack(name, flags, 0) + ref.pack() for name, flags, ref in sections)
    start = HEADER.size + len(table)
    room = HEADER.size + len(file.sections) * SECTION_ENTRY_SIZE
    if start > room and any(data[room:start]):
        raise FlycError(
            f"{file.path} has no room for another section: sign it without embedding the signature"
        )
    identity = bytes.fromhex(file.id)
    blank = HEADER.pack(MAGIC, MAJOR, MINOR, len(sections), len(data), bytes(8), identity)
    check = header_check(blank, table)
    header = HEADER.pack(MAGIC, MAJOR, MINOR, len(sections), len(data), check, identity)
    data[:start] = header + table
    return bytes(data)


def _publish(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; readers that have the old one go on with it."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            temporary.chmod(path.stat().st_mode & 0o7777)
        temporary.replace(path)
    except OSError as error:
        raise FlycError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()
