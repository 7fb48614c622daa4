"""Where runs differ: in their recipes, and in what came out."""

from collections.abc import Sequence
from typing import Any

import lrcore

from ...form import differences


def all_differences(runs: Sequence[lrcore.Run]) -> list[list[Any]]:
    """Rows [field, value of each run] of recipes, then of what came out; only where not all are
    equal.
    """
    fields = {name for run in runs for name in run.fields}
    results = [
        [row["field"].removeprefix("result: "), *map(shown, list(row.values())[1:])]
        for row in lrcore.differences(runs)
        if ": " in row["field"] and row["field"] not in fields
    ]
    return [*differences([run.fields for run in runs]), *results]


def shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float) and abs(value) < 1e4:
        return f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
