"""What an operator reads of a call: what tells specialisations apart, and what finds table rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runtime_loader.errors import ArgumentError, MissError
from runtime_loader.signature import Form, ScalarForm, TensorForm
from runtime_loader.tensor_view import view_of

_EXTENT = re.compile(r"([A-Za-z_]\w*)(?:\.(shape|strides)\[(\d+)\])?")


class CallKey:
    """Makes a key of a call's arguments: equal for calls that no specialisation tells apart."""

    def __init__(self, signatures: Sequence[Sequence[Form]]) -> None:
        first = signatures[0]
        self._places = {form.name: place for place, form in enumerate(first)}
        self._readers = [_reader([s[place] for s in signatures]) for place in range(len(first))]

    def of(self, args: tuple[object, ...], named: Mapping[str, object]) -> tuple[object, ...]:
        """Raises whatever an argument that is no argument of these raises."""
        readers = self._readers
        values = [readers[place](value) for place, value in enumerate(args)]
        for name, value in named.items():
            values += [name, readers[self._places[name]](value)]
        return tuple(values)


def _reader(forms: Sequence[Form]) -> Callable[[Any], object]:
    """What there is to know of one argument, whose forms these are."""
    if all(isinstance(form, TensorForm) for form in forms):
        tensors = [form for form in forms if isinstance(form, TensorForm)]
        if len({len(form.shape) for form in tensors}) == 1:
            return _TensorReader(tensors).of
        return _whole
    kinds = {form.type if isinstance(form, ScalarForm) else type(form) for form in forms}
    return type if len(kinds) == 1 else _whole


class _TensorReader:
    """Reads the dtype, the place, and the leaves that any of several forms looks at."""

    def __init__(self, forms: Sequence[TensorForm]) -> None:
        self._extents = _leaves([form.shape for form in forms])
        self._strides = _leaves([form.strides for form in forms])
        self._mask = max(form.align for form in forms) - 1

    def of(self, value: Any) -> object:
        view = None if type(value) is int else view_of(value)
        if view is None:
            return _whole(value)
        shape, strides = view.shape, view.strides
        key = [view.dtype, view.place, len(shape), view.pointer & self._mask]
        key += [
            shape[axis] % divisor if divisor else shape[axis] for axis, divisor in self._extents
        ]
        for axis, divisor in self._strides:
            stride = strides[axis] if shape[axis] > 1 else 0  # nobody looks at the others
            key.append(stride % divisor if divisor else stride)
        return tuple(key)


def _leaves(columns: Sequence[tuple[int, ...]]) -> list[tuple[int, int]]:
    """The axes that matter, each with 0 if its value does, or the largest divisor that does."""
    found = []
    for axis, leaves in enumerate(zip(*columns, strict=True)):
        if max(leaves) >= 0:
            found.append((axis, 0))
        elif min(leaves) < -1:
            found.append((axis, -min(leaves)))
    return found


def _whole(value: Any) -> object:
    """All of a value that any check could look at."""
    view = None if value is None or isinstance(value, (int, float, str)) else view_of(value)
    return (type(value), value) if view is None else view


class TableKeys:
    """How a call's arguments give the keys of the kernel's tuned table.

    `given` says it for some: an argument's name, `x.shape[0]` or `x.strides[1]`; a key that is
    called like an argument or one of `params` needs nothing. Raises `MissError` for the others.
    """

    def __init__(
        self,
        kernel: str,
        keys: Sequence[str],
        given: Mapping[str, str],
        params: Mapping[str, Any],
        arguments: Sequence[str],
    ) -> None:
        unknown = [key for key in given if key not in keys]
        if unknown:
            raise MissError(
                f"the table of {kernel} has no key {', '.join(unknown)}; its keys are "
                f"{', '.join(keys)}"
            )
        self._arguments = arguments
        self._readers: list[tuple[str, Callable[[Mapping[str, Any]], Any]]] = []
        for key in keys:
            read = _key_reader(given.get(key, key), arguments)
            if read is None and key in params and key not in given:
                read = _constant(params[key])
            if read is None:
                source = given.get(key, key)
                raise MissError(
                    f"the table of {kernel} is looked up with {key}, and {source!r} is no "
                    f"argument: say where it comes from, as in op({kernel!r}, "
                    f"keys={{{key!r}: 'x.shape[0]'}}), or fix it, as in op({kernel!r}, {key}=...); "
                    f"the arguments are {', '.join(arguments)}"
                )
            self._readers.append((key, read))

    def of(self, args: tuple[object, ...], named: Mapping[str, object]) -> dict[str, Any]:
        """The keys of a call. Raises `ArgumentError` when an argument that gives one is missing."""
        values = {**dict(zip(self._arguments, args, strict=False)), **named}
        try:
            return {key: read(values) for key, read in self._readers}
        except KeyError as error:
            raise ArgumentError(f"argument {error} is missing, which the table needs") from None


def _key_reader(text: str, arguments: Sequence[str]) -> Callable[[Mapping[str, Any]], Any] | None:
    match = _EXTENT.fullmatch(text)
    if match is None or match[1] not in arguments:
        return None
    name, kind, axis = match.groups()
    if kind is None:
        return lambda values: values[name]

    def leaf(values: Mapping[str, Any]) -> int:
        view = view_of(values[name])
        leaves = () if view is None else view.shape if kind == "shape" else view.strides
        if int(axis) >= len(leaves):
            raise ArgumentError(f"argument {name!r} has no {kind}[{axis}], which the table needs")
        return leaves[int(axis)]

    return leaf


def _constant(value: Any) -> Callable[[Mapping[str, Any]], Any]:
    return lambda values: value
