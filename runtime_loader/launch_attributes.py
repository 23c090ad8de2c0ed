"""Launches that say more than sizes: cooperative ones, and workgroup clusters."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char, c_uint, c_void_p

from runtime_loader.evaluate import ConcreteLaunch
from runtime_loader.hip import Hip

# hip_runtime_api.h: hipLaunchAttributeID.
_COOPERATIVE, _CLUSTER = 2, 4


class _Attribute(ctypes.Structure):
    _fields_ = (("id", c_uint), ("pad", c_uint), ("value", c_uint * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("lds", c_uint),
        ("stream", c_void_p),
        ("attributes", POINTER(_Attribute)),
        ("count", c_uint),
    )


def launch_with_attributes(
    hip: Hip, function: int, launch: ConcreteLaunch, offsets: tuple[int, ...], doing: str
) -> None:
    """Launch with one pointer for each parameter, since HIP wants these launches so.

    (hipModuleLaunchCooperativeKernel has no `extra`, and hipDrvLaunchKernelEx of HIP 7 does not
    pass it on.) `offsets` are those of the parameters in the packed kernarg.
    """
    buffer = (c_char * len(launch.kernarg)).from_buffer_copy(launch.kernarg)
    start = ctypes.addressof(buffer)
    params = (c_void_p * len(offsets))(*[start + offset for offset in offsets])
    if launch.cluster is None:
        hip.call(
            "hipModuleLaunchCooperativeKernel",
            doing,
            *(function, *launch.grid, *launch.block, launch.lds, launch.stream, params),
        )
        return
    attributes = (_Attribute * 2)()
    attributes[0].id = _CLUSTER
    attributes[0].value[:3] = launch.cluster
    attributes[1].id = _COOPERATIVE
    attributes[1].value[0] = 1
    config = _Config(
        (c_uint * 3)(*launch.grid),
        (c_uint * 3)(*launch.block),
        launch.lds,
        launch.stream,
        attributes,
        2 if launch.cooperative else 1,
    )
    hip.call("hipDrvLaunchKernelEx", doing, ctypes.byref(config), function, params, None)
