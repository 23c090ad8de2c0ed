"""What the exit status of `flyc` means (docs/cli.md), and which error ends in which."""

from __future__ import annotations

OK = 0
FAILED = 1  # something did not compile
BAD_INPUT = 2  # manifest, bundle, arguments or usage
ENVIRONMENT = 3  # toolchain, HIP, device, disk
MISS = 4  # the bundle has no such kernel, parameters, target or stage
DEFECT = 70  # flyc itself is at fault (EX_SOFTWARE of sysexits.h)
INTERRUPTED = 130  # 128 + SIGINT, as shells report it
READER_GONE = 141  # 128 + SIGPIPE


def exit_code(error: BaseException) -> int:
    """The exit status for an error that ended a command."""
    # These modules are only worth importing once something has gone wrong.
    from flyc_cli.builder.failures import BuildError
    from flyc_cli.builder.supervisor import WorkerError
    from mlir_passes.toolkit import ToolkitError
    from runtime_loader.errors import FlycError, HipError, HipUnavailableError, MissError

    if isinstance(error, BuildError):
        return BAD_INPUT if error.is_bad_input else FAILED
    if isinstance(error, MissError):
        return MISS
    if isinstance(error, (WorkerError, ToolkitError, HipError, HipUnavailableError, OSError)):
        return ENVIRONMENT
    if isinstance(error, FlycError):
        # The bundle writer words what the system refused, and keeps it as the cause.
        return ENVIRONMENT if isinstance(error.__cause__, OSError) else BAD_INPUT
    return DEFECT
