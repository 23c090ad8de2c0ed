"""Which launchers a piece of Python reaches, with which compile-time values and argument forms.

Every way to a launch goes through one of the names below, which recording replaces; the code in
between runs as it always does, and nothing is launched. Beside those of
`flydsl_adapter` this stands on (FlyDSL 0.3.1 to 0.5.0):

- `JitFunction.__call__`, also for methods; while a launcher is traced it passes through;
- `jit_function._compile_impl`, which `flyc.compile(...)` and `flyc.compile[...](...)` call;
- `JitFunction._effective_compile_hints()`: persistent hints and those of the context;
- `jit_argument.DLTensorJitArg`, the class behind `flyc.from_dlpack`;
- `autotune.Autotuner`: `.configs`, `._prune`, `._run_config`, `__call__`, `resolve_config`.
"""

from __future__ import annotations

import contextlib
import enum
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from flydsl._mlir import ir
from flydsl.compiler import jit_argument, jit_function
from flydsl.compiler.jit_argument import JitArgumentRegistry, MemRefJitArg, PointerJitArg
from flydsl.compiler.protocol import JitArgument
from flydsl.expr.struct import _effective_field_defs, _is_constexpr_type, is_struct_type
from flydsl.expr.typing import AddressSpace, Stream

from flyc_cli.frontends import flydsl_adapter as adapter
from flyc_cli.frontends.errors import InputError
from runtime_loader.signature import (
    Form,
    PointerForm,
    ScalarForm,
    StreamForm,
    StructForm,
    TensorForm,
)


@dataclass(frozen=True)
class Call:
    """One launch that was reached. `call` are the arguments to trace `launcher` with.

    `values` are its compile-time values and `closed_over` those in its closure, as far as they are
    plain JSON. `config` is the configuration that a tuned kernel was called with, else None.
    `label` is the name of the run, or the launcher's own; `origin` is its `module:qualname`.
    """

    launcher: Any
    owner: Any
    name: str
    label: str
    origin: str
    forms: tuple[Form, ...]
    call: Mapping[str, Any]
    values: Mapping[str, Any]
    closed_over: Mapping[str, Any]
    hints: Mapping[str, Any]
    config: Mapping[str, Any] | None


@dataclass(frozen=True)
class Run:
    """Code that launches, and what its launches are called unless that is None."""

    label: str | None
    code: Callable[[], object]


def record(runs: Sequence[Run], reached: Callable[[int, Call], None]) -> list[Call]:
    """Run `runs` and return the launches that they reach, each different one once.

    `reached(number, call)` is called at the place of the launch, where the context of the calling
    code is still there. A tuned kernel makes them run again for each of its configurations.
    """
    recorder = _Recorder(reached)
    with recorder.installed():
        while True:
            for run in runs:
                recorder.begin(run)
                run.code()
            recorder.choice += 1
            if recorder.choice >= recorder.choices:
                return recorder.calls


class CompiledStub:
    """What `flyc.compile(...)` returns while recording: calling it launches what is recorded."""

    def __call__(self, *_: Any) -> None:
        return None

    def max_blocks_per_cu(self) -> int:
        raise InputError(
            "the captured code asks how many blocks of a compiled kernel fit on a device "
            "(max_blocks_per_cu), which only a device can answer; pass that number in"
        )


