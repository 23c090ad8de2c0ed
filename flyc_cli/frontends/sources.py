"""From what a manifest names to launchers: imports, factories, selections, typed values."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from flyc_cli.frontends import flydsl_adapter as adapter
from flyc_cli.frontends.errors import InputError
from flyc_cli.manifest.model import (
    EnumValue,
    ListValue,
    ObjectValue,
    Source,
    TupleValue,
    TypeValue,
    Value,
)


def find_source(source: Source) -> tuple[tuple[str | int | None, Any], ...]:
    """What `source` leads to, with the name that selected each: launchers, or callables that
    launch. One unless `select` is a list."""
    value = adapter.import_object(source.module, source.qualname)
    if source.kind == "factory":
        if not callable(value) or adapter.is_launcher(value):
            raise InputError(f"{source} is not a factory function; list it as a launcher")
        value = _made(source, value)
    selects = source.select if isinstance(source.select, tuple) else (source.select,)
    found = tuple((select, _select(value, select, source)) for select in selects)
    for _, item in found:
        if adapter.is_kernel(item):
            raise InputError(f"{source} leads to a kernel: name the launcher that launches it")
        if not callable(item):
            raise InputError(f"{source}{_not_a_launcher(item, source)}")
    return found


def python_values(values: Mapping[str, Value]) -> dict[str, Any]:
    """The Python objects that a manifest's values stand for."""
    return {name: _python_value(value) for name, value in values.items()}


def _made(source: Source, factory: Any) -> Any:
    """Call a factory; what it does not take goes to the factory that it returns."""
    left = python_values(source.kwargs)
    while True:
        taken = _takes(factory, left)
        _check_takes_enough(source, factory, left, taken)
        factory = factory(**{name: left.pop(name) for name in taken})
        if not left:
            return factory
        if not callable(factory) or adapter.is_launcher(factory) or not _takes(factory, left):
            raise InputError(f"{source} takes no keyword argument {', '.join(left)}")


def _check_takes_enough(
    source: Source, factory: Any, values: Mapping[str, Any], taken: Sequence[str]
) -> None:
    """Raise `InputError` if `factory` needs more than `taken`; it may have meant other names."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(**{name: values[name] for name in taken})
    except TypeError as error:
        other = [name for name in values if name not in taken]
        spare = f", and it takes no {', '.join(other)}" if other else ""
        raise InputError(f"{source}{signature}: {error}{spare}") from None


def _takes(factory: Any, names: Mapping[str, Any]) -> list[str]:
    """Those of `names` that `factory` has as keyword arguments; all if it does not tell."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return list(names)
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return list(names)
    by_keyword = {p.name for p in parameters if p.kind is not inspect.Parameter.POSITIONAL_ONLY}
    return [name for name in names if name in by_keyword]


def _select(value: Any, select: str | int | None, source: Source) -> Any:
    """An item by index or key, else an attribute; `a.b` goes on from there."""
    if select is None:
        return value
    try:
        return _step(value, select)
    except LookupError:
        pass
    found = value
    for step in str(select).split("."):
        try:
            found = _step(found, int(step) if step.lstrip("-").isdigit() else step)
        except LookupError:
            what = f"{source} returned {_shape(value)}"
            raise InputError(f"{what}; it has no {select!r}") from None
    return found


def _step(value: Any, step: str | int) -> Any:
    try:
        return value[step]
    except (LookupError, TypeError):
        if isinstance(step, str) and hasattr(value, step):
            return getattr(value, step)
        raise LookupError(step) from None


def _not_a_launcher(value: Any, source: Source) -> str:
    if source.kind == "launcher":
        return f" is {type(value).__name__}, not a @flyc.jit launcher"
    what = "returned" if source.select is None else f"has at {source.select!r}"
    return f" {what} {_shape(value)}, not a @flyc.jit launcher: pick one with select"


def _shape(value: Any) -> str:
    if isinstance(value, dict):
        return f"a mapping with {', '.join(map(repr, value))}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"a {type(value).__name__} of {len(value)}"
    return type(value).__name__


def _python_value(value: Value) -> Any:
    if isinstance(value, TypeValue):
        return adapter.numeric_type(value.name)
    if isinstance(value, ObjectValue | EnumValue):
        return adapter.import_object(value.module, value.qualname)
    if isinstance(value, TupleValue):
        return tuple(_python_value(item) for item in value.items)
    if isinstance(value, ListValue):
        return [_python_value(item) for item in value.items]
    return value
