"""What a front end reports: input that is wrong, or a launcher that cannot be traced."""

from __future__ import annotations

from runtime_loader.errors import FlycError


class InputError(FlycError):
    """The manifest and the kernel module disagree (no such launcher, argument, ...)."""


class TraceError(FlycError):
    """Importing or tracing raised. `stage` is `import` or `trace`; `source` innermost first."""

    def __init__(self, stage: str, message: str, source: tuple[tuple[str, int], ...]) -> None:
        self.stage = stage
        self.message = message
        self.source = source
        super().__init__(f"stage {stage}: {message}")
