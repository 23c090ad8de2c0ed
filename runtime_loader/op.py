"""Selects a kernel's specialisation for each call, by what the call is given.

A specialisation fits a call if the call's arguments pass all its checks. Of several that fit, the
one that was compiled for the most wins: static extents and strides first, then what it knows of
divisibility and alignment. A kernel with a tuned table takes what the table says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from runtime_loader import hip
from runtime_loader.binding import Binder
from runtime_loader.errors import ArgumentError, MissError
from runtime_loader.kernel import Kernel
from runtime_loader.op_keys import CallKey, NativeReader, TableKeys
from runtime_loader.records import dataclass
from runtime_loader.signature import Form, StreamForm, TensorForm
from runtime_loader.specialisation import Specialisation, format_params

if TYPE_CHECKING:
    from runtime_loader.format import Ref
    from runtime_loader.hip import Device
    from runtime_loader.loader import Bundle
    from runtime_loader.table import Table

# Choices that an operator remembers; shapes vary, but not without end.
_KEPT = 1 << 14
_SHOWN = 8


@dataclass(frozen=True)
class Explanation:
    """What a call selects: the label of the specialisation, or None, and why; and why not each of
    the `others`, by label."""

    chosen: str | None
    reason: str
    others: dict[str, str]

    def __str__(self) -> str:
        lines = [f"{self.chosen or 'nothing'}: {self.reason}"]
        lines += [f"  not {label}: {reason}" for label, reason in self.others.items()]
        return "\n".join(lines)


class Op:
    """A kernel of a bundle whose specialisation each call selects.

    `name` is the kernel's, `params` those that were given. The first call of a kind loads what it
    selects; the choice is remembered for calls that no specialisation tells apart.
    """

    def __init__(
        self,
        bundle: Bundle,
        name: str,
        params: Mapping[str, Any],
        keys: Mapping[str, str] | None,
        device: int | None,
    ) -> None:
        self.name = name
        self.params = dict(params)
        self._bundle = bundle
        self._keys = dict(keys or {})
        self._device = device
        self._by_device: dict[int, Choices] = {}
        self._only: Choices | None = None

    def __call__(self, *args: object, **named: object) -> None:
        """Select, load what is not there yet, and launch, as `Kernel.__call__` does.

        Raises `MissError` when no specialisation fits, with what it lacks for each, or when several
        fit equally well; and what `Bundle.kernel` and a kernel's call raise.
        """
        choices = self._only or self._choices()
        kernel = choices.sole or choices.kernel(args, named)
        kernel(*args, **named)

    def kernel(self, *args: object, **named: object) -> Kernel:
        """The kernel that a call with these arguments would launch, loaded."""
        return self._choices().kernel(args, named)

    def explain(self, *args: object, **named: object) -> Explanation:
        """Why a call with these arguments selects what it does; nothing is loaded or launched."""
        return self._choices().explain(args, named)

    def _choices(self) -> Choices:
        runtime = hip.runtime()
        device = runtime.device(self._device)
        choices = self._by_device.get(device.ordinal)
        if choices is None:
            choices = Choices(self._bundle, self.name, self.params, self._keys, device)
            self._by_device[device.ordinal] = choices
            self._made(choices, runtime)
        return choices

    def _made(self, choices: Choices, runtime: hip.Hip) -> None:
        if runtime.single_device():
            self._only = choices

    def __repr__(self) -> str:
        return f"<Op {self.name}({format_params(self.params)}) of {self._bundle!r}>"


class _Candidate:
    """One specialisation that a device can run, and what it says of a call's arguments."""

    def __init__(self, spec: Specialisation, ref: Ref, device: Device) -> None:
        self.spec = spec
        self.ref = ref
        self.label = spec.label()
        self._binder = Binder(spec.signature, self.label, device)
        self.rank = sum(map(_static_leaves, spec.signature)), sum(map(_known_bits, spec.signature))

    def refusal(self, args: tuple[object, ...], named: Mapping[str, object]) -> str | None:
        """Why it cannot take these arguments; None when it can."""
        try:
            self._binder.bind(args, named)
        except ArgumentError as error:
            return str(error).removeprefix(self.label).lstrip(": ")
        return None

    def stream(self, args: tuple[object, ...], named: Mapping[str, object]) -> int:
        """The handle of the stream of a call."""
        slots = iter(self._binder.bind(args, named))
        for form in self.spec.signature:
            first, *_ = [next(slots) for _ in form.slots()] or [0]
            if isinstance(form, StreamForm):
                return first
        return 0


