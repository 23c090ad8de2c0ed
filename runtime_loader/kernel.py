"""A loaded specialisation: call it to bind, check, evaluate and launch."""

from __future__ import annotations

import os
from itertools import count

from runtime_loader.binding import Binder, slot_names
from runtime_loader.errors import ArgumentError, HipError, PlanError
from runtime_loader.evaluate import ConcreteLaunch, Evaluator
from runtime_loader.hip import Device, Hip
from runtime_loader.program import ProgramCompiler
from runtime_loader.signature import StreamForm
from runtime_loader.specialisation import Specialisation

try:
    from runtime_loader._native import tick
except ImportError:  # installed where no compiler was
    tick = count(1).__next__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from runtime_loader.ranges import Ranges
    from runtime_loader.straight import Launches

# Calls before straight code is made for a kernel: few kernels of a short run earn it.
_CALLS_WITHOUT_CODE = 2


class Kernel:
    """One specialisation on one device.

    `specialisation` is its record, `label` how messages name it, `device` where it was loaded.
    `on_capture` is called before each call that launches into a graph. `last_launch` is the number
    of the last call that launched, among those of all kernels, and 0 if there was none.
    """

    def __init__(
        self,
        hip: Hip,
        device: Device,
        spec: Specialisation,
        functions: Sequence[int],
        on_capture: Callable[[], None] | None = None,
    ) -> None:
        self.specialisation = spec
        self.label = spec.label()
        self.device = device
        self._hip = hip
        self._functions = functions
        self._on_capture = on_capture
        self.last_launch = 0
        self._binder = Binder(spec.signature, self.label, device)
        self._evaluator: Evaluator | None = None
        self._straight: Callable[..., Launches | None] | None = None
        self._calls = 0
        self._launched = 0
        self.ranges = _ranges()
        last_is_stream = bool(spec.signature) and isinstance(spec.signature[-1], StreamForm)
        self._most = len(spec.signature)
        self._fewest = self._most - last_is_stream
        self._offsets = [
            tuple(param.offset for param in kernel.kernarg.params) for kernel in spec.kernels
        ]
        self._doing = [
            f"launching {kernel.symbol} of {self.label} on {device}" for kernel in spec.kernels
        ]

    def __call__(self, *args: object, **named: object) -> None:
        """Launch on the kernel's device, which must be current, and on the stream given.

        Arguments are those of the launcher, in order or by name; a stream may be left out for the
        default one. Nothing is launched unless all of it is sound. Raises `ArgumentError`,
        `PlanError`, and `HipError` when HIP refuses a launch.
        """
        launches = None
        if not named and self._fewest <= len(args) <= self._most:
            straight = self._straight or self._straight_from_now()
            launches = straight(*args)
        if launches is None:
            self.launch_slots(self._binder.bind(args, named))
            return
        hip, functions, doing = self._hip, self._functions, self._doing
        launch = hip.launch_packed
        try:
            if self._on_capture is None and hip.single_device():
                hip.check_process()
            else:
                self._check_streams([stream for _, _, stream, _ in launches])
            for kernel, size, stream, kernarg in launches:
                launch(functions[kernel], size, stream, kernarg, doing[kernel])
        except HipError as error:
            raise self._with_fault(error) from None
        self.last_launch = tick()
        self._launched += len(launches)

    @property
    def launch_count(self) -> int:
        """How many kernels it has launched. Where threads launch through Python, about so many."""
        return self._launched

    def _straight_from_now(self) -> Callable[..., Launches | None]:
        if self._calls < _CALLS_WITHOUT_CODE or self.ranges is not None:
            self._calls += 1
            return _recognise_nothing
        from runtime_loader.straight import straight_code

        code = straight_code(self.specialisation.signature, self.device.ordinal, self._compiler())
        self._straight = code or _recognise_nothing
        return self._straight

    def _compiler(self) -> ProgramCompiler:
        kernels = zip(self._functions, self.specialisation.kernels, strict=True)
        return ProgramCompiler(
            self.specialisation.plan,
            [(function, k.kernarg, k.resources.max_workgroup) for function, k in kernels],
        )

    def bind(self, *args: object, **named: object) -> Bound:
        """Check and pack these arguments once, for calls that give only the others.

        Arguments as for a call; all may be left out. Raises `ArgumentError` for one that does not
        fit. What is bound is kept alive, and is the memory that it was when it was bound.
        """
        return Bound(self, self._binder.place(args, named))

    def launches(self, *args: object, **named: object) -> list[ConcreteLaunch]:
        """What a call with these arguments would launch, checked; nothing is launched."""
        return self._evaluate(self._binder.bind(args, named))

    def launch_slots(self, slots: list[int]) -> None:
        """Launch with the host slots that binding gave (`Binder.bind`)."""
        launches = self._evaluate(slots)
        if self.ranges is not None:
            self.ranges.push(self.label.encode())
        hip, functions, offsets, doing = self._hip, self._functions, self._offsets, self._doing
        try:
            self._check_streams([launch.stream for launch in launches])
            for launch in launches:
                kernel = launch.kernel
                hip.launch(functions[kernel], launch, offsets[kernel], doing[kernel])
        except HipError as error:
            raise self._with_fault(error) from None
        finally:
            if self.ranges is not None:
                self.ranges.pop()
        self.last_launch = tick()
        self._launched += len(launches)

    def _evaluate(self, slots: list[int]) -> list[ConcreteLaunch]:
        if self._evaluator is None:
            layouts = [kernel.kernarg for kernel in self.specialisation.kernels]
            self._evaluator = Evaluator(self.specialisation.plan, layouts)
        try:
            launches = self._evaluator(slots)
        except PlanError as error:
            raise PlanError(f"{self.label}: {error}; {self._inputs(slots)}") from None
        for launch in launches:
            self._check_dimensions(launch, slots)
        return launches

    def _launch_failed(self, kernel: int, code: int) -> None:
        """Raise what a launch outside of `launch_slots` met."""
        error = self._hip.error("hipModuleLaunchKernel", code, self._doing[kernel])
        raise self._with_fault(error) if isinstance(error, HipError) else error

    def _with_fault(self, error: HipError) -> HipError:
        from runtime_loader.faults import with_fault  # it knows this module

        return with_fault(error, self._hip, self.device)

    def _check_dimensions(self, launch: ConcreteLaunch, slots: list[int]) -> None:
        kernel = self.specialisation.kernels[launch.kernel]
        if 0 in launch.grid or 0 in launch.block:
            raise ArgumentError(
                f"{self.label}: {kernel.symbol} would be launched with grid {launch.grid} and "
                f"block {launch.block}, which is empty; skip the call when there is nothing to do. "
                f"Nothing was launched; {self._inputs(slots)}"
            )
        x, y, z = launch.block
        if x * y * z > kernel.resources.max_workgroup:
            raise ArgumentError(
                f"{self.label}: {kernel.symbol} would be launched with block {launch.block}, but "
                f"was compiled for at most {kernel.resources.max_workgroup} workitems in a "
                f"workgroup. Nothing was launched; {self._inputs(slots)}"
            )

    def _check_streams(self, streams: list[int]) -> None:
        """That they belong to this device, which is current; tells of those that are captured."""
        self._check_device(streams)
        tell = self._on_capture
        if tell is not None and any(self._hip.is_captured(stream) for stream in streams if stream):
            tell()

    def _check_device(self, streams: list[int]) -> None:
        if self._hip.single_device():
            self._hip.check_process()
            return
        ordinal = self.device.ordinal
        current = self._hip.current_device()
        if current != ordinal:
            raise ArgumentError(
                f"{self.label} was loaded on {self.device}, but the current device is {current}; "
                f"make device {ordinal} current, or ask the bundle for the kernel on device "
                f"{current}"
            )
        checked = 0
        for stream in streams:
            if stream != checked:
                checked = stream
                owner = self._hip.stream_device(checked)
                if owner not in (None, ordinal):
                    raise ArgumentError(
                        f"{self.label} was loaded on {self.device}, but stream {checked:#x} "
                        f"belongs to device {owner}"
                    )

    def _inputs(self, slots: list[int]) -> str:
        """The integers that the plan was given, for errors about what it computed."""
        names = [name for form in self.specialisation.signature for name in slot_names(form)]
        shown = [
            f"{name} = {_signed(value, slot)}"
            for name, value, slot in zip(names, slots, self.specialisation.plan.inputs, strict=True)
            if slot[0] == "i"
        ]
        return "with " + (", ".join(shown) or "no integer arguments")

    def __repr__(self) -> str:
        return f"<Kernel {self.label} on {self.device}>"


