"""The hidden size sliced (SliceGPT): what is left, and the job that does it."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore

from ... import text
from ...components import Slider, panel
from ...events import DRAWN, FormData, bind, form_data, listen
from ...jobs import SliceJob
from ...page import Page
from ...store import Store
from .reading import about_model, name_and_start, read_and_check, run_name, wire_start


@dataclass(frozen=True)
class Slicing:
    ratio: gr.Slider
    rotations: gr.Radio
    controls: FormData
    caption: gr.HTML
    name: gr.Textbox
    start: gr.Button


def layout() -> Slicing:
    gr.Markdown(text.SLICE)
    ratio = Slider(
        0.02, 0.7, 0.2, step=0.01, label="Remove", info=text.SLICE_RATIO, elem_id="slice-ratio"
    )
    choices = [(label, name) for name, label in text.ROTATIONS.items()]
    rotations = gr.Radio(choices, value="block", label="Bases", elem_id="slice-rotations")
    caption = panel("slice-caption")
    controls = form_data([ratio, rotations], [0.2, "block"])
    return Slicing(ratio, rotations, controls, caption, *name_and_start("slice", "Slice it"))


def wire(page: Page, store: Store, parts: Slicing, tab: gr.Tab) -> None:
    listen(
        [
            tab.select,
            page.analysis_key.change,
            page.form["multiple"].change,
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
    """What slicing would leave; controls: the share to remove, and which bases."""
    ratio, rotations = controls

    def sentence(recipe: lrcore.Recipe, model: lrcore.LoadedModel) -> str:
        recipe.with_(ratio=ratio)  # refuses one out of range
        size = lrcore.sliced_size(model, ratio, rotations, recipe.multiple)
        return text.to_be_sliced(size, model.size)

    return about_model(store, values, sentence)


def start(store: Store, name: str, controls: list[Any], *values: Any) -> str:
    """Queue the run; the box of its name is empty afterwards."""
    ratio, rotations = controls
    recipe, settings = read_and_check(store, values)
    job = SliceJob(recipe.with_(ratio=ratio), rotations, run_name(name), settings)
    store.jobs.submit(job)
    return ""
