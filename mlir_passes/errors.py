"""The error that lowering raises: which stage, what the compiler said, which source line."""

from __future__ import annotations

from typing import Any

from flydsl._mlir import ir

from mlir_passes.places import SourceLine, Trail
from runtime_loader.errors import FlycError


class LoweringError(FlycError):
    """A module cannot be lowered. `stage` names the pipeline stage, `source` innermost first."""

    def __init__(self, stage: str, message: str, source: Trail = ()) -> None:
        self.stage = stage
        self.message = message
        self.source = source
        super().__init__(f"stage {stage}: {message}")

    @classmethod
    def from_mlir(cls, stage: str, error: ir.MLIRError) -> LoweringError:
        """Keep the first error's text and place; MLIR's notes print whole operations."""
        for diagnostic in error.error_diagnostics:
            return cls(stage, str(diagnostic.message), source_lines(diagnostic.location))
        return cls(stage, str(error))


def source_lines(location: Any) -> Trail:
    """The chain of source lines in an MLIR location, innermost first."""
    location = ir.Location.from_attr(location.attr, location.context)
    if isinstance(location, ir.CallSiteLoc):
        return source_lines(location.callee) + source_lines(location.caller)
    if isinstance(location, ir.NameLoc):
        return source_lines(location.child_loc)
    if isinstance(location, ir.FusedLoc):
        return tuple(line for child in location.locations for line in source_lines(child))
    if isinstance(location, ir.FileLineColLoc) and location.start_line:
        return (SourceLine(location.filename, location.start_line),)
    return ()
