"""The target being compiled for, fixed when this module is imported (one target a process)."""

from flydsl.compiler.backends import get_backend

ARCH = get_backend().target.arch
WAVE_THREADS = get_backend().target.warp_size
IS_CDNA = ARCH.startswith("gfx9")
