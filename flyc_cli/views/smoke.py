"""How the report of `flyc run` looks."""

from __future__ import annotations

from typing import Any

from flyc_cli.smoke.run import RunReport


def run_text(report: RunReport) -> str:
    """What ran, with what, and how long it took."""
    lines = [f"{report.spec.label()} on {report.device}"]
    lines += [f"  {name}: {text}" for name, text in report.arguments]
    for launch in report.launches:
        symbol = report.spec.kernels[launch.kernel].symbol
        lines.append(f"  launch {symbol} grid {launch.grid} block {launch.block} lds {launch.lds}")
    lines.append(
        f"  {len(report.seconds):,} iterations: min {_microseconds(report.fastest)}, "
        f"median {_microseconds(report.median)}"
    )
    return "\n".join(lines)


def run_json(report: RunReport) -> dict[str, Any]:
    """The report as plain data; times in seconds."""
    spec = report.spec
    return {
        "kernel": spec.kernel,
        "params": spec.params,
        "target": str(spec.target),
        "device": {"ordinal": report.device.ordinal, "target": str(report.device.target)},
        "arguments": dict(report.arguments),
        "launches": [
            {
                "symbol": spec.kernels[launch.kernel].symbol,
                "grid": list(launch.grid),
                "block": list(launch.block),
                "lds": launch.lds,
                "cluster": None if launch.cluster is None else list(launch.cluster),
            }
            for launch in report.launches
        ],
        "iterations": len(report.seconds),
        "min": report.fastest,
        "median": report.median,
    }


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} µs"
