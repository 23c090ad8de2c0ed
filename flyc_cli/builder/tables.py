"""The tuned tables of a bundle: the rows and choices of a manifest, and what they became."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flyc_cli.builder.supervisor import Built
from flyc_cli.bundle_writer import TableContents
from flyc_cli.manifest import Manifest, table_keys
from flyc_cli.manifest.source import Spot
from runtime_loader.checked import canonical_json
from runtime_loader.specialisation import format_params
from runtime_loader.table import TableRow


def collect_tables(manifest: Manifest, built: Sequence[Built]) -> dict[str, TableContents]:
    """The table of each kernel that has one. A row is there if its specialisation was built."""
    keys = {kernel.name: table_keys(kernel)[0] for kernel in manifest.kernels}
    tables = _tuned_tables(manifest, built)
    rows: dict[str, list[TableRow]] = {}
    entries: dict[str, str] = {}
    for item in built:
        spec = item.specialisation
        for row in item.request.rows:
            rows.setdefault(spec.kernel, []).append(
                TableRow(str(spec.target), dict(row), spec.params)
            )
            entries[spec.kernel] = item.request.kernel
    for kernel, found in rows.items():
        names = keys[entries[kernel]]
        assert names is not None
        tables[kernel] = TableContents(names.names, names.nearest, found)
    return tables


def _tuned_tables(manifest: Manifest, built: Sequence[Built]) -> dict[str, TableContents]:
    """For each kernel with a tuner's choices: the configuration that was chosen for each call."""
    tables: dict[str, TableContents] = {}
    for index, kernel in enumerate(manifest.kernels):
        spot = manifest.spot.at("kernels", index, "tuned")
        mine = [b.specialisation for b in built if b.entry == kernel.name]
        rows: dict[str, list[TableRow]] = {}
        for choice in kernel.tuned:
            here = [spec for spec in mine if spec.target.processor == choice.processor]
            chosen = [spec for spec in here if _has(spec.params, choice.config)]
            if here and not chosen:
                spot.fail(
                    f"{choice.file} chose {format_params(dict(choice.config))}, which is none of "
                    f"the configurations of {kernel.name} that were built for {choice.processor}"
                )
            for spec in chosen:
                row = TableRow(str(spec.target), dict(choice.keys), spec.params)
                rows.setdefault(spec.kernel, []).append(row)
        for name, found in rows.items():
            _check_single(found, spot)
            tables[name] = TableContents(tuple(kernel.tuned[0].keys), (), found)
    return tables


def _has(params: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    return all(name in params and params[name] == value for name, value in config.items())


def _check_single(rows: Sequence[TableRow], spot: Spot) -> None:
    seen: dict[bytes, TableRow] = {}
    for row in rows:
        other = seen.setdefault(canonical_json([row.target, row.keys]), row)
        if other is not row:
            spot.fail(
                f"the choice for {format_params(row.keys)} could be {format_params(row.params)} or "
                f"{format_params(other.params)}: tune one kernel for each"
            )
