"""Slicing of the hidden size (SliceGPT): the remaining size, and the job."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore
from lrcore.compression.steps.slicing.slicing import sliced_size

from ... import words
from ...jobs import SliceJob
from ...state.store import Store
from ...views import preview
from ...widgets.components import panel
from ...widgets.events import DRAWN, FormData, bind, form_data, listen
from ...widgets.page import Page
from ..compress.job_inputs import (
    describe_model,
    name_and_start,
    read_and_check,
    run_name,
    wire_start,
)

RATIO, ROTATIONS = 0.2, "block"


@dataclass(frozen=True)
class Slicing:
    """controls: ratio, and rotations."""

    ratio: gr.Slider
    rotations: gr.Radio
    controls: FormData
    caption: gr.HTML
    name: gr.Textbox
    start: gr.Button


def layout() -> Slicing:
    """Place the controls."""
    text = words.compress
    gr.Markdown(text.SLICE)
    ratio = gr.Slider(
        0.02,
        0.7,
        RATIO,
        step=0.01,
        label=text.REDUCTION,
        info=text.SLICE_RATIO,
        elem_id="slice-ratio",
    )
    choices = [(label, name) for name, label in text.ROTATIONS.items()]
    rotations = gr.Radio(
        choices, value=ROTATIONS, label=text.SLICE_BASES, elem_id="slice-rotations"
    )
    caption = panel("slice-caption")
    controls = form_data([ratio, rotations], [RATIO, ROTATIONS])
    name, start = name_and_start("slice", text.START_SLICE)
    return Slicing(ratio, rotations, controls, caption, name, start)


def wire(page: Page, store: Store, parts: Slicing, tab: gr.Tab) -> None:
    """Attach the handlers."""
    listen(
        [
            tab.select,
            page.analysis_key.change,
            page.form["rank_multiple"].change,
            parts.ratio.change,
            parts.rotations.change,
        ],
        bind(describe, store),
        [parts.controls, *page.form.inputs],
        parts.caption,
        **DRAWN,
    )
    wire_start(page, store, parts.start, parts.name, parts.controls, start)


def describe(store: Store, controls: list[Any], *values: Any) -> str:
    """Describe the result of the job."""
    ratio, rotations = controls

    def sentence(recipe: lrcore.Recipe, model: lrcore.LoadedModel) -> str:
        recipe.with_(ratio=ratio)  # raises InputError for a ratio out of range
        size = sliced_size(model, ratio, rotations, recipe.rank_multiple)
        return preview.slicing(size, model.size)

    return describe_model(store, values, sentence)


def start(store: Store, name: str, controls: list[Any], *values: Any) -> str:
    """Queue the run and return an empty name."""
    ratio, rotations = controls
    recipe, settings = read_and_check(store, values)
    job = SliceJob(recipe.with_(ratio=ratio), rotations, run_name(name), settings)
    store.jobs.submit(job)
    return ""
