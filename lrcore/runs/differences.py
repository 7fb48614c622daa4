"""Runs beside each other: only what differs."""

from collections.abc import Sequence
from typing import Any

from ..as_json import json_text
from ..errors import InputError
from ..history import Healed, last_step
from .runs import Run

MOST = 6


def differences(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Only what differs between up to six runs: fields of the recipe, the account and the healing,
    and perplexities.

    One row per field: "field", then one column per run, under its name where names differ, else its
    id. Raises InputError for fewer than two or more than six.
    """
    if not 2 <= len(runs) <= MOST:
        raise InputError(f"{len(runs)} runs were chosen; two to {MOST} can be compared.")
    names = (
        [run.name for run in runs]
        if len({run.name for run in runs}) == len(runs)
        else [run.id for run in runs]
    )
    values = [_flat(run) for run in runs]
    rows = []
    for name in dict.fromkeys(field for one in values for field in one):
        cells = [one.get(name) for one in values]
        if any(cell != cells[0] for cell in cells):
            rows.append({"field": name, **dict(zip(names, cells, strict=True))})
    return rows


def _flat(run: Run) -> dict[str, Any]:
    recipe = {
        name: value if not isinstance(value, dict) else json_text(value, sort_keys=True, nulls=True)
        for name, value in run.fields.items()
    }
    perplexities = {}
    for one in run.evaluations:
        protocol = one["protocol"]
        of = (
            f"{protocol.get('source')}, {protocol.get('name', 'windows')} "
            f"{protocol.get('windows')} x {protocol.get('seq_len')}"
        )
        perplexities[f"perplexity: {of}"] = one["perplexity"]
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
