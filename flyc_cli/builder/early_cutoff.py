"""Stops where an earlier build has lowered the same module: nothing of LLVM runs again."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from flyc_cli.store.artifacts import Lowered, find_lowered, lowering_key
from flyc_cli.store.dependencies import file_state
from flyc_cli.store.files import Storage
from mlir_passes.lowering import Artifact
from runtime_loader.checked import Fields, canonical_json
from runtime_loader.errors import BundleError
from runtime_loader.plan import LaunchPlan
from runtime_loader.specialisation import KernelEntry
from runtime_loader.target import Target

_QUOTED_PATH = re.compile(r'"(/[^"\n]+)"')
_BARE_PATH = re.compile(r"/[^\s\"'`,;:{}()\[\]<>=]+")


def files_beside(module: Any, passes: Sequence[str]) -> tuple[str, ...]:
    """The files that a module or its passes name, such as bitcode to link with."""
    return tuple(sorted(set(_existing(_text(module, passes) + " ".join(_before_binary(passes))))))


def key_of_module(
    module: Any, passes: Sequence[str], target: Target, toolchain: bytes, beside: Sequence[str]
) -> str:
    """The lowering key of a traced module; `beside` are `files_beside`."""
    contents = canonical_json([file_state(path) for path in beside])
    return lowering_key(
        _text(module, passes), _before_binary(passes), str(target), toolchain + contents
    )


def lowered_before(storage: Storage, key: str, *, stages: bool) -> Artifact | None:
    """What lowering gave an earlier build."""
    found = find_lowered(storage, key, stages=stages)
    if found is None:
        return None
    try:
        return _artifact(found)
    except BundleError:
        return None


def _artifact(lowered: Lowered) -> Artifact:
    what = "an artifact of the store"
    return Artifact(
        code_object=lowered.code_object,
        plan=LaunchPlan.read(Fields(lowered.plan, what)),
        kernels=tuple(KernelEntry.read(Fields(kernel, what)) for kernel in lowered.kernels),
        stages=lowered.stages or (),
        host="",
        seconds={},
    )


def _text(module: Any, passes: Sequence[str]) -> str:
    """With locations only where they end up in the code object."""
    debug = any("debug-info" in text for text in passes)
    return str(module.operation.get_asm(enable_debug_info=debug))


def _before_binary(passes: Sequence[str]) -> list[str]:
    """The last pass names FlyDSL's own toolkit, which is not used."""
    return [text for text in passes if not text.startswith("gpu-module-to-binary")]


def _existing(text: str) -> Iterator[str]:
    for pattern in (_QUOTED_PATH, _BARE_PATH):
        for match in pattern.finditer(text):
            path = match[match.lastindex or 0]
            if os.path.isfile(path):  # noqa: PTH113
                yield path
