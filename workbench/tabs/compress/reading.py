"""What every job of this tab is made from: the form's recipe and the evaluation's settings; how it
is started, and what is said before.
"""

from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

import lrcore

from ... import markup, text
from ...components import Textbox
from ...evaluation_controls import read_settings
from ...events import QUIET, FormData, bind, listen
from ...form import read_recipe, try_recipe
from ...page import Page
from ...store import Store

MOST_LETTERS = 80  # of a run's name


def inputs(page: Page) -> list[gr.components.Component]:
    """The components whose values `read` takes."""
    return [*page.form.inputs, page.evaluation.collected]


def read(values: Sequence[Any]) -> tuple[lrcore.Recipe, lrcore.EvaluationSettings | None]:
    """The recipe, and how its run is to be measured. Raises InputError for a value out of range."""
    *form, evaluation = values
    recipe = read_recipe(form)
    return recipe, read_settings(*evaluation, calibrated_on=recipe.data)


def read_and_check(
    store: Store, values: Sequence[Any]
) -> tuple[lrcore.Recipe, lrcore.EvaluationSettings | None]:
    """The same. Raises InputError as well where the model is loaded and cannot be measured so."""
    recipe, settings = read(values)
    dense = store.peek_dense(recipe)
    if dense is not None and settings is not None:
        lrcore.check_evaluation(dense, settings.apart_from([recipe.data]))
    return recipe, settings


def run_name(typed: str) -> str:
    return typed.strip()[:MOST_LETTERS]


def sentence_or_reason(sentence: Callable[[], str]) -> str:
    """The sentence; or why it cannot be done with this model, in its place."""
    try:
        return markup.note(sentence())
    except lrcore.InputError as error:
        return markup.note(str(error), "error")


def about_model(
    store: Store,
    values: Sequence[Any],
    sentence: Callable[[lrcore.Recipe, lrcore.LoadedModel], str],
) -> str:
    """A sentence about the model of the form, as above; or that it has not been analysed yet.

    values: of the form. sentence: of its recipe and the dense model.
    """
    recipe = try_recipe(values)
    model = store.peek_dense(recipe) if recipe else None
    if recipe is None or model is None:
        return markup.missing(store.awaited(recipe), text.NOT_ANALYSED)
    return sentence_or_reason(lambda: sentence(recipe, model))


def wire_start(
    page: Page,
    store: Store,
    button: gr.Button,
    name: gr.Textbox,
    controls: FormData,
    start: Callable[..., str],
) -> None:
    """A press on the button starts a job: `start` is given the store, the name of the run, the
    values of the controls and what `read_and_check` takes; what it gives is the name then.
    """
    values = [name, controls, *inputs(page)]
    listen([button.click], bind(start, store), values, name, **QUIET)


def name_and_start(elem_id: str, label: str) -> tuple[gr.Textbox, gr.Button]:
    """The name of the run and the button that starts it."""
    with gr.Row(elem_classes="bottom"):
        name = Textbox(
            label="Name of the run", placeholder="made from the choice", elem_id=f"{elem_id}-name"
        )
        start = gr.Button(label, size="sm", elem_id=elem_id, scale=0, min_width=120)
    return name, start
