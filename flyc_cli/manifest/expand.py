"""A manifest to build requests: every combination of parameters, for every target.

The order is that of the manifest: kernels, then combinations (the last parameter varies fastest;
`include` rows come last), then targets.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, NoReturn

from flyc_cli.manifest.captures import example_arguments, for_target
from flyc_cli.manifest.expressions import ExpressionError, has_template, parse_template
from flyc_cli.manifest.forms import make_form, struct_constants
from flyc_cli.manifest.messages import choices, nearest, shown
from flyc_cli.manifest.model import (
    EnumValue,
    Exclusion,
    Kernel,
    ListValue,
    Manifest,
    ObjectValue,
    Request,
    Row,
    Source,
    TableKeys,
    TupleValue,
    TypeValue,
    Value,
    covers,
    json_value,
    params_key,
)
from flyc_cli.manifest.raw import launch_specs, with_file
from flyc_cli.manifest.source import ManifestError, Spot
from runtime_loader.element_types import ELEMENT_TYPES
from runtime_loader.errors import FlycError
from runtime_loader.signature import StreamForm
from runtime_loader.specialisation import format_params
from runtime_loader.target import Target

MAX_REQUESTS = 250_000


class SelectionError(FlycError):
    """A kernel pattern or target that was asked for matches nothing in the manifest."""


def expand(
    manifest: Manifest,
    kernels: Sequence[str] | None = None,
    targets: Sequence[Target] | None = None,
) -> tuple[Request, ...]:
    """Every specialisation that `manifest` asks for, at most MAX_REQUESTS.

    `kernels` are shell patterns of kernel names, `targets` select the targets of the manifest that
    they cover (`gfx942` also selects `gfx942:xnack-`); None selects all. Raises `ManifestError` for
    what is wrong in the manifest, `SelectionError` if a pattern or target matches nothing.
    """
    chosen = _chosen_kernels(manifest, kernels)
    requests: list[Request] = []
    for i in chosen:
        expansion = _Expansion(manifest, i)
        expansion.check_size(MAX_REQUESTS - len(requests))
        requests += [
            request
            for request in expansion.requests()
            if targets is None or any(covers(target, request.target) for target in targets)
        ]
    for target in targets or ():
        if not any(covers(target, request.target) for request in requests):
            known = sorted({t for i in chosen for t in _Expansion(manifest, i).targets})
            raise SelectionError(
                f"{manifest.spot.file}: nothing here is for target {target}; "
                f"its targets are {', '.join(map(str, known))}"
            )
    return tuple(requests)


def _chosen_kernels(manifest: Manifest, patterns: Sequence[str] | None) -> list[int]:
    names = [kernel.name for kernel in manifest.kernels]
    for pattern in patterns or ():
        if not any(fnmatchcase(name, pattern) for name in names):
            raise SelectionError(
                f"{manifest.spot.file}: no kernel matches {pattern!r}{nearest(pattern, names)}"
                f" (its kernels are {', '.join(names)})"
            )
    return [
        i
        for i, name in enumerate(names)
        if patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns)
    ]


@dataclass(frozen=True)
class _Combination:
    """One value for every parameter, before templates; `targets` is the row's restriction."""

    values: Mapping[str, Value]
    targets: tuple[Target, ...]
    spot: Spot
    keys: tuple[Mapping[str, Any], ...] = ()


def table_keys(kernel: Kernel) -> tuple[TableKeys | None, tuple[str, ...]]:
    """What a kernel's table is looked up with, and which of those are swept parameters.

    A parameter that has several values beside those of the rows tells the table's specialisations
    apart, so it is an exact key.
    """
    if kernel.table is None:
        return None, ()
    columns = kernel.matrix[0].values
    every = {**kernel.kwargs, **kernel.constexpr, **kernel.params}
    swept = tuple(n for n, values in every.items() if n not in columns and len(values) > 1)
    return TableKeys((*kernel.table.names, *swept), kernel.table.nearest), swept


