"""Kernels as torch custom operators, which `torch.compile` and `torch.export` keep as they are.

Nothing else here imports this module, or torch. An operator takes the launcher's arguments in
order, without the stream: it launches on torch's current one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from runtime_loader.errors import ArgumentError, MissError
from runtime_loader.signature import Form, PointerForm, ScalarForm, StreamForm, TensorForm
from runtime_loader.specialisation import format_params

if TYPE_CHECKING:
    from torch._library.custom_ops import CustomOpDef

    from runtime_loader.kernel import Kernel
    from runtime_loader.loader import Bundle
    from runtime_loader.specialisation import Specialisation


def register(
    name: str, bundle: Bundle, kernel: str, /, *, mutates: Sequence[str], **params: Any
) -> CustomOpDef:
    """Register a specialisation as the operator `name` (`namespace::operator`), and return it.

    `mutates` names the tensors and pointers that the kernel writes to, which a bundle does not
    know: torch may reorder or drop calls that write to nothing. `params` select as in
    `Bundle.kernel`. The operator returns nothing. Tracing calls checks dtypes, ranks and static
    extents, and needs no device; the kernel is loaded by the first call on each device, or by
    `Bundle.preload`. Registering a name again replaces it. Raises `MissError`, and
    `ArgumentError` for what cannot be an operator.
    """
    spec = _select(bundle, kernel, params)
    forms = [form for form in spec.signature if not isinstance(form, StreamForm)]
    schema = _schema(spec, forms, mutates)
    launch = _launcher(bundle, spec, forms)
    operator = torch.library.custom_op(name, launch, mutates_args=tuple(mutates), schema=schema)
    operator.register_fake(_fake(spec, forms))
    return operator


def _select(bundle: Bundle, kernel: str, params: dict[str, Any]) -> Specialisation:
    """The specialisation with these parameters, for whichever target: all have one signature."""
    known = bundle.specialisations(kernel)
    found = [s for s in known if all(s.params.get(name) == value for name, value in params.items())]
    if not found:
        raise MissError(
            f"{bundle.path} has no {kernel}({format_params(params)}); it has "
            f"{', '.join(sorted({format_params(s.params) for s in known})[:8])}"
        )
    for other in found[1:]:
        if other.params != found[0].params:
            raise MissError(
                f"{kernel}({format_params(params)}) is several specialisations, and an operator is "
                f"one: ({format_params(found[0].params)}), ({format_params(other.params)}), …"
            )
        if other.signature != found[0].signature:
            raise ArgumentError(
                f"{found[0].label()} and {other.label()} take other arguments: they cannot be one "
                "operator"
            )
    return found[0]


def _schema(spec: Specialisation, forms: Sequence[Form], mutates: Sequence[str]) -> str:
    memory = [form.name for form in forms if isinstance(form, (TensorForm, PointerForm))]
    for wrong in (name for name in mutates if name not in memory):
        raise ArgumentError(
            f"{spec.label()} has no tensor or pointer {wrong!r} to write to; it has "
            f"{', '.join(memory) or 'none'}"
        )
    listed = []
    for number, form in enumerate(forms):
        alias = f"(a{number}!)" if form.name in mutates else ""
        listed.append(f"{_type(spec, form, alias)} {form.name}")
    return f"({', '.join(listed)}) -> ()"


def _type(spec: Specialisation, form: Form, alias: str) -> str:
    if isinstance(form, TensorForm):
        return f"Tensor{alias}"
    if isinstance(form, PointerForm):
        return f"Tensor{alias}?"
    if isinstance(form, ScalarForm):
        if form.type == "i1":
            return "bool"
        return "float" if form.type.startswith(("f", "bf")) else "SymInt"
    raise ArgumentError(
        f"{spec.label()}: argument {form.name!r} is a struct, which no operator of torch can take"
    )


def _launcher(bundle: Bundle, spec: Specialisation, forms: Sequence[Form]) -> Callable[..., None]:
    kernels: dict[int | None, Kernel] = {}
    places = [i for i, form in enumerate(forms) if isinstance(form, (TensorForm, PointerForm))]
    has_stream = len(forms) < len(spec.signature)
    stream_name = next((f.name for f in spec.signature if isinstance(f, StreamForm)), "")

    def launch(*args: Any, **named: Any) -> None:
        if named:
            args = (*args, *(named[form.name] for form in forms[len(args) :]))
        device = next((args[i].device.index for i in places if args[i] is not None), None)
        kernel = kernels.get(device)
        if kernel is None:
            kernel = kernels[device] = bundle.kernel(spec.kernel, device=device, **spec.params)
        values = dict(zip((form.name for form in forms), args, strict=True))
        if has_stream and torch.cuda.is_available():
            values[stream_name] = torch.cuda.current_stream(device)
        kernel(**values)

    return launch


def _fake(spec: Specialisation, forms: Sequence[Form]) -> Callable[..., None]:
    """What tracing calls: it refuses what every launch would refuse, and computes nothing."""
    label = spec.label()
    dtypes = {form.name: _dtype(form) for form in forms}

    def fake(*args: Any, **named: Any) -> None:
        values = dict(zip((form.name for form in forms), args, strict=False)) | named
        for form in forms:
            tensor, dtype = values[form.name], dtypes[form.name]
            if isinstance(tensor, torch.Tensor) and dtype is not None and tensor.dtype != dtype:
                raise ArgumentError(
                    f"{label}: argument {form.name!r} is {tensor.dtype}, not {dtype}"
                )
            if isinstance(form, TensorForm):
                _check_extents(form, tensor, label)

    return fake


def _check_extents(form: TensorForm, tensor: torch.Tensor, label: str) -> None:
    if tensor.dim() != len(form.shape):
        raise ArgumentError(
            f"{label}: argument {form.name!r} has {tensor.dim()} dimensions, not {len(form.shape)}"
        )
    for axis, (extent, wanted) in enumerate(zip(tensor.shape, form.shape, strict=True)):
        if wanted >= 0 and extent != wanted:
            raise ArgumentError(
                f"{label}: argument {form.name!r} has shape[{axis}] = {extent}, not {wanted}"
            )


def _dtype(form: Form) -> torch.dtype | None:
    """The dtype that a form takes; None when it takes several, or torch has none for it."""
    from runtime_loader.element_types import ELEMENT_TYPES

    if not isinstance(form, (TensorForm, PointerForm)):
        return None
    names = ELEMENT_TYPES[form.dtype].torch
    dtype = getattr(torch, names[0], None) if len(names) == 1 else None
    return dtype if isinstance(dtype, torch.dtype) else None
