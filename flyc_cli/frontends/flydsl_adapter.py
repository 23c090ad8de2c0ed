"""Everything of flyc that touches FlyDSL's private names.

Checked on FlyDSL 0.3.1, 0.3.4, 0.4.2 and 0.5.0. What it stands on:

- `flydsl.compiler.jit_function._run_pipeline(module, fragments, *, verifier, print_after_all)`,
  looked up as a module attribute at every compile: replacing it hands over the traced module with
  its context alive and FlyDSL's pass list;
- `JitFunction.func`, `.compile_hints`, `._ensure_sig()`, `._sig`;
- `CompilationContext.create`, looked up on the class at every trace, and the context's
  `.post_load_processors`;
- `JitArgumentRegistry.register_jit_arg` and the `JitArgument` protocol;
- `MemRefType.get(element, shape, strides, use_32bit_stride, alignment)`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flydsl
import flydsl.expr as fx
from flydsl._mlir import ir
from flydsl.compiler import jit_function
from flydsl.compiler.backends import get_backend
from flydsl.compiler.jit_argument import (
    JitArgumentRegistry,
    PointerJitArg,
    is_type_param_annotation,
)
from flydsl.compiler.kernel_function import CompilationContext, KernelFunction
from flydsl.compiler.llvm_options import llvm_options
from flydsl.expr.numeric import Numeric
from flydsl.expr.struct import is_struct_type
from flydsl.expr.typing import Constexpr, Pointer, Stream, Tensor

from flyc_cli.frontends.environment import without_settings
from flyc_cli.frontends.errors import InputError
from runtime_loader.records import replace
from runtime_loader.scalars import packer
from runtime_loader.signature import (
    Form,
    PointerForm,
    ScalarForm,
    StreamForm,
    StructForm,
    TensorForm,
)

VERSION: str = flydsl.__version__

# FlyDSL's name of each element type (flydsl.expr.numeric).
_NUMERICS = {
    "i1": "Boolean",
    "index": "Index",
    "f16": "Float16",
    "bf16": "BFloat16",
    "f32": "Float32",
    "f64": "Float64",
    "f8e4m3fn": "Float8E4M3FN",
    "f8e4m3fnuz": "Float8E4M3FNUZ",
    "f8e5m2": "Float8E5M2",
    "f8e5m2fnuz": "Float8E5M2FNUZ",
    "f8e8m0fnu": "Float8E8M0FNU",
    "f6e2m3fn": "Float6E2M3FN",
    "f6e3m2fn": "Float6E3M2FN",
    "f4e2m1fn": "Float4E2M1FN",
    **{f"i{bits}": f"Int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"Uint{bits}" for bits in (8, 16, 32, 64)},
}


# What flyc builds on, beyond what this module imports by name: (object, attribute).
_SEAMS = (
    (jit_function, "_run_pipeline"),
    (jit_function.JitFunction, "_ensure_sig"),
    (JitArgumentRegistry, "register_jit_arg"),
    (fx.MemRefType, "get"),
)


def check_seams() -> None:
    """Raise `AttributeError` naming what this FlyDSL lacks of the names that flyc builds on."""
    for owner, name in _SEAMS:
        if not callable(getattr(owner, name, None)):
            raise AttributeError(f"{owner.__name__} has no {name}")


def set_environment(processor: str, extra: Mapping[str, str]) -> None:
    """Fix what FlyDSL reads from the environment, before any kernel module is imported."""
    kept = without_settings(os.environ)
    for name in os.environ.keys() - kept.keys():
        del os.environ[name]
    os.environ.update(
        extra,
        COMPILE_ONLY="1",
        FLYDSL_RUNTIME_ENABLE_CACHE="0",
        FLYDSL_GPU_ARCH=processor,
        ARCH=processor,
    )


def numeric_type(name: str) -> Any:
    """FlyDSL's numeric class for an element type of ELEMENT_TYPES."""
    numeric = getattr(fx, _NUMERICS[name], None)
    if numeric is None:
        raise InputError(f"FlyDSL {VERSION} has no element type {name}")
    return numeric


def numeric_name(numeric: Any) -> str | None:
    """The element type's name for FlyDSL's numeric class, if it is one."""
    if not isinstance(numeric, type):
        return None
    return next((n for n, c in _NUMERICS.items() if getattr(fx, c, None) is numeric), None)


def element_name(mlir: str) -> str | None:
    """The element type's name for MLIR's (`f8E4M3FN`), if there is one."""
    name = mlir.lower()
    return name if name in _NUMERICS else None


def _element_type(name: str) -> Any:
    # FlyDSL takes such tensors from torch, and has no numeric class for them.
    if name == "f8e5m2fnuz":
        return ir.Float8E5M2FNUZType.get()
    return numeric_type(name).ir_type


