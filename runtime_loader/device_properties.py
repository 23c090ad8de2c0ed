"""What HIP says a device is: one field of a structure that there are two versions of."""

from __future__ import annotations

import ctypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runtime_loader.hip import Hip

# Where `char gcnArchName[256]` starts in hipDeviceProp_t: hip_runtime_api.h of ROCm/HIP, structs
# hipDeviceProp_tR0600 (HIP 6 and 7, 1472 bytes) and hipDeviceProp_tR0000 (hip_deprecated.h). The
# symbol without a suffix still fills the older one (ROCm/clr, hipamd/src/hip_device.cpp).
_OFFSET = {"hipGetDevicePropertiesR0600": 1160, "hipGetDeviceProperties": 396}
_SIZE = 256
_ROOM = 4096


def arch_name(hip: Hip, ordinal: int) -> str:
    """The `gcnArchName` of a device, such as `gfx942:sramecc+:xnack-`. Raises `HipError`."""
    newest, oldest = _OFFSET
    call = newest if hip.has(newest) else oldest
    properties = ctypes.create_string_buffer(_ROOM)
    hip.call(call, f"asking what device {ordinal} is", properties, ordinal)
    field = properties.raw[_OFFSET[call] : _OFFSET[call] + _SIZE]
    return field.split(b"\0")[0].decode(errors="replace")
