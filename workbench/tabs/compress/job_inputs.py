"""Inputs that the jobs of this tab have in common: recipe, measurement, and name of the run."""

from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

import lrcore
from lrcore.evaluation.evaluate import check_evaluation

from ... import words
from ...state.store import Store
from ...views import markup
from ...widgets.evaluation_controls import read_settings
from ...widgets.fields import Field, FieldGroup, field_group
from ...widgets.form import read_recipe, try_recipe
from ...widgets.page import Page

MAX_NAME_LENGTH = 80


def inputs(page: Page) -> list[gr.components.Component]:
    """Return the components that `read` takes the values of."""
    return [*page.form.inputs, page.evaluation]


def read(values: Sequence[Any]) -> tuple[lrcore.Recipe, lrcore.EvaluationSettings | None]:
    """Return recipe and settings of the measurement. Raises InputError for an invalid value."""
    *form, evaluation = values
    recipe = read_recipe(form)
    return recipe, read_settings(*evaluation, calibrated_on=recipe.data)  # type: ignore[misc]


def read_and_check(
    store: Store, values: Sequence[Any]
) -> tuple[lrcore.Recipe, lrcore.EvaluationSettings | None]:
    """Return the result of `read`.

    Raises InputError also if the model is loaded and cannot be measured with these settings.
    """
    recipe, settings = read(values)
    dense = store.peek_dense(recipe)
    if dense is not None and settings is not None:
        check_evaluation(dense, settings.held_out_from([recipe.data]))
    return recipe, settings


def run_name(typed: str) -> str:
    """Return the name of a run, without white space at the ends."""
    return typed.strip()[:MAX_NAME_LENGTH]


def sentence_or_error(sentence: Callable[[], str]) -> str:
    """Return the sentence, or the error if this model does not allow it."""
    try:
        return markup.note(sentence())
    except lrcore.InputError as error:
        return markup.note(str(error), "error")


def describe_model(
    store: Store,
    values: Sequence[Any],
    sentence: Callable[[lrcore.Recipe, lrcore.LoadedModel], str],
) -> str:
    """Return a sentence about the form's recipe and the dense model.

    Returns a note if the model has not been analyzed. values: of the form.
    """
    recipe = try_recipe(values)
    model = store.peek_dense(recipe) if recipe else None
    if recipe is None or model is None:
        return markup.missing(store.waiting_jobs(recipe), words.spectra.NOT_ANALYZED)
    return sentence_or_error(lambda: sentence(recipe, model))


def job_fields(elem_id: str, fields: Sequence[Field], label: str, intro: str) -> FieldGroup:
    """Place the fields of a job, the name of its run, and the button with this label.

    intro: text above the fields.
    """
    name = Field(
        f"{elem_id}-name",
        words.compress.RUN_NAME,
        "",
        placeholder=words.compress.RUN_NAME_HINT,
    )
    return field_group(f"{elem_id}-fields", [*fields, name], (elem_id, label), intro)