class _Expansion:
    """The requests of one kernel."""

    def __init__(self, manifest: Manifest, index: int) -> None:
        self._manifest = manifest
        self._kernel = manifest.kernels[index]
        self._spot = manifest.spot.at("kernels", index)
        self._sections = _sections(self._kernel)
        self._source_path = _source_path(self._kernel)
        self._excluded = [0] * len(self._kernel.exclude)
        self._python_path = tuple(
            str((manifest.directory / root).resolve())
            for root in (*self._kernel.python_path, *manifest.python_path)
        )
        self.targets = _targets(manifest, self._kernel)
        self._swept_keys = table_keys(self._kernel)[1]
        self._is_raw = self._kernel.mlir is not None or self._kernel.code_object is not None

    def check_size(self, limit: int) -> None:
        kernel = self._kernel
        combinations = len(kernel.matrix or (None,)) * math.prod(
            len(values) for values in self._swept().values()
        )
        count = (combinations + len(kernel.include)) * len(self.targets)
        if count > limit:
            self._spot.fail(
                f"expands to {count:,} specialisations; a manifest has at most {MAX_REQUESTS:,}"
            )

    def requests(self) -> Iterator[Request]:
        kernel = self._kernel
        seen: dict[tuple[bytes, Target], Spot] = {}
        rows: dict[tuple[bytes, Target], Spot] = {}
        for combination in self._combinations():
            with self._named(combination):
                scope = self._scope(combination)
                targets = self._targets_of(combination, scope)
            key = params_key(scope.params)
            for target in targets:
                if (key, target) in seen:
                    combination.spot.fail(
                        f"{self._kernel.name}({format_params(scope.params)}) for {target} is here "
                        f"twice (also at line {seen[key, target].place.line}); a caller could not "
                        "tell them apart"
                    )
                seen[key, target] = combination.spot
            if targets:
                with self._named(combination):
                    request = self._build(combination, scope, targets[0])
                for target, keys in itertools.product(targets, request.rows):
                    other = rows.setdefault((params_key(keys), target), combination.spot)
                    if other is not combination.spot:
                        combination.spot.fail(
                            f"{format_params(dict(keys))} for {target} is at line "
                            f"{other.place.line} too; a lookup could not tell them apart"
                        )
                for target in targets:
                    wanted = replace(request, target=target)
                    if self._is_raw:
                        wanted = self._raw(wanted, scope)
                    yield for_target(wanted, kernel.device, scope.resolve, self._spot)
        for i, count in enumerate(self._excluded):
            if not count:
                self._fail_unmatched(i)
        if not seen:
            self._spot.fail(f"the kernel {self._kernel.name!r} expands to nothing")

    @contextmanager
    def _named(self, combination: _Combination) -> Iterator[None]:
        """Add the combination to the message of an error that depends on it."""
        try:
            yield
        except ManifestError as error:
            params = {name: json_value(value) for name, value in combination.values.items()}
            which = f" (for {self._kernel.name} with {format_params(params)})" if params else ""
            raise ManifestError(error.place, f"{error.message}{which}") from None

    def _fail_unmatched(self, index: int) -> NoReturn:
        """Say why an exclusion drops nothing: most often a value that its parameter never has."""
        spot = self._spot.at("exclude", index)
        scopes = [self._scope(combination) for combination in self._combinations()]
        for name, value in self._kernel.exclude[index].values.items():
            known = list(dict.fromkeys(shown(scope.params[name]) for scope in scopes))
            if shown(json_value(value)) not in known:
                spot.at(name).fail(
                    f"this exclusion matches nothing: {name} is never {shown(json_value(value))}"
                    f"; it is {choices(known[:20])}"
                )
        spot.fail("this exclusion matches nothing that an earlier one leaves")

    def _swept(self) -> dict[str, tuple[Value, ...]]:
        """The values of each parameter that is no matrix column."""
        kernel = self._kernel
        columns = kernel.matrix[0].values if kernel.matrix else ()
        every = {**kernel.kwargs, **kernel.constexpr, **kernel.params}
        return {name: values for name, values in every.items() if name not in columns}

    def _combinations(self) -> Iterator[_Combination]:
        kernel, spot = self._kernel, self._spot
        swept = self._swept()
        rows: list[tuple[Row, Spot]] = [
            (row, row.spot or spot.at("matrix", i)) for i, row in enumerate(kernel.matrix)
        ] or [(Row({}), spot)]
        for row, row_spot in rows:
            self._check_row(row, row_spot)
        # Declared parameters vary slower than rows: the matrix comes last in the order of names.
        for values in itertools.product(*swept.values()):
            for row, row_spot in rows:
                combined = {**dict(zip(swept, values, strict=True)), **row.values}
                yield _Combination(combined, row.targets, row_spot, row.keys)
        for i, row in enumerate(kernel.include):
            yield self._included(row, swept, spot.at("include", i))

    def _included(
        self, row: Row, swept: Mapping[str, tuple[Value, ...]], spot: Spot
    ) -> _Combination:
        self._check_row(row, spot)
        values = dict(row.values)
        for name in self._sections:
            if name in values:
                continue
            if len(swept.get(name, ())) != 1:
                spot.fail(f"the row needs a value for {name!r}, which has no single value")
            values[name] = swept[name][0]
        return _Combination(values, row.targets, spot)

    def _check_row(self, row: Row, spot: Spot) -> None:
        for i, wanted in enumerate(row.targets):
            if not any(covers(wanted, target) for target in self.targets):
                spot.at("targets", i).fail(
                    f"{wanted} is not among the targets of this kernel "
                    f"({', '.join(map(str, self.targets))})"
                )

    def _scope(self, combination: _Combination) -> _Scope:
        return _Scope(
            {name: combination.values[name] for name in self._sections},
            self._param_spot(combination),
        )

    def _param_spot(self, combination: _Combination) -> Callable[[str], Spot]:
        def spot(name: str) -> Spot:
            in_row = combination.spot.at(name)
            if in_row.path in in_row.values:
                return in_row
            section = self._spot.at(self._sections[name], name)
            return section if section.path in section.values else combination.spot

        return spot

    def _targets_of(self, combination: _Combination, scope: _Scope) -> list[Target]:
        """The targets of a combination, without the excluded ones (`include` rows stay)."""
        targets = [
            target
            for target in self.targets
            if not combination.targets or any(covers(t, target) for t in combination.targets)
        ]
        if combination.spot.path[-2:-1] == ("include",):
            return targets
        for i, exclusion in enumerate(self._kernel.exclude):
            if self._excludes(exclusion, scope, self._spot.at("exclude", i)):
                dropped = [
                    target
                    for target in targets
                    if not exclusion.targets or any(covers(t, target) for t in exclusion.targets)
                ]
                self._excluded[i] += len(dropped)
                targets = [target for target in targets if target not in dropped]
        return targets

    @staticmethod
    def _excludes(exclusion: Exclusion, scope: _Scope, spot: Spot) -> bool:
        for name, value in exclusion.values.items():
            wanted = scope.resolve(value, spot.at(name))
            found = scope.values[name]
            if type(wanted) is not type(found) or wanted != found:
                return False
        if exclusion.when is None:
            return True
        holds = scope.resolve(exclusion.when, spot.at("when"))
        if not isinstance(holds, bool):
            spot.at("when").fail(
                f'{shown(holds)} is not true or false; write a condition such as "${{N > 4096}}"'
            )
        return holds

    def _build(self, combination: _Combination, scope: _Scope, target: Target) -> Request:
        kernel, manifest = self._kernel, self._manifest
        by_section: dict[str, dict[str, Value]] = {"kwargs": {}, "constexpr": {}, "params": {}}
        for name, section in self._sections.items():
            by_section[section][name] = scope.values[name]
        module, _, qualname = self._source_path.partition(":")
        source = Source(
            kind="launcher" if kernel.launcher else "factory" if kernel.factory else "capture",
            module=module,
            qualname=qualname,
            kwargs=by_section["kwargs"],
            select=kernel.select,
            host_data=kernel.tensors == "cpu",
        )
        spot = self._spot.at("args")
        if kernel.capture:
            args, examples = example_arguments(kernel.args, scope.resolve, spot)
            source = replace(source, examples=examples)
        else:
            args = tuple(
                make_form(name, arg, manifest.defaults.args, scope.resolve, spot.at(name))
                for name, arg in kernel.args.items()
            )
            constants = struct_constants(kernel.args, scope.resolve, spot)
            if constants and (kernel.mlir or kernel.code_object):
                spot.fail(f"{next(iter(constants))}: a file has no compile-time fields")
            by_section["constexpr"] |= constants
        streams = [form.name for form in args if isinstance(form, StreamForm)]
        if len(streams) > 1:
            self._spot.at("args", streams[1]).fail(
                f"a launcher has one stream, and {streams[0]!r} is one already"
            )
        hints = self._hints(scope)
        env = self._env(scope)
        return Request(
            kernel=kernel.name,
            target=target,
            params=scope.params,
            source=source,
            constexpr=by_section["constexpr"],
            args=args,
            hints=hints,
            env=env,
            python_path=self._python_path,
            where=combination.spot.place,
            rows=self._table_rows(combination, scope),
            limits=kernel.limits.or_else(manifest.defaults.limits),
            budget=kernel.budgets.of(target).or_else(manifest.budgets.of(target)),
        )

    def _raw(self, request: Request, scope: _Scope) -> Request:
        """The request with its file, and the launches of a code object."""
        kernel, spot = self._kernel, self._spot
        request = with_file(request, kernel, scope.resolve, spot, self._manifest.directory)
        launches = launch_specs(
            kernel.launch, request.args, scope.params, scope.resolve, spot.at("launch")
        )
        return replace(request, source=replace(request.source, launches=launches))

    def _table_rows(
        self, combination: _Combination, scope: _Scope
    ) -> tuple[Mapping[str, Any], ...]:
        """The keys of the table rows that this combination stands for; what is swept is one too."""
        swept = {name: scope.params[name] for name in self._swept_keys}
        return tuple({**keys, **swept} for keys in combination.keys)

    def _merged(self, section: str) -> Iterator[tuple[str, Any, Spot]]:
        """The entries of `hints` or `env`: the kernel's own before the defaults; null drops one."""
        own: Mapping[str, Any] = getattr(self._kernel, section)
        defaults: Mapping[str, Any] = getattr(self._manifest.defaults, section)
        for name in {**defaults, **own}:
            value = own[name] if name in own else defaults[name]
            if value is not None:
                where = self._spot if name in own else self._manifest.spot.at("defaults")
                yield name, value, where.at(section, name)

    def _hints(self, scope: _Scope) -> dict[str, Any]:
        hints: dict[str, Any] = {}
        for name, raw, spot in self._merged("hints"):
            value = scope.resolve(raw, spot)
            if name == "llvm_options":
                hints[name] = _llvm_options(value, scope, spot)
            elif name == "waves_per_eu":
                hints[name] = _waves_per_eu(value, scope, spot)
            elif isinstance(value, bool):
                hints[name] = value
            else:
                spot.fail(f"{shown(value)} is not true or false")
        return hints

    def _env(self, scope: _Scope) -> dict[str, str]:
        env: dict[str, str] = {}
        for name, raw, spot in self._merged("env"):
            value = scope.resolve(raw, spot)
            if isinstance(value, bool) or not isinstance(value, (str, int, float)):
                spot.fail(f"{shown(value)} is not text or a number")
            env[name] = str(value)
        return env