class TensorArgument:
    """A `JitArgument` that has a tensor's type and no tensor: it can be compiled, not launched."""

    def __init__(self, form: TensorForm) -> None:
        self._form = form

    def form_named(self, name: str) -> TensorForm:
        """The tensor's form, as the argument `name` of another function."""
        return replace(self._form, name=name)

    def __get_ir_types__(self) -> list[Any]:
        form = self._form
        element = _element_type(form.dtype)
        return [
            fx.MemRefType.get(
                element, list(form.shape), list(form.strides), form.stride_bits == 32, form.align
            )
        ]

    def __c_abi_spec__(self) -> list[Any]:
        raise NotImplementedError("an argument of a build has no value")

    def __cache_signature__(self) -> tuple[Any, ...]:
        return (type(self), self._form)


JitArgumentRegistry.register_jit_arg(TensorArgument, Tensor)


@dataclass(frozen=True)
class Traced:
    """What tracing hands to lowering: the module (context alive) and FlyDSL's pass list.

    `post_load` names the functions that must run on the loaded module, as `module:name`;
    `llvm_options` are those that FlyDSL has set in its own LLVM meanwhile.
    """

    module: Any
    fragments: tuple[str, ...]
    post_load: tuple[str, ...] = ()
    llvm_options: Mapping[str, bool | int | str] = field(default_factory=dict)


def is_launcher(value: object) -> bool:
    """Whether `value` is what `@flyc.jit` returns."""
    return isinstance(value, jit_function.JitFunction)


def is_kernel(value: object) -> bool:
    """Whether `value` is what `@flyc.kernel` returns."""
    return isinstance(value, KernelFunction)


def launcher_of(value: object) -> Any:
    """The launcher that `value` calls: its own, a bound method's, a `functools.partial`'s."""
    while isinstance(value, functools.partial):
        value = value.func
    value = getattr(value, "__self__", value)
    return value if is_launcher(value) else None


def launcher_signature(launcher: Any) -> inspect.Signature:
    """The launcher's parameters with annotations resolved."""
    launcher._ensure_sig()
    return inspect.Signature(launcher._sig.parameters.values())


def order_arguments(
    launcher: Any, forms: Sequence[Form], constexpr: Mapping[str, Any]
) -> tuple[tuple[Form, ...], dict[str, Any]]:
    """Match the manifest's arguments with the launcher's parameters.

    Returns the forms in the launcher's order, with the implicit stream last, and the keyword
    arguments to trace the launcher with. Raises `InputError` where the two disagree.
    """
    by_name = {form.name: form for form in forms}
    values = dict(constexpr)
    ordered: list[Form] = []
    call: dict[str, Any] = {}
    for name, parameter in launcher_signature(launcher).parameters.items():
        annotation = parameter.annotation
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise InputError(
                f"the launcher takes any number of arguments ({parameter}), which neither FlyDSL "
                "nor a manifest can describe: name each of them"
            )
        if is_compile_time(annotation):
            if name in values:
                call[name] = values.pop(name)
            elif name in by_name:
                raise InputError(f"{name} is a compile-time parameter: list it under constexpr")
            elif parameter.default is inspect.Parameter.empty:
                raise InputError(f"compile-time parameter {name} has no value: add it to constexpr")
            continue
        form = by_name.pop(name, None)
        if form is None and getattr(annotation, "_is_stream_param", False):
            form = StreamForm(name)
        if form is None:
            what = "a run-time argument, not a constexpr" if name in values else "not described"
            raise InputError(f"argument {name} is {what}: add it to args")
        form = with_default(_as_declared(form, annotation), parameter.default)
        ordered.append(_with_plain_constants(form))
        call[name] = _checked_argument(form, annotation)
    _refuse_leftovers([*values, *by_name], launcher)
    if not any(isinstance(form, StreamForm) for form in ordered):
        ordered.append(StreamForm(_free_name("stream", call), implicit=True))
    return tuple(ordered), call


def with_constants(
    forms: Sequence[Form], constexpr: Mapping[str, Any]
) -> tuple[tuple[Form, ...], dict[str, Any]]:
    """Move the compile-time fields of structs, named by path in `constexpr`, into their forms."""
    paths = {name: value for name, value in constexpr.items() if "." in name}
    own = {name: value for name, value in constexpr.items() if "." not in name}
    return tuple(_with_constants(form, form.name, paths) for form in forms), own


def _with_constants(form: Form, path: str, values: Mapping[str, Any]) -> Form:
    if not isinstance(form, StructForm):
        return form
    fields = (_with_constants(field, f"{path}.{field.name}", values) for field in form.fields)
    constants = tuple(
        (name.rpartition(".")[2], value)
        for name, value in values.items()
        if name.rpartition(".")[0] == path
    )
    return replace(form, fields=tuple(fields), constants=constants)


