"""What a manifest's defaults and its kernels share: targets, hints, environment, limits."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from flyc_cli.manifest.cursor import Cursor, check_templates
from flyc_cli.manifest.forms import MAX_ALIGN
from flyc_cli.manifest.messages import choices, nearest, shown
from flyc_cli.manifest.model import ArgDefaults, Limits, covers
from flyc_cli.text import parse_byte_size
from runtime_loader.target import SUPPORTED, Target, TargetError

HINTS = ("fast_fp_math", "unsafe_fp_math", "waves_per_eu", "llvm_options")

# Variables that flyc sets for a compile, and what a manifest says instead.
_OWN_VARIABLES = {
    "FLYDSL_GPU_ARCH": "targets",
    "ARCH": "targets",
    "HSA_OVERRIDE_GFX_VERSION": "targets",
    "COMPILE_ONLY": "nothing: flyc always compiles only",
    "FLYDSL_COMPILE_BACKEND": "nothing: it is always rocm",
    "FLYDSL_COMPILE_LLVM_DIR": "toolchain",
    "FLYDSL_RUNTIME_KIND": "nothing: it is always rocm",
    "FLYDSL_RUNTIME_ENABLE_CACHE": "nothing: flyc has its own cache",
    "FLYDSL_RUNTIME_CACHE_DIR": "nothing: flyc has its own cache",
    "FLYDSL_RUNTIME_RUN_ONLY": "nothing: building compiles",
    "LLD_VERSION": "nothing: it makes code objects reproducible",
    "ROCM_PATH": "toolchain",
    "PYTHONHASHSEED": "nothing: it makes builds reproducible",
    "PYTHONPATH": "python_path",
}

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")


def read_targets(cursor: Cursor, among: tuple[Target, ...] = ()) -> tuple[Target, ...]:
    """Target IDs; with `among`, each must cover at least one of those."""
    targets: list[Target] = []
    for item in cursor.items("targets"):
        text = item.text("a target such as gfx942")
        target = checked_target(text, among, item.fail)
        if target in targets:
            item.fail(f"the target {text} is listed twice")
        targets.append(target)
    return tuple(targets)


def checked_target(text: str, among: tuple[Target, ...], fail: Callable[[str], NoReturn]) -> Target:
    """The target of that name, which must cover one of `among` if there are any."""
    try:
        target = Target.parse(text).check_supported()
    except TargetError as error:
        processor = text.partition(":")[0]
        fail(f"{error}{'' if processor in SUPPORTED else nearest(processor, SUPPORTED)}")
    if among and not any(covers(target, other) for other in among):
        fail(f"{text} is not among the targets of the manifest ({', '.join(map(str, among))})")
    return target


def read_python_path(cursor: Cursor, directory: Path) -> tuple[str, ...]:
    roots = []
    for item in cursor.items("directories"):
        root = item.text("a directory, relative to the manifest")
        if not (directory / root).is_dir():
            item.fail(f"no directory {root!r} beside the manifest")
        roots.append(root)
    return tuple(roots)


def read_limits(cursor: Cursor) -> Limits:
    fields = cursor.fields("limits", ("timeout", "memory"))
    return Limits(
        timeout=fields.get("timeout", _seconds, None),
        memory=fields.get("memory", _memory_size, None),
    )


def _seconds(cursor: Cursor) -> float:
    value = cursor.value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        cursor.expected("a number of seconds above 0")
    return float(value)


def _memory_size(cursor: Cursor) -> int:
    size = parse_byte_size(cursor.text("a size such as 2GB or 700MB"))
    if size is None:
        cursor.expected("a size such as 2GB or 700MB")
    return size


def read_arg_defaults(cursor: Cursor) -> ArgDefaults:
    fields = cursor.fields("argument defaults", ("align", "stride_bits"))
    return ArgDefaults(
        align=fields.get("align", _plain_align, None),
        stride_bits=fields.get("stride_bits", read_stride_bits, None),
    )


def _plain_align(cursor: Cursor) -> int:
    value = cursor.value
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or not 1 <= value <= MAX_ALIGN
        or value & (value - 1)
    ):
        cursor.expected(f"a power of two from 1 to {MAX_ALIGN} (bytes)")
    return value


def read_stride_bits(cursor: Cursor) -> int:
    return int(cursor.one_of("a width of strides", (32, 64)))


def read_hints(cursor: Cursor, params: set[str] | None) -> dict[str, Any]:
    hints: dict[str, Any] = {}
    for key, value in cursor.entries("compile hints"):
        if key not in HINTS:
            value.spot.fail_at_key(
                f"unknown hint {shown(key)}; expected {choices(HINTS)}{nearest(key, HINTS)}"
            )
        check_templates(value, params)
        hints[key] = value.value
    return hints


def read_env(cursor: Cursor, params: set[str] | None) -> dict[str, str | None]:
    env: dict[str, str | None] = {}
    for key, value in cursor.entries("environment variables"):
        if not _VARIABLE.fullmatch(key):
            value.spot.fail_at_key(
                f"{shown(key)} is not a variable name (capital letters, digits and underscores)"
            )
        if key in _OWN_VARIABLES:
            value.spot.fail_at_key(f"flyc sets {key} itself; use {_OWN_VARIABLES[key]}")
        if value.value is not None and not isinstance(value.value, str):
            value.expected('text (numbers in quotes, as in "1"), or null to drop a default')
        check_templates(value, params)
        env[key] = value.value
    return env