def _ranges() -> Ranges | None:
    if os.environ.get("FLYC_ROCTX") != "1":
        return None
    from runtime_loader.ranges import find_ranges

    return find_ranges()


def _recognise_nothing(*args: object) -> None:
    """In the place of straight code where there can be none."""


class Bound:
    """A kernel with some of its arguments bound; call it with the others, in order or by name.

    `kernel` is the kernel, `moving` the names of the arguments that a call gives; a stream among
    them may be left out.
    """

    def __init__(self, kernel: Kernel, fixed: Mapping[int, object]) -> None:
        self.kernel = kernel
        signature = kernel.specialisation.signature
        self._forms = [form for place, form in enumerate(signature) if place not in fixed]
        self.moving = tuple(form.name for form in self._forms)
        self._fixed = fixed  # keeps memory alive
        self._binder = Binder(self._forms, f"{kernel.label}, partly bound,", kernel.device)
        # Slots with a value are bound; the others, in order, are the calls'.
        self._slots: list[int | None] = []
        binds = kernel._binder.binds
        for place, (form, bind) in enumerate(zip(signature, binds, strict=True)):
            slots: list[int] = []
            if place in fixed:
                bind(fixed[place], slots)
            self._slots += slots if place in fixed else [None] * len(form.slots())

    def __call__(self, *args: object, **named: object) -> None:
        """Launch, as the kernel does."""
        given = iter(self._binder.bind(args, named))
        self.kernel.launch_slots([next(given) if s is None else s for s in self._slots])

    def each(self, calls: Iterable[object]) -> int:
        """Call once for each item: a tuple of arguments, or one argument; return how many.

        Or once for each row of a C-contiguous buffer of int64, of one or two dimensions.
        """
        made = 0
        for item in _rows(calls) or calls:
            self(*item) if isinstance(item, tuple) else self(item)
            made += 1
        return made

    def __repr__(self) -> str:
        return f"<{self.kernel!r} of ({', '.join(self.moving)})>"


def _rows(calls: object) -> list[tuple[int, ...]] | None:
    """The rows of a buffer of int64; None for what is none."""
    try:
        view = memoryview(calls)  # type: ignore[arg-type]
    except (TypeError, BufferError):
        return None
    if view.format not in ("q", "l") or view.ndim != 2 or not view.c_contiguous:
        return None
    rows: list[list[int]] = view.tolist()  # type: ignore[assignment]
    return [tuple(row) for row in rows]


def _signed(value: int, slot: str) -> int:
    sign = 1 << (int(slot[1:]) - 1)
    return (value ^ sign) - sign
