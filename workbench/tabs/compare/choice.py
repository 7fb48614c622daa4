"""Which runs are compared: chosen in the list, ticked in the table, clicked in the chart."""

from collections.abc import Sequence
from typing import Any

import gradio as gr

import lrcore

from ... import run_text
from ...page import MOST_RUNS
from ...store import Store
from .protocols import protocol_of

MOST_LISTED = 200  # a browser is not sent more names: the table of runs has pages


def list_runs(
    store: Store, ids: list[str], protocol: str | None, page: gr.Request
) -> tuple[Any, Any]:
    """The runs to choose from and the protocols they were measured under; what is chosen stays.

    A page that has chosen none yet begins with those in its address, else with the newest.
    """
    runs = store.runs.all()[::-1]
    known = {run.id for run in runs}
    linked = page.query_params.get("runs", "").split(",")[:MOST_RUNS]
    chosen = ([one for one in some or [] if one in known] for some in (ids, linked))
    return lists(runs, next(filter(None, chosen), [run.id for run in runs[:1]]), ids, protocol)


def add_newest(store: Store, ids: list[str]) -> tuple[Any, Any]:
    """The newest run beside those that are chosen, before them."""
    return add(store, ids, [run.id for run in store.runs.all()[-1:]])


def add(store: Store, ids: list[str], new: list[str]) -> tuple[Any, Any]:
    """Runs beside those that are chosen, before them."""
    others = [run.id for run in store.chosen_runs(ids) if run.id not in new]
    return lists(store.runs.all()[::-1], [*new, *others][:MOST_RUNS], ids, None)


def toggle(store: Store, ids: list[str], run_id: str) -> Any:
    """The list with one run more, or without it where it is chosen.

    Raises InputError where as many are chosen as can be.
    """
    chosen = [run.id for run in store.chosen_runs(ids)]
    if run_id in chosen:
        chosen.remove(run_id)
    elif len(chosen) == MOST_RUNS:
        raise lrcore.InputError(run_text.TOO_MANY_CHOSEN.format(MOST_RUNS))
    elif run_id in store.runs.ids():
        chosen.append(run_id)
    return gr.update(choices=names(store.runs.all()[::-1], chosen), value=chosen)


def lists(
    runs: Sequence[lrcore.Run], chosen: list[str], before: list[str], protocol: str | None
) -> tuple[Any, Any]:
    """The two lists with what is chosen in them. runs: newest first; a protocol that none was
    measured under gives way to the first one of the chosen runs.
    """
    order = [*(run for run in runs if run.id in chosen), *runs]
    known = list(dict.fromkeys(protocol_of(run, one) for run in order for one in run.evaluations))
    shown = protocol if protocol in known else next(iter(known), None)
    return (
        gr.update(choices=names(runs, chosen), **value_unless(before, chosen)),
        gr.update(choices=known, **value_unless(protocol, shown)),
    )


def names(runs: Sequence[lrcore.Run], chosen: Sequence[str]) -> list[tuple[str, str]]:
    """(name, id) of the newest runs and of those that are chosen; runs: newest first."""
    shown = [run for i, run in enumerate(runs) if i < MOST_LISTED or run.id in chosen]
    return [(run.name, run.id) for run in shown]


def value_unless(now: Any, then: Any) -> dict[str, Any]:
    """The value to set; none where it is the same: one chosen meanwhile would be overwritten."""
    return {} if now == then else {"value": then}
