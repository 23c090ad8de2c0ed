"""Freezes the target's wave size when it is imported, as many kernel modules do."""

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.runtime.device import get_rocm_arch, get_warp_size

ARCH = get_rocm_arch()
WAVE = get_warp_size()


@flyc.kernel
def wave_kernel(out: fx.Pointer):
    lane = fx.Int32(fx.thread_idx.x)
    out[fx.Int64(lane)] = fx.shuffle_xor(lane, WAVE // 2, WAVE) + WAVE


@flyc.jit
def exchange(out: fx.Pointer):
    wave_kernel(out).launch(grid=(WAVE, 1, 1), block=(WAVE, 1, 1))
