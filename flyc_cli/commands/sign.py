"""`flyc sign` and `flyc verify`: whose bundle it is, and whether it is whole."""

from __future__ import annotations

from pathlib import Path

import click

from flyc_cli.commands.options import json_option

_bundle = click.argument("bundle", type=click.Path(path_type=Path))


@click.command(short_help="Sign a bundle.")
@_bundle
@click.option(
    "--key",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The Ed25519 private key (PEM). If it is encrypted, FLYC_SIGNING_PASSWORD has its "
    "password.",
)
@click.option("--embed", is_flag=True, help="Put the signature into the bundle, not beside it.")
@json_option
def sign(bundle: Path, key: Path, embed: bool, as_json: bool) -> None:
    """Sign BUNDLE, after checking everything in it.

    The signature goes to BUNDLE.sig, or with --embed into the bundle, whose id stays as it is.
    Signatures by other keys are kept.
    """
    from flyc_cli.output import show, show_json
    from flyc_cli.signing import sign_bundle

    signature, path = sign_bundle(bundle, key, embed=embed)
    if as_json:
        show_json({"key": signature.key, "bundle": signature.bundle, "path": str(path)})
    else:
        show(f"{path}: bundle {signature.bundle[:16]} signed by key {signature.key}")


@click.command(short_help="Check a bundle, and who signed it.")
@_bundle
@click.option(
    "--keys",
    multiple=True,
    metavar="KEYS",
    help="Trusted public keys: a directory of *.pem, a PEM file, or a raw key in hex. May be "
    "repeated. [default: $FLYC_TRUSTED_KEYS]",
)
@click.option("--unsigned", is_flag=True, help="Check the content only, not who signed it.")
@json_option
def verify(bundle: Path, keys: tuple[str, ...], unsigned: bool, as_json: bool) -> None:
    """Check that a trusted key signed BUNDLE, then everything in it.

    Ends in 2 when there is no such signature or the bundle is damaged.
    """
    from flyc_cli.output import show, show_json
    from runtime_loader.bundle_file import BundleFile
    from runtime_loader.trust import check_signatures, signatures_of, trusted_keys

    if unsigned and keys:
        raise click.UsageError("--unsigned looks at no keys: leave out --keys")
    file = BundleFile.open(bundle)
    signers = (
        [] if unsigned else check_signatures(file, trusted_keys(keys or None), signatures_of(file))
    )
    file.verify()
    if as_json:
        show_json({"path": str(bundle), "bundle": file.id, "signed_by": signers})
    else:
        by = f"signed by key {', '.join(signers)}" if signers else "signatures not looked at"
        show(f"{bundle}: bundle {file.id[:16]} is whole; {by}")