class _Hook:
    """Stands before `JitFunction.__call__` from the import of this module on.

    A bound method holds on to the `__call__` of its time, so it cannot be replaced any later.
    """

    launch = jit_function.JitFunction.__call__

    @staticmethod
    def reached(launcher: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call was recorded, instead of being made."""
        return False


def _call(launcher: Any, *args: Any, **kwargs: Any) -> Any:
    if _Hook.reached(launcher, args, kwargs):
        return None
    return _Hook.launch(launcher, *args, **kwargs)


jit_function.JitFunction.__call__ = _call


class _Recorder:
    def __init__(self, reached: Callable[[int, Call], None]) -> None:
        self._reached = reached
        self._keys: set[Any] = set()
        self._kept: list[Any] = []  # keys hold ids
        self._config: Mapping[str, Any] | None = None
        self._busy = False
        self._label: str | None = None
        self.calls: list[Call] = []
        self.choice = 0
        self.choices = 1

    def begin(self, run: Run) -> None:
        """What is launched from now on is `run`'s."""
        self._label = run.label
        self._config = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace FlyDSL's ways to a launch."""

        def reached(launcher: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
            if self._busy or ir.Context.current is not None:
                return False
            self._launched(launcher, args, kwargs)
            return True

        def compile_impl(launcher: Any, *args: Any, **kwargs: Any) -> CompiledStub:
            if adapter.launcher_of(launcher) is None:
                raise TypeError(
                    f"flyc.compile() expects a @flyc.jit function, got {type(launcher).__name__}"
                )
            launcher(*args, **kwargs)
            return CompiledStub()

        with contextlib.ExitStack() as stack:
            for owner, name, value in [
                (_Hook, "reached", staticmethod(reached)),
                (jit_function, "_compile_impl", compile_impl),
                (jit_argument, "DLTensorJitArg", _tensor_argument),
                *self._tuner_patches(),
            ]:
                stack.enter_context(mock.patch.object(owner, name, value))
            yield

    def _tuner_patches(self) -> Iterator[tuple[Any, str, Any]]:
        # Kernels can only be tuned if they imported this module.
        autotune = sys.modules.get("flydsl.autotune")
        if autotune is None:
            return
        run_config = autotune.Autotuner._run_config

        def run(tuner: Any, config: Any, args: Any, kwargs: Any) -> Any:
            with self._configured(config):
                return run_config(tuner, config, args, kwargs)

        def call(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            return tuner._run_config(self._choose(tuner, args, kwargs), args, kwargs)

        def resolve_config(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            # The caller launches on its own, so the choice holds until the end of this run.
            config = self._choose(tuner, args, kwargs)
            self._config = config.to_dict()
            return config

        yield autotune.Autotuner, "_run_config", run
        yield autotune.Autotuner, "__call__", call
        if hasattr(autotune.Autotuner, "resolve_config"):
            yield autotune.Autotuner, "resolve_config", resolve_config

    def _choose(self, tuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        configs = tuner.configs
        configs = list(configs(*args, **kwargs) if callable(configs) else configs)
        configs = list(tuner._prune(configs, args, kwargs))
        if not configs and tuner.default is not None:
            configs = [tuner.default(*args, **kwargs)]
        if not configs:
            raise InputError("the tuned kernel has no configuration for these arguments")
        self.choices = max(self.choices, len(configs))
        return configs[min(self.choice, len(configs) - 1)]

    @contextmanager
    def _configured(self, config: Any) -> Iterator[None]:
        before, self._config = self._config, config.to_dict()
        try:
            yield
        finally:
            self._config = before

    def _launched(self, launcher: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        call = self._describe(launcher, args, kwargs)
        key = (
            id(launcher),
            id(call.owner),
            call.forms,
            repr(call.hints),
            repr(call.config),
            tuple(_identity(value) for value in call.call.values()),
        )
        self._kept.append((args, kwargs))
        if key in self._keys:
            return
        self._keys.add(key)
        self.calls.append(call)
        self._busy = True
        try:
            self._reached(len(self.calls) - 1, call)
        finally:
            self._busy = False

    def _describe(self, launcher: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        signature = adapter.launcher_signature(launcher)
        name = launcher.func.__name__
        owner = None
        if launcher._has_self_param:
            if not args:
                raise TypeError(f"{name}() missing 'self' argument")
            owner, args = args[0], args[1:]
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        forms: list[Form] = []
        call: dict[str, Any] = {}
        values: dict[str, Any] = {}
        for parameter, value in bound.arguments.items():
            annotation = signature.parameters[parameter].annotation
            if adapter.is_compile_time(annotation):
                call[parameter] = value
                with contextlib.suppress(TypeError):
                    values[parameter] = json_value(value)
                continue
            call[parameter] = _argument(parameter, value, annotation)
            form = describe(parameter, call[parameter])
            forms.append(adapter.with_default(form, signature.parameters[parameter].default))
        if not any(isinstance(form, StreamForm) for form in forms):
            forms.append(StreamForm("stream", implicit=True))
        return Call(
            launcher=launcher,
            owner=owner,
            name=name,
            label=self._label or name,
            origin=f"{launcher.func.__module__}:{launcher.func.__qualname__}",
            forms=tuple(forms),
            call=call,
            values=values,
            closed_over=_closure(launcher),
            hints=dict(launcher._effective_compile_hints()),
            config=self._config,
        )


def _tensor_argument(
    tensor: Any,
    assumed_align: int | None = None,
    use_32bit_stride: bool = False,
    dynamic_layout: bool = True,
) -> Any:
    """`DLTensorJitArg` for tensors that have no data to export."""
    return jit_argument.TorchTensorJitArg(tensor, assumed_align, use_32bit_stride, dynamic_layout)


def _argument(name: str, value: Any, annotation: Any) -> Any:
    """The `JitArgument` of a call's value, by the rules of `convert_to_jit_arguments`."""
    if isinstance(value, JitArgument):
        return value
    if isinstance(annotation, type) and issubclass(annotation, JitArgument):
        return annotation(value)
    constructor, _ = JitArgumentRegistry.get(type(value))
    if constructor is None:
        raise InputError(f"argument {name}: FlyDSL takes no {type(value).__name__}")
    return constructor(value)


def describe(name: str, argument: Any) -> Form:
    """The form of a `JitArgument`."""
    if isinstance(argument, adapter.TensorArgument):
        return argument.form_named(name)
    if isinstance(argument, MemRefJitArg):
        return _tensor_form(name, argument)
    if isinstance(argument, PointerJitArg):
        if argument.address_space != AddressSpace.Global:
            raise InputError(f"argument {name} is a pointer to {argument.address_space} memory")
        return PointerForm(name, _element_name(name, argument.element_type), argument.alignment)
    if isinstance(argument, Stream):
        return StreamForm(name)
    if is_struct_type(type(argument)):
        return _struct_form(name, argument)
    return ScalarForm(name, _element_name(name, type(argument)))


def _struct_form(name: str, argument: Any) -> StructForm:
    fields: list[Form] = []
    constants: list[tuple[str, Any]] = []
    for field, kind in _effective_field_defs(type(argument)):
        value = getattr(argument, field)
        if _is_constexpr_type(kind):
            constants.append((field, value))
        else:
            fields.append(describe(field, _argument(field, value, kind)))
    return StructForm(name, tuple(fields), adapter.plain_constants(constants))


def _tensor_form(name: str, argument: Any) -> TensorForm:
    spec = argument._ensure_spec()
    with ir.Context():
        element = str(argument.element_type)
    dtype = adapter.element_name(element)
    if dtype is None:
        raise InputError(f"argument {name}: {element} is not an element type that flyc knows")
    return TensorForm(
        name=name,
        dtype=dtype,
        shape=tuple(spec.shape),
        strides=tuple(spec.stride),
        align=spec.alignment,
        stride_bits=32 if spec.use_32bit_stride else 64,
    )


def _element_name(name: str, numeric: Any) -> str:
    known = adapter.numeric_name(numeric)
    if known is None:
        raise InputError(f"argument {name}: {numeric} is not a type that flyc knows")
    return known


def _identity(value: Any) -> Any:
    """Equal for two arguments exactly if they mean the same to a compile."""
    if isinstance(value, JitArgument):
        return type(value)
    try:
        return type(value), repr(json_value(value))
    except TypeError:
        return id(value)


def json_value(value: Any) -> Any:
    """A compile-time value as `params` show it; `TypeError` if it has no plain form."""
    if isinstance(value, enum.Enum):
        return value.name
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [json_value(item) for item in value]
    name = adapter.numeric_name(value)
    if name is None and type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        name = str(value).removeprefix("torch.")
    if name is None:
        raise TypeError(f"{value!r:.40} is not plain")
    return name


def _closure(launcher: Any) -> dict[str, Any]:
    """The plain values that a launcher and the kernels it launches take from their factory."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    pending = [launcher]
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        function = getattr(value, "_func", None) or getattr(value, "func", None) or value
        if not inspect.isfunction(function):
            continue
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            with contextlib.suppress(ValueError):  # an empty cell
                inner = cell.cell_contents
                try:
                    found.setdefault(name, json_value(inner))
                except TypeError:
                    pending.append(inner)
    return found
