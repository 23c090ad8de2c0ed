"""From a request to the launcher that one of its parts is, traced.

A launcher is traced directly. Anything else that the manifest names is run while launches are
recorded: a Python function around launchers gets arguments that have types and no values, captured
code runs with example tensors on a described device.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from flyc_cli.frontends import flydsl_adapter as adapter
from flyc_cli.frontends.captured import captured_call, described_torch
from flyc_cli.frontends.errors import InputError, TraceError
from flyc_cli.frontends.flydsl_recorder import Call, Run, json_value, record
from flyc_cli.frontends.parts import name_parts
from flyc_cli.frontends.sources import find_source, python_values
from flyc_cli.frontends.user_code import run_user_code
from flyc_cli.manifest.model import Request
from runtime_loader.signature import Form

Lower = Callable[[adapter.Traced], None]


@dataclass
class Part:
    """Which of a request's specialisations this is, of how many: filled in as it turns out.

    `optional`: it is one configuration of a tuned kernel.
    """

    number: int
    kernel: str
    params: dict[str, Any]
    parts: int = 1
    optional: bool = False
    forms: tuple[Form, ...] = ()
    hints: dict[str, Any] = field(default_factory=dict)
    launcher: str = ""
    post_load: tuple[str, ...] = ()


def trace_part(request: Request, part: Part, enter: Callable[[str], None], lower: Lower) -> None:
    """Find and trace the launcher of `part`, and call `lower` with its module.

    `enter` is told the stages `import` and `trace`. Raises `InputError` and `TraceError`.
    """
    enter("import")
    part.launcher = str(request.source)
    part.hints = request.hints
    if request.source.kind == "capture":
        _trace_recorded(request, part, [Run(None, captured_call(request))], enter, lower)
        return
    with described_torch(request):
        _trace_named(request, part, enter, lower)


def _trace_named(request: Request, part: Part, enter: Callable[[str], None], lower: Lower) -> None:
    found = run_user_code("import", lambda: find_source(request.source))
    values = run_user_code("import", lambda: python_values(request.constexpr))
    forms, constexpr = adapter.with_constants(request.args, values)
    request = replace(request, args=forms)
    if len(found) == 1 and adapter.is_launcher(found[0][1]):
        _trace_launcher(request, part, found[0][1], constexpr, enter, lower)
        return
    runs = [
        Run(None if len(found) == 1 else str(select), _launching(request, target, constexpr))
        for select, target in found
    ]
    _trace_recorded(request, part, runs, enter, lower)


def _trace_launcher(
    request: Request,
    part: Part,
    launcher: Any,
    constexpr: dict[str, Any],
    enter: Callable[[str], None],
    lower: Lower,
) -> None:
    part.forms, call = run_user_code(
        "import", lambda: adapter.order_arguments(launcher, request.args, constexpr)
    )
    enter("trace")
    run_user_code("trace", lambda: adapter.trace(launcher, call, request.hints, lower))


def _trace_recorded(
    request: Request, part: Part, runs: list[Run], enter: Callable[[str], None], lower: Lower
) -> None:
    failure: list[Exception] = []

    def reached(number: int, call: Call) -> None:
        if number != part.number:
            return
        part.optional = call.config is not None
        try:
            run_user_code(
                "trace",
                lambda: adapter.trace(call.launcher, call.call, request.hints, lower, call.owner),
            )
        except Exception as error:
            # The code around the launch goes on: what else it reaches are other parts.
            failure.append(error)

    enter("trace")
    calls = run_user_code("trace", lambda: record(runs, reached))
    if not calls:
        raise InputError(f"{request.source} reached no launcher{_hint(request)}")
    if part.number >= len(calls):
        raise InputError(
            f"{request.source} reached {len(calls)} launches, and more when it ran before; what it "
            "launches must depend on its arguments only"
        )
    part.parts = len(calls)
    part.kernel, part.params = name_parts(request.kernel, request.params, calls)[part.number]
    call = calls[part.number]
    part.forms = call.forms
    part.hints = {**_plain_hints(call), **request.hints}
    part.launcher = call.origin
    if failure:
        raise failure[0]


def _plain_hints(call: Call) -> dict[str, Any]:
    hints = {}
    for name, value in call.hints.items():
        try:
            hints[name] = dict(value) if isinstance(value, dict) else json_value(value)
        except TypeError:
            hints[name] = str(value)
    return hints


def _hint(request: Request) -> str:
    if request.source.kind == "capture":
        return (
            "; if it decides by its arguments or the device, describe those for which it launches"
        )
    return (
        " when it was called with the arguments of the manifest; a function that returns a "
        "launcher is a factory"
    )


def _launching(request: Request, target: Any, constexpr: dict[str, Any]) -> Callable[[], object]:
    """A call of `target` with the manifest's arguments, as types without values."""
    if adapter.is_launcher(target):
        names = set(adapter.launcher_signature(target).parameters)
        forms = [form for form in request.args if form.name in names]
        values = {name: value for name, value in constexpr.items() if name in names}
        _, call = adapter.order_arguments(target, forms, values)
        return lambda: target(**call)
    signature = _signature(target)
    arguments = adapter.placeholders(request.args, signature)
    positional = [] if _takes_names(signature, arguments) else list(arguments.values())
    named = {} if positional else arguments

    def run() -> object:
        try:
            return target(*positional, **named, **constexpr)
        except (InputError, TraceError):
            raise
        except Exception as error:
            error.add_note(
                "flyc called this function with arguments that have types and no values; if it "
                "needs tensors or numbers, list it as a capture with example arguments"
            )
            raise

    return run


def _signature(target: Any) -> inspect.Signature | None:
    for value in (target, getattr(target, "fn", None)):  # `fn` is what a tuner calls
        launcher = adapter.launcher_of(value)
        if launcher is not None:
            return adapter.launcher_signature(launcher)
    try:
        return inspect.signature(target)
    except (TypeError, ValueError):
        return None


def _takes_names(signature: inspect.Signature | None, arguments: dict[str, Any]) -> bool:
    if signature is None:
        return True
    parameters = signature.parameters.values()
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters) or all(
        name in signature.parameters for name in arguments
    )
