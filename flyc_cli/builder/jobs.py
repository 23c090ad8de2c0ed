"""How many workers run at once unless told otherwise: what cores and memory allow.

Both are what is left of the control groups that this process is in, not only the machine's.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

# A worker peaks at 0.45 to 0.7 GB.
WORKER_BYTES = 700_000_000
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)
_CACHE = re.compile(r"^(?:total_)?inactive_file (\d+)$", re.MULTILINE)


def default_jobs(root: Path = Path("/")) -> int:
    """At least one. `root` has `proc` and `sys`."""
    cores = min([len(os.sched_getaffinity(0)), *(math.ceil(q) for q in _cpu_quotas(root))])
    memory = [_available_memory(root), *_memory_left(root)]
    known = [left for left in memory if left is not None]
    return max(1, min([cores, *(left // WORKER_BYTES for left in known)]))


def _available_memory(root: Path) -> int | None:
    """Bytes that new processes can take without swapping (proc_meminfo(5)), if Linux says so."""
    match = _AVAILABLE.search(_text(root / "proc/meminfo"))
    return int(match[1]) * 1024 if match else None


def _cpu_quotas(root: Path) -> Iterator[float]:
    """Cores' worth of time that each control group allows (kernel docs: cgroup-v2, sched-bwc)."""
    for group in _groups(root, ""):
        quota, _, period = _text(group / "cpu.max").strip().partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            yield int(quota) / int(period)
    for group in _groups(root, "cpu"):
        quota, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
        if quota.strip().isdigit() and period.strip().isdigit() and int(period):
            yield int(quota) / int(period)


def _memory_left(root: Path) -> Iterator[int]:
    """Bytes below the limit of each control group; what only caches files does not count."""
    for controller, limit, used in (
        ("", "memory.max", "memory.current"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        for group in _groups(root, controller):
            most, now = _text(group / limit).strip(), _text(group / used).strip()
            if most.isdigit() and now.isdigit():
                cached = _CACHE.search(_text(group / "memory.stat"))
                yield max(0, int(most) - int(now) + (int(cached[1]) if cached else 0))


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The directories of this process's control group and of those around it (cgroups(7)).

    `controller` is empty for version 2. In a container the group may be mounted as the root.
    """
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / controller
        inner = Path(path.lstrip("/"))
        for group in dict.fromkeys([inner, *inner.parents, Path()]):
            if (mount / group).is_dir():
                yield mount / group


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
