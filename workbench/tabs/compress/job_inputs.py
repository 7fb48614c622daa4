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
from ...widgets.events import QUIET, FormData, bind, listen
from ...widgets.form import read_recipe, try_recipe
from ...widgets.page import Page

MAX_NAME_LENGTH = 80


def inputs(page: Page) -> list[gr.components.Component]:
    """Return the components that `read` takes the values of."""
    return [*page.form.inputs, page.evaluation.collected]


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


def wire_start(
    page: Page,
    store: Store,
    button: gr.Button,
    name: gr.Textbox,
    controls: FormData,
    start: Callable[..., str],
) -> None:
    """Start a job when the button is pressed.

    `start` takes the store, the name of the run, the values of the controls and the arguments of
    `read_and_check`. It returns the new text of the name's box.
    """
    values = [name, controls, *inputs(page)]
    listen([button.click], bind(start, store), values, name, **QUIET)


def name_and_start(elem_id: str, label: str) -> tuple[gr.Textbox, gr.Button]:
    """Place the name of the run and the button that starts it."""
    with gr.Row(elem_classes="bottom"):
        name = gr.Textbox(
            label=words.compress.RUN_NAME,
            placeholder=words.compress.RUN_NAME_HINT,
            elem_id=f"{elem_id}-name",
        )
        start = gr.Button(label, size="sm", elem_id=elem_id, scale=0, min_width=120)
    return name, start
