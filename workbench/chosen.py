"""Which runs are compared: chosen in the list, ticked in the table, clicked in the chart."""

from collections.abc import Sequence
from typing import Any

import gradio as gr

import lrcore

from . import run_text
from .page import MOST_RUNS
from .store import Store

MOST_LISTED = 200  # a browser is not sent more names: the table of runs has pages


def with_new(store: Store, ids: Sequence[str], new: Sequence[str]) -> list[str]:
    """The ids of new runs beside those that are chosen, before them."""
    others = [run.id for run in store.chosen_runs(ids) if run.id not in new]
    return [*new, *others][:MOST_RUNS]


def add(store: Store, ids: Sequence[str], new: Sequence[str]) -> Any:
    """The list of chosen runs with new ones in it."""
    return chosen(store, with_new(store, ids, new))


def chosen(store: Store, ids: list[str]) -> Any:
    return gr.update(choices=names(store.runs.all()[::-1], ids), value=ids)


def choose(store: Store, ids: Sequence[str]) -> Any:
    """The list with these runs chosen, as many of them as there are.

    Raises InputError where more are chosen than can be.
    """
    own = [run.id for run in store.chosen_runs(list(dict.fromkeys(ids)))]
    if len(own) > MOST_RUNS:
        raise lrcore.InputError(run_text.TOO_MANY_CHOSEN.format(MOST_RUNS))
    return chosen(store, own)


def toggle(store: Store, ids: Sequence[str], run_id: str) -> Any:
    """The list with one run more, or without it where it is chosen.

    Raises InputError where as many are chosen as can be.
    """
    others = [one for one in ids if one != run_id]
    return choose(store, others if run_id in ids else [*others, run_id])


def names(runs: Sequence[lrcore.Run], chosen: Sequence[str]) -> list[tuple[str, str]]:
    """(name, id) of the newest runs and of those that are chosen; runs: newest first."""
    shown = [run for i, run in enumerate(runs) if i < MOST_LISTED or run.id in chosen]
    return [(run.name, run.id) for run in shown]
