"""Small, deterministic bundles: what the bundle tests read and what the fuzzer mutates."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from flyc_cli.bundle_writer import BundleContents, TableContents, WrittenBundle, write_bundle
from flyc_cli.signing import sign_bundle
from runtime_loader.plan import Block, End, Launch, LaunchPlan, Op
from runtime_loader.signature import PointerForm, ScalarForm, StreamForm
from runtime_loader.specialisation import (
    KernargLayout,
    KernelEntry,
    KernelParam,
    Resources,
    Specialisation,
)
from runtime_loader.table import TableRow
from runtime_loader.target import Target

SIGNING_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SIGNER = SIGNING_KEY.public_key().public_bytes_raw()

RESOURCES = Resources(
    vgprs=24,
    agprs=0,
    sgprs=18,
    vgpr_spills=0,
    sgpr_spills=0,
    lds=512,
    scratch=0,
    wavefront=64,
    workgroup=(256, 1, 1),
    max_workgroup=256,
    allocated_vgprs=24,
    waves_per_simd=8,
)

PLAN = LaunchPlan(
    inputs=("ptr", "i32", "ptr"),
    blocks=(
        Block(
            params=(),
            body=(
                Op("const", "i32", constant=1),
                Op("const", "i32", constant=256),
                Launch(kernel=0, grid=(1, 3, 3), block=(4, 3, 3), stream=2, args=((0,), (1,))),
            ),
            end=End(),
        ),
    ),
)


def specialisation(
    kernel: str, code: bytes, target: str = "gfx942", **params: Any
) -> Specialisation:
    """A specialisation of a kernel that takes a pointer and an i32."""
    layout = KernargLayout(
        (KernelParam(0, 8, "global_buffer"), KernelParam(8, 4, "by_value")), 12, 16
    )
    return Specialisation(
        kernel=kernel,
        target=Target.parse(target),
        params=params,
        signature=(PointerForm("x", "bf16", 16), ScalarForm("rows", "i32"), StreamForm("stream")),
        plan=PLAN,
        kernels=(KernelEntry(f"{kernel}_0", layout, RESOURCES),),
        code_object=hashlib.sha256(code).hexdigest(),
        launcher=f"samples:{kernel}",
        hints={},
    )


def relatives(count: int, size: int, seed: int) -> list[bytes]:
    """`count` byte strings of about `size` bytes that differ from each other in some places."""
    rng = random.Random(seed)
    base = rng.randbytes(size)
    family = []
    for _ in range(count):
        member = bytearray(base)
        for _ in range(4):
            at = rng.randrange(size - 16)
            member[at : at + 16] = rng.randbytes(16)
        family.append(bytes(member))
    return family


def contents(
    name: str,
    specs: list[tuple[Specialisation, bytes]],
    stages: dict[bytes, list[tuple[str, str]]] | None = None,
) -> BundleContents:
    return BundleContents(
        name=name,
        meta={"provenance": {"flyc": "0.1.0"}},
        specialisations=[spec for spec, _ in specs],
        code_objects={spec.code_object: code for spec, code in specs},
        stages=stages or {},
        parameter_order={"norm": ("N", "dtype")},
    )


def family(count: int, seed: int = 1) -> list[tuple[Specialisation, bytes]]:
    """Two related kernels on two targets, `count` code objects altogether, and one duplicate."""
    codes = relatives(count, 600, seed)
    made = [
        (specialisation(("gemm", "norm")[n % 2], code, ("gfx942", "gfx950")[n // 2 % 2], N=n), code)
        for n, code in enumerate(codes)
    ]
    return [*made, (specialisation("norm", codes[0], N=10_000, dtype="bf16"), codes[0])]


def with_stages(name: str, specs: list[tuple[Specialisation, bytes]]) -> BundleContents:
    return contents(
        name,
        specs,
        {
            spec.key(): [("traced", f"module of {spec.label()}\n" * 9), ("isa", "s_endpgm\n")]
            for spec, _ in specs
        },
    )


def with_table(name: str) -> BundleContents:
    """Four specialisations that 40 rows of a tuned table choose from."""
    specs = [(specialisation("gemm", b"code", tile=tile), b"code") for tile in range(4)]
    rows = [
        TableRow("gfx942", {"dtype": dtype, "M": 3**m}, {"tile": m % 4})
        for dtype in ("bf16", "f16")
        for m in range(20)
    ]
    made = contents(name, specs)
    return replace(made, tables={"gemm": TableContents(("dtype",), ("M",), rows)})


def signing_key(directory: Path) -> Path:
    """The private key in a PEM file."""
    path = directory / "signing.key"
    content = SIGNING_KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(content)
    return path


def seed_bundles(directory: Path) -> list[Path]:
    """Write the fixed corpus: one specialisation, dictionaries, raw, stages, table, deep index,
    an embedded signature."""
    one = [(specialisation("copy", b"\x7fELF one"), b"\x7fELF one")]
    deep = [
        (specialisation("deep", b"code", N=n, note=random.Random(n).randbytes(900).hex()), b"code")
        for n in range(140)
    ]
    pair = [
        (specialisation("pair", code, N=n), code) for n, code in enumerate(relatives(2, 3000, 7))
    ]
    signed = write_bundle(directory, contents("signed", family(3)))
    sign_bundle(signed.path, signing_key(directory), embed=True)
    written: list[WrittenBundle] = [
        signed,
        write_bundle(directory, contents("one", one)),
        write_bundle(directory, contents("family", family(9))),
        write_bundle(directory, contents("pair", pair)),
        write_bundle(directory, contents("raw", family(5)), compression="raw"),
        write_bundle(directory, with_stages("stages", family(4))),
        write_bundle(directory, with_table("table")),
        write_bundle(directory, contents("deep", deep)),
    ]
    return [bundle.path for bundle in written]