class Choices:
    """What an operator can select from on one device: `device`.

    `arguments` are the names of what the kernel takes.
    """

    def __init__(
        self,
        bundle: Bundle,
        name: str,
        params: Mapping[str, Any],
        keys: Mapping[str, str],
        device: Device,
    ) -> None:
        self._bundle = bundle
        self._name = name
        self._params = params
        self.device = device
        self._table: Table | None = bundle.table(name) if bundle.has_table(name) or keys else None
        found = _runnable(bundle, name, params, device)
        first, ref = next(found)
        self.arguments = tuple(form.name for form in first.signature)
        self._candidates = {_variant(first): _Candidate(first, ref, device)}
        if self._table is None:
            for spec, ref in found:
                self._candidates[_variant(spec)] = _Candidate(spec, ref, device)
            self._key = CallKey([c.spec.signature for c in self._candidates.values()])
        else:  # its rows name what is needed, of what may be very many
            self._table_keys = TableKeys(name, self._table.keys, keys, params, self.arguments)
        self._known: dict[tuple[object, ...], Kernel] = {}
        # The one that every call gets, once a call has loaded it.
        self.sole: Kernel | None = None

    def kernel(self, args: tuple[object, ...], named: Mapping[str, object]) -> Kernel:
        """The selected kernel, loaded."""
        try:
            if self._table is None:
                key = self._key.of(args, named)
            else:
                key = tuple(self._table_keys.of(args, named).values())
            kernel = self._known.get(key)
        except Exception:  # arguments of no kind that is known: choosing says so
            return self._load(self._choose(args, named)[0], args, named)
        if kernel is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            kernel = self._known[key] = self._load(self._choose(args, named)[0], args, named)
            if self._table is None and len(self._candidates) == 1:
                self.sole = kernel
        return kernel

    def native_readers(self) -> tuple[NativeReader, ...]:
        """What tells the kernels of two calls apart, for the native code."""
        if self._table is not None:
            return self._table_keys.native()
        return self._key.native() if len(self._candidates) > 1 else ()

    def explain(self, args: tuple[object, ...], named: Mapping[str, object]) -> Explanation:
        try:
            chosen, reason, others = self._choose(args, named)
        except _NothingFitsError as error:
            return Explanation(None, error.reason, error.refusals)
        return Explanation(chosen.label, reason, others)

    def _choose(
        self, args: tuple[object, ...], named: Mapping[str, object]
    ) -> tuple[_Candidate, str, dict[str, str]]:
        """The candidate, why it, and why not each of the others."""
        if self._table is not None:
            return *self._of_table(self._table, self._table_keys.of(args, named)), {}
        asked = {c: c.refusal(args, named) for c in self._candidates.values()}
        refusals = {c.label: refusal for c, refusal in asked.items() if refusal is not None}
        fitting = [c for c, refusal in asked.items() if refusal is None]
        if not fitting:
            raise _NothingFitsError(self._name, self._bundle.path, refusals)
        best = max(c.rank for c in fitting)
        chosen, *equal = [c for c in fitting if c.rank == best]
        if equal:
            raise MissError(
                f"{chosen.label} and {equal[0].label} fit these arguments equally well; name a "
                f"parameter in which they differ, as in op({self._name!r}, ...=...)"
            )
        refusals |= {
            c.label: f"fits too, but fixes less than {chosen.label}"
            for c in fitting
            if c is not chosen
        }
        if len(asked) == 1:
            return chosen, "it is the only one for this device", refusals
        return chosen, "it fits and fixes most" if len(fitting) > 1 else "only it fits", refusals

    def _of_table(self, table: Table, keys: Mapping[str, Any]) -> tuple[_Candidate, str]:
        row = table.find_or_raise(self.device.target.candidates(), **keys)
        wrong = [n for n, value in self._params.items() if row.params.get(n, value) != value]
        if wrong:
            raise MissError(
                f"the table of {self._name} says {format_params(row.params)} for "
                f"{format_params(dict(keys))}, where {', '.join(wrong)} was asked to be another"
            )
        name = format_params(row.params)
        if name not in self._candidates:
            spec, ref = self._bundle.select(self._name, self.device, **row.params)
            self._candidates[name] = _Candidate(spec, ref, self.device)
        return self._candidates[name], f"the table's row for {format_params(row.keys)}"

    def _load(
        self, candidate: _Candidate, args: tuple[object, ...], named: Mapping[str, object]
    ) -> Kernel:
        bundle, ref = self._bundle, candidate.ref
        stream = candidate.stream(args, named)
        return bundle.load(candidate.spec, self.device, lambda: bundle.read(ref), stream)


class _NothingFitsError(MissError):
    """No specialisation takes the arguments of a call."""

    def __init__(self, name: str, path: str, refusals: dict[str, str]) -> None:
        self.refusals = refusals
        self.reason = "no specialisation takes these arguments"
        shown = [f"{label}: {reason}" for label, reason in list(refusals.items())[:_SHOWN]]
        rest = len(refusals) - len(shown)
        shown += [f"and {rest} more"] if rest else []
        super().__init__("\n  ".join([f"{name} in {path}: {self.reason}", *shown]))


def _runnable(
    bundle: Bundle, name: str, params: Mapping[str, Any], device: Device
) -> Iterator[tuple[Specialisation, Ref]]:
    """The most specific specialisation of each variant with these parameters, at least one."""
    wanted = bundle.check_params(name, dict(params))
    names = {str(target) for target in device.target.candidates()}
    found = False
    for variant, targets in bundle.variants(name):
        if not names.isdisjoint(targets) and wanted.items() <= variant.items():
            found = True
            yield bundle.select(name, device, **variant)
    if not found:
        bundle.select(name, device, **params)  # says what there is instead
        raise MissError(f"{bundle.path} has no {name}({format_params(dict(params))}) for {device}")


def _variant(spec: Specialisation) -> str:
    return format_params(spec.params)


def _static_leaves(form: Form) -> int:
    if not isinstance(form, TensorForm):
        return 0
    return sum(leaf >= 0 for leaf in (*form.shape, *form.strides))


def _known_bits(form: Form) -> int:
    """What is known of a tensor beyond its static leaves, in powers of two."""
    if not isinstance(form, TensorForm):
        return 0
    dynamic = (-leaf for leaf in (*form.shape, *form.strides) if leaf < 0)
    return sum(divisor.bit_length() - 1 for divisor in (*dynamic, form.align))
