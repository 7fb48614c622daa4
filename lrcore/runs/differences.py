"""Comparison of runs: the fields in which they differ."""

from collections.abc import Sequence
from typing import Any

from ..recipes.history import Healed, last_step
from ..system.as_json import json_text
from ..system.errors import InputError
from .runs import Run

MAX_RUNS = 6


def differences(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the fields in which two to six runs differ: of the recipe, the account, the healing
    and the perplexities.

    One row per field: "field", then a column per run under its name, or under its id if two runs
    have the same name. Raises InputError for fewer than two or more than six runs.
    """
    if not 2 <= len(runs) <= MAX_RUNS:
        raise InputError(f"Choose two to {MAX_RUNS} runs to compare; got {len(runs)}.")
    names = (
        [run.name for run in runs]
        if len({run.name for run in runs}) == len(runs)
        else [run.id for run in runs]
    )
    values = [_flat(run) for run in runs]
    rows = []
    for name in dict.fromkeys(field for fields in values for field in fields):
        cells = [fields.get(name) for fields in values]
        if any(cell != cells[0] for cell in cells):
            rows.append({"field": name, **dict(zip(names, cells, strict=True))})
    return rows


def _flat(run: Run) -> dict[str, Any]:
    recipe = {
        name: value if not isinstance(value, dict) else json_text(value, sort_keys=True, nulls=True)
        for name, value in run.fields.items()
    }
    perplexities = {}
    for evaluation in run.evaluations:
        protocol = evaluation["protocol"]
        label = (
            f"{protocol.get('source')}, {protocol.get('name', 'windows')} "
            f"{protocol.get('windows')} x {protocol.get('seq_len')}"
        )
        perplexities[f"perplexity: {label}"] = evaluation["perplexity"]
    account = {} if run.account is None else run.account.to_dict()
    healed = last_step(run.history, Healed)
    healing = {
        f"healing: {name}": value
        for name, value in ({} if healed is None else healed.fields_dict()).items()
        if not isinstance(value, dict | list)
    }
    return (
        recipe
        | {f"result: {name}": value for name, value in account.items() if name not in recipe}
        | healing
        | perplexities
    )
