"""The lists of runs and of protocols to choose from."""

from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr

import lrcore

from ...chosen import names, with_new
from ...page import MOST_RUNS
from ...store import Store
from .protocols import protocol_of


def list_runs(
    store: Store, query: Mapping[str, str], ids: list[str], protocol: str | None
) -> tuple[Any, Any]:
    """The runs to choose from and the protocols they were measured under; what is chosen stays.

    A page that has chosen none yet begins with those in the address that it was opened with, else
    with the newest.
    """
    runs = store.runs.all()[::-1]
    known = {run.id for run in runs}
    linked = str((query or {}).get("runs", "")).split(",")[:MOST_RUNS]
    chosen = ([one for one in some or [] if one in known] for some in (ids, linked))
    return lists(runs, next(filter(None, chosen), [run.id for run in runs[:1]]), ids, protocol)


def add_newest(store: Store, ids: list[str]) -> tuple[Any, Any]:
    """The newest run beside those that are chosen, before them."""
    runs = store.runs.all()[::-1]
    return lists(runs, with_new(store, ids, [run.id for run in runs[:1]]), ids, None)


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


def value_unless(now: Any, then: Any) -> dict[str, Any]:
    """The value to set; none where it is the same: one chosen meanwhile would be overwritten."""
    return {} if now == then else {"value": then}
