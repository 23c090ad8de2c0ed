"""Places in the user's source, and which of them an error of the code generator is about.

LLVM and the linker name kernels, called functions and intrinsics in their messages, and no lines.
This module needs no MLIR: a supervisor finds the place for a worker that LLVM aborted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class SourceLine:
    """A line of the user's own source that a message points at."""

    file: str
    line: int


# Where something is written, innermost line first, then its callers.
Trail = tuple[SourceLine, ...]

_INTRINSIC = re.compile(r"\bllvm\.[\w.]*\w")
# SelectionDAG names its node: "no libcall available for ftan", "Cannot select: t3: f64 = fcos ...".
_NODE = re.compile(r"(?:libcall available for|Cannot select: t\d+: [\w,]+ =) (f?)(\w+)")


@dataclass(frozen=True)
class Places:
    """Where the kernels of a module are defined, and where its intrinsics and calls are written.

    `kernels` goes by symbol; `uses` by called symbol or full intrinsic name (`llvm.tan`), the
    first use of each.
    """

    kernels: Mapping[str, Trail] = field(default_factory=dict)
    uses: Mapping[str, Trail] = field(default_factory=dict)

    def of(self, message: str) -> Trail:
        """The place that `message` is about: an operation, else a kernel, else nothing."""
        names = _INTRINSIC.findall(message)
        for prefix, node in _NODE.findall(message):
            names += [f"llvm.{node}", f"llvm.{prefix}{node}"]
        for name in names:
            for used, trail in self.uses.items():
                if _is_overload(used, name) or _is_overload(name, used):
                    return trail
        words = set(re.findall(r"[\w.$]+", message))
        for symbols in (self.uses, self.kernels):
            for symbol, trail in symbols.items():
                if symbol in words:
                    return trail
        return next(iter(self.kernels.values())) if len(self.kernels) == 1 else ()

    def to_json(self) -> dict[str, Any]:
        return {
            kind: {
                name: [[line.file, line.line] for line in trail] for name, trail in named.items()
            }
            for kind, named in (("kernels", self.kernels), ("uses", self.uses))
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Places:
        kernels, uses = (
            {
                name: tuple(SourceLine(file, line) for file, line in trail)
                for name, trail in record[kind].items()
            }
            for kind in ("kernels", "uses")
        )
        return cls(kernels, uses)


def _is_overload(name: str, of: str) -> bool:
    """Whether `name` is the intrinsic `of`, maybe with types (`llvm.tan.f32` of `llvm.tan`)."""
    return name == of or name.startswith(f"{of}.")
