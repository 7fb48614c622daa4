"""Bases that neighboring layers share (Basis Sharing): the remaining size, and the job."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore
from lrcore.compression.steps.share import shared_size

from ... import words
from ...jobs import ShareJob
from ...state.store import Store
from ...views import preview
from ...widgets.components import panel, whole_number
from ...widgets.events import DRAWN, FormData, bind, form_data, listen
from ...widgets.page import Page
from ..compress.job_inputs import (
    describe_model,
    name_and_start,
    read_and_check,
    run_name,
    wire_start,
)

RATIO, GROUP = 0.2, 2


@dataclass(frozen=True)
class SharedBases:
    """controls: ratio, and layers per basis."""

    ratio: gr.Slider
    group: gr.Number
    controls: FormData
    caption: gr.HTML
    name: gr.Textbox
    start: gr.Button


def layout() -> SharedBases:
    """Place the controls."""
    text = words.compress
    gr.Markdown(text.SHARE)
    ratio = gr.Slider(
        0.02,
        0.9,
        RATIO,
        step=0.01,
        label=text.REDUCTION,
        info=text.SHARE_RATIO,
        elem_id="share-ratio",
    )
    group = gr.Number(
        GROUP,
        label=text.GROUP,
        info=text.GROUP_INFO,
        precision=0,
        minimum=1,
        elem_id="share-group",
    )
    caption = panel("share-caption")
    controls = form_data([ratio, group], [RATIO, GROUP])
    name, start = name_and_start("share", text.START_SHARE)
    return SharedBases(ratio, group, controls, caption, name, start)


def wire(page: Page, store: Store, parts: SharedBases, tab: gr.Tab) -> None:
    """Attach the handlers."""
    listen(
        [tab.select, page.analysis_key.change, parts.ratio.change, parts.group.change],
        bind(describe, store),
        [parts.controls, *page.form.inputs],
        parts.caption,
        **DRAWN,
    )
    wire_start(page, store, parts.start, parts.name, parts.controls, start)


def describe(store: Store, controls: list[Any], *values: Any) -> str:
    """Describe the result of the job."""

    def sentence(recipe: lrcore.Recipe, model: lrcore.LoadedModel) -> str:
        ratio, group = read_controls(recipe, controls)
        remaining = shared_size(model, ratio, group)
        return preview.sharing(remaining, model.size.decoder_linear, group)

    return describe_model(store, values, sentence)


def read_controls(recipe: lrcore.Recipe, controls: list[Any]) -> tuple[float, int]:
    """Return the ratio and the layers per basis. Raises InputError for a value out of range."""
    ratio, group = controls[0], whole_number(controls[1], words.compress.GROUP)
    if group < 1:
        raise lrcore.InputError(words.compress.GROUP_RANGE.format(group))
    return recipe.with_(ratio=ratio).ratio, group


def start(store: Store, name: str, controls: list[Any], *values: Any) -> str:
    """Queue the run and return an empty name."""
    recipe, settings = read_and_check(store, values)
    ratio, group = read_controls(recipe, controls)
    store.jobs.submit(ShareJob(recipe.with_(ratio=ratio), group, run_name(name), settings))
    return ""
