"""The selected runs: lists to select from, their protocols, models and differences."""

from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr

import lrcore
from lrcore.runs.differences import differences as lrcore_differences
from lrcore.runs.runs import Run

from ... import words
from ...state.store import Store
from ...widgets.chosen import names, with_new
from ...widgets.form import differences, read_recipe, try_recipe


def list_runs(
    store: Store, browser: gr.Request, ids: list[str], protocol: str | None, *values: Any
) -> tuple[Any, Any]:
    """Return the lists of runs and of protocols; selected runs stay selected.

    If no run is selected, the newest run of the form's model is; so it is if another model was
    chosen since, and none of the selected runs belongs to it. values: of the form.
    """
    runs, recipe = store.runs.all()[::-1], try_recipe(values)
    existing = {run.id for run in runs}
    selected = [run_id for run_id in ids or [] if run_id in existing]
    of_model = [run.id for run in runs if recipe is None or run.recipe.model == recipe.model]
    is_new = recipe and store.browsers.compare_model(browser.session_hash, recipe.model)
    if is_new and not {*selected} & {*of_model}:
        selected = []
    return run_and_protocol_lists(runs, selected or of_model[:1], ids, protocol)


def add_newest(store: Store, ids: list[str]) -> tuple[Any, Any]:
    """Return the lists with the newest run selected before the selected ones."""
    runs = store.runs.all()[::-1]
    selected = with_new(store, ids, [run.id for run in runs[:1]])
    return run_and_protocol_lists(runs, selected, ids, None)


def run_and_protocol_lists(
    runs: Sequence[Run], selected: list[str], previous: list[str], protocol: str | None
) -> tuple[Any, Any]:
    """Return the updates of both lists.

    A protocol without any run is replaced by the first protocol of the selected runs. runs: newest
    first. previous: the ids that were selected before.
    """
    ordered = [*(run for run in runs if run.id in selected), *runs]
    protocols = list(
        dict.fromkeys(
            protocol_of(run, evaluation) for run in ordered for evaluation in run.evaluations
        )
    )
    new_protocol = protocol if protocol in protocols else next(iter(protocols), None)
    return (
        gr.update(choices=names(runs, selected), **value_if_changed(previous, selected)),
        gr.update(choices=protocols, **value_if_changed(protocol, new_protocol)),
    )


def value_if_changed(previous: Any, value: Any) -> dict[str, Any]:
    """Return the value to set, or {} if it is the same.

    Setting the same value would overwrite a selection that the user made meanwhile.
    """
    return {} if previous == value else {"value": value}


def protocol_of(run: Run, evaluation: Mapping[str, Any]) -> str:
    """Return dense model and protocol: perplexities compare if both are the same."""
    return f"{run.recipe.model}: {words.compare_and_runs.protocol(evaluation['protocol'])}"


def evaluation_of(run: Run, protocol: str | None) -> dict[str, Any] | None:
    """Return a run's evaluation under a protocol, otherwise the newest one; None without any."""
    return next(
        (evaluation for evaluation in run.evaluations if protocol_of(run, evaluation) == protocol),
        run.evaluations[-1] if run.evaluations else None,
    )


def dense_recipe(store: Store, ids: Sequence[str], values: Sequence[Any]) -> lrcore.Recipe:
    """Return the recipe that names the dense model: of the first selected run, or of the form."""
    runs = store.runs_by_id(ids)
    return runs[0].recipe if runs else read_recipe(values)


def models(store: Store, ids: Sequence[str], values: Sequence[Any]) -> list[Any]:
    """Return the dense model and the models of the selected runs; load missing models."""
    dense = store.dense(dense_recipe(store, ids, values))
    return [dense, *(store.run_model(run) for run in store.runs_by_id(ids))]


def selected_runs(store: Store, ids: Sequence[str]) -> list[Run]:
    """Return the selected runs. Raises InputError for an empty selection."""
    runs = store.runs_by_id(ids)
    if not runs:
        raise lrcore.InputError(words.compare_and_runs.NO_RUN_SELECTED)
    return runs


def all_differences(runs: Sequence[Run]) -> list[list[Any]]:
    """Return rows [field, value of each run] for fields that differ: recipes, then results."""
    fields = {name for run in runs for name in run.fields}
    results = [
        [row["field"].removeprefix("result: "), *map(as_text, list(row.values())[1:])]
        for row in lrcore_differences(runs)
        if ": " in row["field"] and row["field"] not in fields
    ]
    return [*differences([run.fields for run in runs]), *results]


def as_text(value: Any) -> str:
    """Return a value of the table of differences."""
    if value is None:
        return "–"
    if isinstance(value, float) and abs(value) < 1e4:
        return f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
