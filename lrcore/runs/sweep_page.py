"""The table of a sweep as CSV, JSON and one self-contained page with its Pareto fronts."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..as_json import json_text
from ..evaluation import report
from ..files import write_text
from .sweep_rows import COLUMNS, SweepRow

AXES = {
    "parameters": "parameters",
    "kv_bytes_per_token": "KV bytes per token",
    "flops_per_token": "FLOPs per decoded token",
    "time": "decode time, share of the dense model's",
}
Rows = Sequence[SweepRow]


def write_tables(rows: Rows, sweep: Mapping[str, Any], folder: str | Path) -> dict[str, str]:
    """table.csv, table.json and report.html in the folder; returns their paths.

    sweep: `Sweep.to_dict()`.
    """
    written = {}
    for name, text in tables(rows, sweep).items():
        path = Path(folder) / name
        write_text(path, text)
        written[path.suffix[1:]] = str(path)
    return written


def tables(rows: Rows, sweep: Mapping[str, Any]) -> dict[str, str]:
    """{file name: text} of table.csv, table.json and report.html."""
    as_json = json_text(
        {"sweep": dict(sweep), "rows": [row.to_dict() for row in rows]}, indent=1, nulls=True
    )
    return {"table.csv": to_csv(rows), "table.json": as_json, "report.html": html(rows, sweep)}


def plain(rows: Rows) -> list[dict[str, Any]]:
    """The rows without their protocols, for a table: of every row the columns that any of them has,
    in the order of `COLUMNS`.
    """
    every = [row.to_dict() for row in rows]
    names = [name for name in COLUMNS if any(name in one for one in every) and name != "protocol"]
    return [{name: one.get(name) for name in names} for one in every]


def to_csv(rows: Rows) -> str:
    """One line per cell and evaluation, under the names of all columns."""
    lines = plain(rows)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def points(rows: Rows, axis: str) -> list[report.Point]:
    """Perplexity over an axis of AXES: of every row that has both. "time" is one over the decode
    speed-up.
    """
    drawn = []
    for row in rows:
        x = _along(row, axis)
        if x is not None and row.perplexity is not None:
            drawn.append(report.Point(row.title, _series(row), float(x), row.perplexity))
    return drawn


def _series(row: SweepRow) -> str:
    """What the points of a row are drawn with: everything but its ratio."""
    even = row.policy in (None, "uniform")
    first = row.method if even else f"{row.method} {row.policy}"
    first += f" ({row.options})" if row.options else ""
    return f"{first} > {row.then}" if row.then else first


def _along(row: SweepRow, axis: str) -> float | None:
    if axis == "time":
        return 1 / row.decode_speedup if row.decode_speedup else None
    value: float | None = getattr(row, axis)
    return value


def cross_table(rows: Rows) -> list[dict[str, Any]]:
    """Calibrated on (down) against measured on (across): perplexities, each beside its standard
    error where that is known, one line per model; of the settings that not every sweep has, those
    in which its models differ.
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


def html(rows: Rows, sweep: Mapping[str, Any]) -> str:
    """Fronts of perplexity against every cost, the whole table, the protocol of every
    evaluation, the sweep itself.
    """
    parts, on_texts = [], [row for row in rows if row.accuracy is None]
    sets = list(dict.fromkeys(row.measured_on for row in on_texts))
    if len(sets) > 1:
        title = "Calibrated on (down), measured on (across): perplexity"
        parts.append(report.section(title, report.table(cross_table(on_texts))))
    for measured_on in sets:
        own = [row for row in rows if row.measured_on == measured_on]
        for axis, name in AXES.items():
            drawn = points(own, axis)
            if drawn:
                figure = report.scatter(drawn, name, "perplexity", log_y=True)
                parts.append(report.section(f"{measured_on}: perplexity against {name}", figure))
    parts.append(report.section("All cells", report.table(plain(rows))))
    for measured_on in sets:
        own = [row for row in rows if row.measured_on == measured_on]
        known = [row.protocol for row in own if row.protocol]
        # that of a run where it says what the dense model's cannot
        protocol = next((one for one in known if "on_calibration_text" in one), (known or [{}])[0])
        parts.append(report.section(f"Protocol: {measured_on}", report.facts(protocol)))
    settings = {name: value for name, value in sweep.items() if name != "evaluation"}
    parts.append(report.section("Sweep", report.facts(settings)))
    return report.page(f"Sweep of {sweep['model']}", *parts)