def _with_plain_constants(form: Form) -> Form:
    if not isinstance(form, StructForm):
        return form
    fields = tuple(map(_with_plain_constants, form.fields))
    return replace(form, fields=fields, constants=plain_constants(form.constants))


def plain_constants(constants: Iterable[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    """Those compile-time fields of a struct that a bundle can hold, and a loader compare."""
    return tuple((name, value) for name, value in constants if _is_plain(value))


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return type(value) in (bool, int, float, str)


def trace(
    launcher: Any,
    call: Mapping[str, Any],
    hints: Mapping[str, Any],
    lower: Callable[[Traced], None],
    owner: object = None,
) -> None:
    """Trace `launcher` and call `lower` with the module at the point where FlyDSL lowers it.

    `owner` is the object that a launcher with a `self` parameter is a method of.
    """
    reached = False
    contexts: list[Any] = []

    def run_pipeline(module: Any, fragments: Sequence[str], **_: Any) -> None:
        nonlocal reached
        reached = True
        options = CompilationContext.get_compile_hints().get("llvm_options") or {}
        lower(Traced(module, tuple(fragments), _post_load(contexts[-1]), dict(options)))

    launcher.compile_hints = {**launcher.compile_hints, **hints}
    jit_function._run_pipeline = run_pipeline
    with _compilation_contexts(contexts):
        launcher(*(() if owner is None else (owner,)), **call)
    if not reached:
        raise InputError(f"FlyDSL {VERSION} did not lower the launcher when it was called")


@contextlib.contextmanager
def _compilation_contexts(seen: list[Any]) -> Iterator[None]:
    """Keep what tracing collects: FlyDSL leaves the context before it lowers the module."""
    create = CompilationContext.create

    @contextlib.contextmanager
    def recorded() -> Iterator[Any]:
        with create() as context:
            seen.append(context)
            yield context

    CompilationContext.create = recorded
    try:
        yield
    finally:
        CompilationContext.create = create


def _post_load(context: Any) -> tuple[str, ...]:
    """The names of the functions that `link_extern` wants to run on the loaded module."""
    names = []
    for function in context.post_load_processors:
        module = getattr(function, "__module__", None)
        name = getattr(function, "__qualname__", None)
        if module is None or name is None or "<" in name:
            raise InputError(
                f"the kernel needs {function!r:.80} to run on its loaded module, and a bundle can "
                "only name a function of a module: define it with def at the top of one"
            )
        names.append(f"{module}:{name}")
    return tuple(dict.fromkeys(names))


def lower_module(
    module: Any, processor: str, hints: Mapping[str, Any], lower: Callable[[Traced], None]
) -> None:
    """Call `lower` with a module that was not traced, as FlyDSL would compile it with `hints`."""
    backend = get_backend(arch=processor)
    with module.context:
        if hasattr(backend, "lower_compile_hints"):
            backend.lower_compile_hints(module, compile_hints=dict(hints))
        fragments = tuple(backend.pipeline_fragments(compile_hints=dict(hints)))
        options = dict(hints.get("llvm_options", {}))
        with llvm_options(options):
            lower(Traced(module, fragments, llvm_options=options))


def is_compile_time(annotation: Any) -> bool:
    """Whether a parameter with this annotation is fixed at compile time."""
    return bool(
        Constexpr.is_constexpr_annotation(annotation) or is_type_param_annotation(annotation)
    )


def _refuse_leftovers(names: Sequence[str], launcher: Any) -> None:
    if names:
        known = ", ".join(launcher_signature(launcher).parameters)
        raise InputError(
            f"the launcher has no parameter {', '.join(names)}; its parameters are {known}"
        )


def _free_name(name: str, taken: Mapping[str, Any]) -> str:
    return _free_name(f"{name}_", taken) if name in taken else name


# What an annotation says an argument is: the annotated class, the form, and both in words.
_KINDS: tuple[tuple[type, type, str], ...] = (
    (Tensor, TensorForm, "a tensor"),
    (Pointer, PointerForm, "a pointer"),
    (Stream, StreamForm, "the stream"),
    (Numeric, ScalarForm, "a scalar"),
)


def _checked_argument(form: Form, annotation: Any) -> Any:
    """The argument for `form`, unless the launcher says that it is of another kind.

    FlyDSL only warns, and then fails wherever the body first uses the argument.
    """
    described = next((words for _, kind, words in _KINDS if isinstance(form, kind)), "a struct")
    if isinstance(annotation, type) and annotation is not inspect.Parameter.empty:
        declared = next((words for c, _, words in _KINDS if issubclass(annotation, c)), None)
        if declared is None and is_struct_type(annotation):
            declared = "a struct"
        if declared is not None and declared != described:
            raise InputError(
                f"argument {form.name} is {described} in the manifest, but the launcher declares "
                f"{declared} ({annotation.__name__})"
            )
    return _jit_argument(form, annotation)


def with_default(form: Form, default: Any) -> Form:
    """Record the launcher's own default of an argument, which a caller may then leave out.

    A struct's is that of its fields, unless it has other compile-time values than are built.
    """
    if isinstance(form, StructForm) and is_struct_type(type(default)):
        if any(getattr(default, name) != value for name, value in form.constants):
            return form
        fields = (with_default(field, getattr(default, field.name)) for field in form.fields)
        return replace(form, fields=tuple(fields))
    if default is inspect.Parameter.empty or not isinstance(form, ScalarForm | PointerForm):
        return form
    if isinstance(form, PointerForm):
        address = default.pointer.value if isinstance(default, PointerJitArg) else default
        return replace(form, default=address or 0)
    value = default.value if isinstance(default, Numeric) else default
    try:
        return replace(form, default=packer(form.type)(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"argument {form.name}: the launcher's default {value!r} is no {form.type}: {error}"
        ) from None


def _as_declared(form: Form, annotation: Any) -> Form:
    """A struct's fields in the order of its class, whatever that of the manifest."""
    if not (isinstance(form, StructForm) and isinstance(annotation, type)):
        return form
    hints = inspect.get_annotations(annotation, eval_str=True)
    places = {name: place for place, name in enumerate(hints)}
    fields = sorted(form.fields, key=lambda field: places.get(field.name, len(places)))
    return replace(
        form, fields=tuple(_as_declared(field, hints.get(field.name)) for field in fields)
    )


@functools.singledispatch
def _jit_argument(form: Form, annotation: Any) -> Any:
    raise TypeError(form)


@_jit_argument.register
def _(form: TensorForm, annotation: Any) -> Any:
    if not form.shape:
        raise InputError(f"argument {form.name}: FlyDSL {VERSION} has no tensors of rank 0")
    return TensorArgument(form)


@_jit_argument.register
def _(form: PointerForm, annotation: Any) -> Any:
    return PointerJitArg(numeric_type(form.dtype), None, alignment=form.align)


@_jit_argument.register
def _(form: StreamForm, annotation: Any) -> Any:
    return Stream(None)


@_jit_argument.register
def _(form: ScalarForm, annotation: Any) -> Any:
    numeric = numeric_type(form.type)
    if isinstance(annotation, type) and annotation is not inspect.Parameter.empty:
        declared = next((n for n, c in _NUMERICS.items() if getattr(fx, c, None) is annotation), "")
        if declared and declared != form.type:
            raise InputError(
                f"argument {form.name} is {form.type} in the manifest, but the launcher declares "
                f"{annotation.__name__} ({declared})"
            )
    return numeric(0)


@_jit_argument.register
def _(form: StructForm, annotation: Any) -> Any:
    if not isinstance(annotation, type) or annotation is inspect.Parameter.empty:
        raise InputError(f"argument {form.name} is a struct: annotate its type in the launcher")
    hints = inspect.get_annotations(annotation, eval_str=True)
    fields = {field.name: _checked_argument(field, hints.get(field.name)) for field in form.fields}
    try:
        return annotation(**fields, **dict(form.constants))
    except TypeError as error:
        raise InputError(f"argument {form.name}: {error}") from None


def import_object(module: str, qualname: str) -> Any:
    """`module:qualname`, or an `InputError` that says which part is missing."""
    value: Any = importlib.import_module(module)
    for index, part in enumerate(qualname.split(".")):
        try:
            value = getattr(value, part)
        except AttributeError:
            where = ".".join([module, *qualname.split(".")[:index]])
            launchers = [name for name, item in vars(value).items() if is_launcher(item)]
            have = f"; its launchers are {', '.join(launchers)}" if launchers else ""
            raise InputError(f"{where} has no {part}{have}") from None
    return value


def placeholders(
    forms: Sequence[Form], signature: inspect.Signature | None = None
) -> dict[str, Any]:
    """Arguments that have the types of `forms` and no values, by name.

    `signature` is that of what they are for; a stream that it has is passed in any case.
    """
    parameters = signature.parameters if signature else {}
    found = {
        form.name: _jit_argument(
            form, parameters[form.name].annotation if form.name in parameters else None
        )
        for form in forms
    }
    for name, parameter in parameters.items():
        if name not in found and getattr(parameter.annotation, "_is_stream_param", False):
            found[name] = Stream(None)
    return found