def _source_path(kernel: Kernel) -> str:
    return kernel.launcher or kernel.factory or kernel.capture or ""


def _sections(kernel: Kernel) -> dict[str, str]:
    """Where each parameter goes, in order: kwargs, constexpr, params, then matrix columns."""
    sections = dict.fromkeys(kernel.kwargs, "kwargs")
    sections |= dict.fromkeys(kernel.constexpr, "constexpr")
    sections |= dict.fromkeys(kernel.params, "params")
    section = "constexpr" if kernel.launcher else "kwargs"
    if kernel.mlir is not None or kernel.code_object is not None:
        section = "params"
    for name in kernel.matrix[0].values if kernel.matrix else ():
        sections.setdefault(name, section)
    return sections


def _targets(manifest: Manifest, kernel: Kernel) -> tuple[Target, ...]:
    wanted = kernel.targets or manifest.defaults.targets
    if not manifest.targets:
        return wanted
    return tuple(
        target
        for target in manifest.targets
        if not wanted or any(covers(restriction, target) for restriction in wanted)
    )


def _llvm_options(value: Any, scope: _Scope, spot: Spot) -> dict[str, bool | int | str]:
    if not isinstance(value, dict):
        spot.fail(f"{shown(value)} is not a mapping of LLVM options")
    options: dict[str, bool | int | str] = {}
    for name, raw in value.items():
        option = scope.resolve(raw, spot.at(name))
        if not isinstance(option, (bool, int, str)):
            spot.at(name).fail(f"{shown(option)} is not true, false, an integer or text")
        options[name] = option
    return options


