"""What an operator reads of a call: what tells specialisations apart, and what finds table rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from runtime_loader.errors import ArgumentError, MissError
from runtime_loader.signature import Form, PointerForm, ScalarForm, TensorForm
from runtime_loader.tensor_view import view_of

_EXTENT = re.compile(r"([A-Za-z_]\w*)(?:\.(shape|strides)\[(\d+)\])?")


# The numbers are those of ReaderKind in csrc/native.h.
_TYPE, _VALUE, _MEMORY = range(3)

# What `Selection._add_table` takes of a reader: kind, place, whether all that tells candidates
# apart is wanted, mask of the address, leaves (whether of the strides, axis, divisor or 0).
NativeReader = tuple[int, int, bool, int, tuple[tuple[bool, int, int], ...]]


class CallKey:
    """Makes a key of a call's arguments: equal for calls that no specialisation tells apart."""

    def __init__(self, signatures: Sequence[Sequence[Form]]) -> None:
        first = signatures[0]
        self._places = {form.name: place for place, form in enumerate(first)}
        self._readers = [_reader([s[place] for s in signatures]) for place in range(len(first))]

    def of(self, args: tuple[object, ...], named: Mapping[str, object]) -> tuple[object, ...]:
        """Raises whatever an argument that is no argument of these raises."""
        readers = self._readers
        values = [readers[place].of(value) for place, value in enumerate(args)]
        for name, value in named.items():
            values += [name, readers[self._places[name]].of(value)]
        return tuple(values)

    def native(self) -> tuple[NativeReader, ...]:
        """The same for the native code."""
        return tuple(reader.native(place) for place, reader in enumerate(self._readers))


def _reader(forms: Sequence[Form]) -> _TypeReader | _MemoryReader | _ValueReader:
    """What there is to know of one argument, whose forms these are."""
    memory = [form for form in forms if isinstance(form, (TensorForm, PointerForm))]
    if len(memory) == len(forms):
        return _MemoryReader(memory)
    kinds = {form.type if isinstance(form, ScalarForm) else type(form) for form in forms}
    return _TypeReader() if len(kinds) == 1 else _ValueReader()


class _TypeReader:
    """Of an argument that all specialisations take alike."""

    def of(self, value: object) -> object:
        return type(value)

    def native(self, place: int) -> NativeReader:
        return _TYPE, place, True, 0, ()


class _ValueReader:
    """Reads all of a value that any check could look at."""

    def of(self, value: object) -> object:
        view = None if value is None or isinstance(value, (int, float, str)) else view_of(value)
        return (type(value), value) if view is None else view

    def native(self, place: int) -> NativeReader:
        return _VALUE, place, True, 0, ()


class _MemoryReader:
    """Reads the dtype, the place, and the leaves that any of several forms looks at."""

    def __init__(self, forms: Sequence[TensorForm | PointerForm]) -> None:
        tensors = [form for form in forms if isinstance(form, TensorForm)]
        self._extents = _leaves([form.shape for form in tensors])
        self._strides = _leaves([form.strides for form in tensors])
        self._mask = (_largest([form.align for form in forms]) or 1 << 64) - 1

    def of(self, value: Any) -> object:
        if type(value) is int:
            return value & self._mask, value == 0
        view = None if value is None else view_of(value)
        if view is None:
            return type(value), value
        shape, strides = view.shape, view.strides
        rank = len(shape)
        key = [view.dtype, view.place, rank, view.pointer & self._mask]
        for axis, divisor in self._extents:
            if axis < rank:
                key.append(shape[axis] % divisor if divisor else shape[axis])
        for axis, divisor in self._strides:
            if axis < rank:
                stride = strides[axis] if shape[axis] > 1 else 0  # nobody looks at the others
                key.append(stride % divisor if divisor else stride)
        return tuple(key)

    def native(self, place: int) -> NativeReader:
        extents = [(False, axis, divisor) for axis, divisor in self._extents]
        strides = [(True, axis, divisor) for axis, divisor in self._strides]
        return _MEMORY, place, True, self._mask, (*extents, *strides)


def _leaves(columns: Sequence[tuple[int, ...]]) -> list[tuple[int, int]]:
    """The axes that matter, each with 0 if its value does, or the largest divisor that does."""
    found = []
    for axis, leaves in enumerate(zip_longest(*columns, fillvalue=-1)):
        if max(leaves) >= 0:
            found.append((axis, 0))
        elif min(leaves) < -1:
            found.append((axis, _largest([-leaf for leaf in leaves])))
    return found


def _largest(divisors: Sequence[int]) -> int:
    """The largest of powers of two, of which the others then say nothing more; 0 if one is none."""
    return 0 if any(number & (number - 1) for number in divisors) else max(divisors)


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
        self._native: list[NativeReader] = []
        for key in keys:
            source = given.get(key, key)
            match = _EXTENT.fullmatch(source)
            if match is not None and match[1] in arguments:
                name, kind, axis = match[1], match[2], int(match[3] or 0)
                self._readers.append((key, _key_reader(name, kind, axis)))
                self._native.append(_native_reader(arguments.index(name), kind, axis))
            elif key in params and key not in given:
                self._readers.append((key, _constant(params[key])))
            else:
                raise MissError(
                    f"the table of {kernel} is looked up with {key}, and {source!r} is no "
                    f"argument: say where it comes from, as in op({kernel!r}, "
                    f"keys={{{key!r}: 'x.shape[0]'}}), or fix it, as in op({kernel!r}, {key}=...); "
                    f"the arguments are {', '.join(arguments)}"
                )

    def native(self) -> tuple[NativeReader, ...]:
        """What a call gives of the keys, for the native code."""
        return tuple(self._native)

    def of(self, args: tuple[object, ...], named: Mapping[str, object]) -> dict[str, Any]:
        """The keys of a call. Raises `ArgumentError` when an argument that gives one is missing."""
        values = {**dict(zip(self._arguments, args, strict=False)), **named}
        try:
            return {key: read(values) for key, read in self._readers}
        except KeyError as error:
            raise ArgumentError(f"argument {error} is missing, which the table needs") from None


def _key_reader(name: str, kind: str | None, axis: int) -> Callable[[Mapping[str, Any]], Any]:
    if kind is None:
        return lambda values: values[name]

    def leaf(values: Mapping[str, Any]) -> int:
        view = view_of(values[name])
        leaves = () if view is None else view.shape if kind == "shape" else view.strides
        if axis >= len(leaves):
            raise ArgumentError(f"argument {name!r} has no {kind}[{axis}], which the table needs")
        return leaves[axis]

    return leaf


def _native_reader(place: int, kind: str | None, axis: int) -> NativeReader:
    if kind is None:
        return _VALUE, place, False, 0, ()
    return _MEMORY, place, False, 0, ((kind == "strides", axis, 0),)


def _constant(value: Any) -> Callable[[Mapping[str, Any]], Any]:
    return lambda values: value
