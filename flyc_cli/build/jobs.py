"""How many workers run at once unless told otherwise: what cores and memory allow."""

from __future__ import annotations

import os
import re
from pathlib import Path

# A worker peaks at 0.45 to 0.7 GB.
WORKER_BYTES = 700_000_000
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)


def default_jobs() -> int:
    """At least one."""
    cores = len(os.sched_getaffinity(0))
    memory = _available_memory()
    return cores if memory is None else max(1, min(cores, memory // WORKER_BYTES))


def _available_memory() -> int | None:
    """Bytes that new processes can take without swapping (proc_meminfo(5)), if Linux says so."""
    try:
        match = _AVAILABLE.search(Path("/proc/meminfo").read_text())
    except OSError:
        return None
    return int(match[1]) * 1024 if match else None