def _waves_per_eu(value: Any, scope: _Scope, spot: Spot) -> int | list[int]:
    value = json_value(value)
    numbers = (
        [scope.resolve(item, spot.at(i)) for i, item in enumerate(value)]
        if isinstance(value, list)
        else [value]
    )
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= 32:
            spot.fail(f"{shown(number)} is not a number of waves (0 to 32), or [least, most]")
    if not isinstance(value, list):
        return int(value)
    if len(numbers) != 2 or numbers[0] > numbers[1]:
        spot.fail(f"expected [least, most], found {numbers}")
    return numbers


class _Scope:
    """The parameters of one combination, with their templates filled in.

    `values` holds them with their types, `params` as plain JSON (for expressions and callers).
    """

    def __init__(self, raw: Mapping[str, Value], spot_of: Callable[[str], Spot]) -> None:
        self._raw = raw
        self._spot_of = spot_of
        self._active: list[str] = []
        self._done: dict[str, Value] = {}
        self.params: dict[str, Any] = {}
        for name in raw:
            self._fill(name)
        self.values = {name: self._done[name] for name in raw}
        self.params = {name: self.params[name] for name in raw}

    def _fill(self, name: str) -> None:
        if name in self._done:
            return
        spot = self._spot_of(name)
        if name in self._active:
            spot.fail(f"{' -> '.join([*self._active, name])}: the values need each other")
        self._active.append(name)
        self._done[name] = self._typed(self._raw[name], spot)
        self.params[name] = json_value(self._done[name])
        self._active.pop()

    def _typed(self, value: Value, spot: Spot) -> Value:
        """A parameter's value with its templates filled in."""
        if isinstance(value, TypeValue):
            name = self.resolve(value.name, spot.at("type"))
            if isinstance(name, TypeValue):
                return name
            if name not in ELEMENT_TYPES:
                spot.at("type").fail(
                    f"{shown(name)} is not a type; expected {choices(ELEMENT_TYPES)}"
                    f"{nearest(name, ELEMENT_TYPES)}"
                )
            return TypeValue(str(name))
        if isinstance(value, TupleValue):
            return TupleValue(
                tuple(self._typed(v, spot.at("tuple", i)) for i, v in enumerate(value.items))
            )
        if isinstance(value, ListValue):
            return ListValue(
                tuple(self._typed(v, spot.at("list", i)) for i, v in enumerate(value.items))
            )
        if isinstance(value, (ObjectValue, EnumValue)):
            return value
        resolved: Value = self.resolve(value, spot)
        return resolved

    def resolve(self, value: Any, spot: Spot) -> Any:
        """`value`, or what its template stands for; other kinds of value are as they are."""
        if not has_template(value):
            return value
        try:
            template = parse_template(value)
            for name in template.names:
                if name not in self._raw:
                    spot.fail(f"${name} is not a parameter{nearest(name, self._raw)}")
                self._fill(name)
            if template.reference is not None:
                return self._done[template.reference]
            return template.evaluate(self.params)
        except ExpressionError as error:
            spot.fail(str(error))
