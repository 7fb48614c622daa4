"""The runs to compare: chosen in the list, checked in the table, clicked in the chart."""

from collections.abc import Sequence
from typing import Any

import gradio as gr

import lrcore
from lrcore.runs.runs import Run

from .. import words
from ..state.store import Store
from .page import MAX_RUNS

MAX_LISTED = 200  # names that a browser gets; the table of runs has pages


def with_new(store: Store, ids: Sequence[str], new: Sequence[str]) -> list[str]:
    """Return the ids of new runs, followed by the runs that are already chosen."""
    previous = [run.id for run in store.runs_by_id(ids) if run.id not in new]
    return [*new, *previous][:MAX_RUNS]


def add(store: Store, ids: Sequence[str], new: Sequence[str]) -> Any:
    """Return the update of the list after adding new runs."""
    return chosen(store, with_new(store, ids, new))


def chosen(store: Store, ids: list[str]) -> Any:
    """Return the update of the list with these runs chosen."""
    return gr.update(choices=names(store.runs.all()[::-1], ids), value=ids)


def choose(store: Store, ids: Sequence[str]) -> Any:
    """Return the update of the list with these runs chosen; deleted runs are left out.

    Raises InputError for too many runs.
    """
    existing = [run.id for run in store.runs_by_id(list(dict.fromkeys(ids)))]
    if len(existing) > MAX_RUNS:
        raise lrcore.InputError(words.compare_and_runs.TOO_MANY_RUNS.format(MAX_RUNS))
    return chosen(store, existing)


def toggle(store: Store, ids: Sequence[str], run_id: str) -> Any:
    """Return the update of the list after adding or removing a run.

    Raises InputError for too many runs.
    """
    remaining = [chosen_id for chosen_id in ids if chosen_id != run_id]
    return choose(store, remaining if run_id in ids else [*remaining, run_id])


def names(runs: Sequence[Run], chosen: Sequence[str]) -> list[tuple[str, str]]:
    """Return (name, id) of the newest runs and of the chosen ones. runs: newest first."""
    listed = [run for i, run in enumerate(runs) if i < MAX_LISTED or run.id in chosen]
    return [(run.name, run.id) for run in listed]
