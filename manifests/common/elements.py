"""Element types by name, and how many of them one 128-bit memory access moves."""

import flydsl.expr as fx

ELEMENT_TYPES = {"f32": fx.Float32, "f16": fx.Float16, "bf16": fx.BFloat16}


def element_type(name):
    """Return the FlyDSL type called ``name``: ``f32``, ``f16`` or ``bf16``."""
    if name not in ELEMENT_TYPES:
        raise ValueError(f"dtype {name!r} is not one of {', '.join(ELEMENT_TYPES)}")
    return ELEMENT_TYPES[name]


def elements_per_access(element):
    """Elements of type ``element`` in the widest (128-bit) global or LDS access."""
    return 128 // element.width
