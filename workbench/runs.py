"""The runs that a browser has chosen."""

from typing import Any

import lrcore

from .store import Store

Run = lrcore.Run
MOST_RUNS = 6


def picked(store: Store, ids: list[str] | None) -> list[Run]:
    return store.chosen_runs(ids)


def dense_recipe(session: Any, ids: list[str], values: Any) -> lrcore.Recipe:
    """The dense model of the first chosen run; without a run, the form's."""
    runs = picked(session, ids)
    return runs[0].recipe if runs else session.form.recipe(values)
