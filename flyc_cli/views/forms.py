"""How argument forms look: `bf16[?, 4096] align 16`."""

from __future__ import annotations

from runtime_loader.signature import Form, PointerForm, ScalarForm, StructForm, TensorForm


def form_text(form: Form) -> str:
    """What a caller passes for an argument, without its name."""
    if isinstance(form, TensorForm):
        return _tensor_text(form)
    if isinstance(form, PointerForm):
        return f"pointer to {form.dtype} align {form.align}{_optional(form)}"
    if isinstance(form, ScalarForm):
        return form.type + _optional(form)
    if isinstance(form, StructForm):
        fields = [f"{f.name}: {form_text(f)}" for f in form.fields]
        fields += [f"{name} = {value!r}" for name, value in form.constants]
        return "{" + ", ".join(fields) + "}"
    return "stream (implicit)" if form.implicit else "stream"


def _optional(form: PointerForm | ScalarForm) -> str:
    return "" if form.default is None else " (optional)"


def _tensor_text(form: TensorForm) -> str:
    text = f"{form.dtype}[{_leaves(form.shape)}] strides [{_leaves(form.strides)}]"
    if form.stride_bits != 64 and any(stride < 0 for stride in form.strides):
        text += f" of {form.stride_bits} bits"
    return f"{text} align {form.align}"


def _leaves(values: tuple[int, ...]) -> str:
    """Static values as they are; dynamic ones as manifests write them, `?` or `?8`."""
    return ", ".join(
        str(value) if value >= 0 else "?" if value == -1 else f"?{-value}" for value in values
    )
