"""Branches, barriers, waits and the end of a program."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.hip_device.interpreter.operands import Form, scalar_destination, scalar_source
from tests.hip_device.interpreter.scalar import set_mode
from tests.hip_device.interpreter.state import EXEC, VCC, Step, Waves
from tests.hip_device.interpreter.values import U64, Array

# What a step can return instead of the address to go on at.
END, BARRIER, DIVERGED = -1, -2, -3

_NO_EFFECT = frozenset(
    {
        "s_nop", "s_sleep", "s_clause", "s_delay_alu", "s_wait_alu", "s_waitcnt", "s_wait_idle",
        "s_wait_event", "s_setprio", "s_sethalt", "s_icache_inv", "s_waitcnt_depctr", "s_sendmsg",
        "s_waitcnt_vscnt", "s_waitcnt_vmcnt", "s_waitcnt_lgkmcnt", "s_waitcnt_expcnt",
        "s_wait_loadcnt", "s_wait_storecnt", "s_wait_samplecnt", "s_wait_bvhcnt", "s_wait_expcnt",
        "s_wait_dscnt", "s_wait_kmcnt", "s_wait_loadcnt_dscnt", "s_wait_storecnt_dscnt",
        "s_incperflevel", "s_decperflevel", "s_ttracedata", "s_ttracedata_imm",
        "s_set_inst_prefetch_distance", "s_wakeup",
    }
)  # fmt: skip
_WORKGROUP_BARRIER = 0xFFFF  # -1


def build(form: Form) -> Step | None:
    """The step of an instruction that changes the flow; None if it is not known."""
    inst = form.inst
    name = inst.name
    if name in _NO_EFFECT:
        return lambda w: None
    if name in ("s_endpgm", "s_endpgm_saved"):
        return lambda w: END
    if name == "s_branch":
        target = _target(form)
        return lambda w: target
    if name in _CONDITIONS:
        return _branch(form, _CONDITIONS[name])
    if name in _BUILDERS:
        return _BUILDERS[name](form)
    return None


def _target(form: Form) -> int:
    inst = form.inst
    distance = inst.get("simm16")
    return inst.address + inst.size + 4 * (distance - (distance >> 15 << 16))


_CONDITIONS: dict[str, Callable[[Waves], Array]] = {
    "s_cbranch_scc0": lambda w: ~w.scc,
    "s_cbranch_scc1": lambda w: w.scc,
    "s_cbranch_vccz": lambda w: w.mask_is_empty(VCC),
    "s_cbranch_vccnz": lambda w: ~w.mask_is_empty(VCC),
    "s_cbranch_execz": lambda w: w.mask_is_empty(EXEC),
    "s_cbranch_execnz": lambda w: ~w.mask_is_empty(EXEC),
}


def _branch(form: Form, condition: Callable[[Waves], Array]) -> Step:
    target = _target(form)

    def step(w: Waves) -> int | None:
        taken = condition(w)
        count = int(np.count_nonzero(taken))
        if count == 0:
            return None
        if count == w.count:
            return target
        w.taken, w.taken_target = taken, target
        return DIVERGED

    return step


def _barrier(form: Form) -> Step:
    def step(w: Waves) -> int:
        w.signals += 1
        return BARRIER

    return step


def _barrier_signal(form: Form) -> Step:
    code = form.inst.get("ssrc0")
    if code != 193:  # the inline constant -1
        raise form.unsupported("a barrier other than the workgroup's")

    def step(w: Waves) -> None:
        w.signals += 1
        w.around.arrived(w)

    return step


def _barrier_wait(form: Form) -> Step:
    if form.inst.get("simm16") != _WORKGROUP_BARRIER:
        raise form.unsupported("a barrier other than the workgroup's")
    return lambda w: BARRIER


def _jump(form: Form) -> Step:
    """s_setpc, s_swappc: to an address that all waves agree on."""
    inst = form.inst
    source = scalar_source(form, inst.get("ssrc0"), U64)
    following = inst.address + inst.size
    saves = inst.name == "s_swappc_b64"
    write = scalar_destination(form, inst.get("sdst"), U64) if saves else None

    def step(w: Waves) -> int:
        targets = np.unique(source(w))
        if targets.size != 1:
            raise form.unsupported("an indirect jump that differs between waves")
        if write is not None:
            write(w, np.full(w.count, w.around.code_base + following, np.uint64))
        return int(targets[0]) - w.around.code_base

    return step


def _call(form: Form) -> Step:
    inst = form.inst
    target, following = _target(form), inst.address + inst.size
    write = scalar_destination(form, inst.get("sdst"), U64)

    def step(w: Waves) -> int:
        write(w, np.full(w.count, w.around.code_base + following, np.uint64))
        return target

    return step


def _denorm_mode(form: Form) -> Step:
    bits = form.inst.get("simm16") & 15
    return lambda w: set_mode(form, w, bits << 4, 0xF0)


def _round_mode(form: Form) -> Step:
    bits = form.inst.get("simm16") & 15
    return lambda w: set_mode(form, w, bits, 0xF)


_BUILDERS: dict[str, Callable[[Form], Step]] = {
    "s_barrier": _barrier,
    "s_barrier_signal": _barrier_signal,
    "s_barrier_wait": _barrier_wait,
    "s_setpc_b64": _jump,
    "s_swappc_b64": _jump,
    "s_call_b64": _call,
    "s_denorm_mode": _denorm_mode,
    "s_round_mode": _round_mode,
}
