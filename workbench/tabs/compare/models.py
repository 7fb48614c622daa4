"""The models behind the chosen runs."""

from collections.abc import Sequence
from typing import Any

import lrcore

from ... import text
from ...form import read_recipe
from ...store import Store


def dense_recipe(store: Store, ids: Sequence[str], values: Sequence[Any]) -> lrcore.Recipe:
    """The recipe that names the dense model: of the first chosen run; without a run, the form's."""
    runs = store.chosen_runs(ids)
    return runs[0].recipe if runs else read_recipe(values)


def models(store: Store, ids: Sequence[str], values: Sequence[Any]) -> list[Any]:
    """The dense model and those of the chosen runs, loaded where they are not yet."""
    dense = store.dense(dense_recipe(store, ids, values))
    return [dense, *(store.small(run) for run in store.chosen_runs(ids))]


def some_runs(store: Store, ids: Sequence[str]) -> list[lrcore.Run]:
    """The chosen runs. Raises InputError where there are none."""
    runs = store.chosen_runs(ids)
    if not runs:
        raise lrcore.InputError(text.NO_RUN_CHOSEN)
    return runs
