"""The results of a sweep as CSV, JSON and a self-contained HTML page with Pareto fronts."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..evaluation import report
from ..system.as_json import json_text
from ..system.files import write_text
from .sweep_rows import COLUMNS, SweepRow

AXES = {
    "parameters": "parameters",
    "kv_bytes_per_token": "KV bytes per token",
    "flops_per_token": "FLOPs per decoded token",
    "time": "decode time, share of the dense model's",
}
# columns that follow from others, which a terminal has no place for
DERIVED = {
    "achieved",
    "bits_per_byte",
    "flops_per_token",
    "measured_context",
    "measured_flops_per_token",
    "measured_kv_bytes_per_token",
    "nll",
}
Rows = Sequence[SweepRow]


def write_tables(rows: Rows, sweep: Mapping[str, Any], folder: str | Path) -> dict[str, str]:
    """Write table.csv, table.json and report.html into the folder and return their paths.

    sweep: `Sweep.to_dict()`.
    """
    written = {}
    for name, text in tables(rows, sweep).items():
        path = Path(folder) / name
        write_text(path, text)
        written[path.suffix[1:]] = str(path)
    return written


def tables(rows: Rows, sweep: Mapping[str, Any]) -> dict[str, str]:
    """Return {file name: text} of table.csv, table.json and report.html."""
    as_json = json_text(
        {"sweep": dict(sweep), "rows": [row.to_dict() for row in rows]}, indent=1, nulls=True
    )
    return {"table.csv": to_csv(rows), "table.json": as_json, "report.html": to_html(rows, sweep)}


def plain_rows(rows: Rows) -> list[dict[str, Any]]:
    """Return the rows as plain values for a table, without protocols.

    Each row has all columns that occur in any row, in the order of `COLUMNS`.
    """
    values = [row.to_dict() for row in rows]
    used = {name for row in values for name in row} - {"protocol"}
    names = [name for name in COLUMNS if name in used]
    return [{name: row.get(name) for name in names} for row in values]


def different_columns(rows: Rows) -> list[dict[str, Any]]:
    """Return the perplexity and the columns that differ between rows, without derived ones, for a
    terminal; a single row completely.
    """
    lines = plain_rows(rows)
    if len(lines) < 2:
        return lines
    names = [
        name
        for name in lines[0]
        if name not in DERIVED
        and (name == "perplexity" or len({str(line[name]) for line in lines}) > 1)
    ]
    return [{name: line[name] for name in names} for line in lines]


def to_csv(rows: Rows) -> str:
    """Return a CSV line per cell and evaluation, under the names of all columns."""
    lines = plain_rows(rows)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def points(rows: Rows, axis: str) -> list[report.Point]:
    """Return perplexity over an axis of AXES, for each row that has both. "time" is the inverse of
    the decode speedup.
    """
    result = []
    for row in rows:
        x = _axis_value(row, axis)
        if x is not None and row.perplexity is not None:
            result.append(report.Point(row.title, _series(row), float(x), row.perplexity))
    return result


def _series(row: SweepRow) -> str:
    """Return the name of the series that the row belongs to: all settings except the ratio."""
    is_uniform = row.policy in (None, "uniform")
    first = row.method if is_uniform else f"{row.method} {row.policy}"
    first += f" ({row.options})" if row.options else ""
    return f"{first} > {row.then}" if row.then else first


def _axis_value(row: SweepRow, axis: str) -> float | None:
    if axis == "time":
        return 1 / row.decode_speedup if row.decode_speedup else None
    value: float | None = getattr(row, axis)
    return value


def cross_table(rows: Rows) -> list[dict[str, Any]]:
    """Return perplexities by calibration text (down) and measured text (across), a line per model.

    Standard errors are added next to the perplexities if they are available. Of the settings that
    are optional in a sweep, only those in which its models differ become columns.
    """
    names = ["method", "policy", "ratio", "calibrated_on"]
    names += [
        name
        for name in ("samples", "seed", "options", "then")
        if len({getattr(row, name) for row in rows if row.method != "dense"}) > 1
    ]
    with_errors = any(row.perplexity_error is not None for row in rows)
    lines: dict[tuple, dict[str, Any]] = {}
    for row in rows:
        key = tuple(getattr(row, name) for name in names)
        titles = (name.replace("_", " ") for name in names)
        line = lines.setdefault(key, dict(zip(titles, key, strict=True)))
        line[f"on {row.measured_on}"] = row.perplexity
        if with_errors:
            line[f"± on {row.measured_on}"] = row.perplexity_error
    return list(lines.values())


def to_html(rows: Rows, sweep: Mapping[str, Any]) -> str:
    """Return the HTML page: fronts of perplexity against each cost, the complete table, the
    protocol of each evaluation, and the sweep.
    """
    parts: list[report.Table | report.Figure] = []
    on_texts = [row for row in rows if row.accuracy is None]
    sets = list(dict.fromkeys(row.measured_on for row in on_texts))
    if len(sets) > 1:
        title = "Calibrated on (down), measured on (across): perplexity"
        parts.append(report.table(title, cross_table(on_texts)))
    for measured_on in sets:
        rows_of_text = [row for row in rows if row.measured_on == measured_on]
        for axis, name in AXES.items():
            data_points = points(rows_of_text, axis)
            if data_points:
                title = f"{measured_on}: perplexity against {name}"
                parts.append(report.scatter(title, data_points, name, "perplexity", log_y=True))
    parts.append(report.table("All cells", plain_rows(rows)))
    for measured_on in sets:
        protocols = [
            row.protocol for row in rows if row.measured_on == measured_on and row.protocol
        ]
        # only the protocol of a compressed model has the relation to the calibration text
        with_calibration = [protocol for protocol in protocols if "on_calibration_text" in protocol]
        protocol = (with_calibration or protocols or [{}])[0]
        parts.append(report.fields_table(f"Protocol: {measured_on}", protocol))
    settings = {name: value for name, value in sweep.items() if name != "evaluation"}
    parts.append(report.fields_table("Sweep", settings))
    return report.page(f"Sweep of {sweep['model']}", *parts)
