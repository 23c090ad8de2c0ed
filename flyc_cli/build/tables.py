"""The tuned tables of a bundle: the rows of a manifest, with the specialisations they became."""

from __future__ import annotations

from collections.abc import Sequence

from flyc_cli.build.supervisor import Built
from flyc_cli.bundle_writer import TableContents
from flyc_cli.manifest import Manifest, table_keys
from runtime_loader.table import TableRow


def collect_tables(manifest: Manifest, built: Sequence[Built]) -> dict[str, TableContents]:
    """The table of each kernel that has one. A row is there if its specialisation was built."""
    keys = {kernel.name: table_keys(kernel)[0] for kernel in manifest.kernels}
    rows: dict[str, list[TableRow]] = {}
    entries: dict[str, str] = {}
    for item in built:
        spec = item.specialisation
        for row in item.request.rows:
            rows.setdefault(spec.kernel, []).append(
                TableRow(str(spec.target), dict(row), spec.params)
            )
            entries[spec.kernel] = item.request.kernel
    tables = {}
    for kernel, found in rows.items():
        names = keys[entries[kernel]]
        assert names is not None
        tables[kernel] = TableContents(names.names, names.nearest, found)
    return tables
