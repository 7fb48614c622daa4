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
from ...widgets.events import DRAWN, bind, listen
from ...widgets.fields import Field, FieldGroup
from ...widgets.page import Page
from ..compress.job_inputs import (
    describe_model,
    job_fields,
    read_and_check,
    run_name,
    wire_start,
)

RATIO, GROUP = 0.2, 2


@dataclass(frozen=True)
class SharedBases:
    """controls: ratio, layers per basis, and name of the run."""

    controls: FieldGroup
    caption: gr.HTML


def layout() -> SharedBases:
    """Place the controls."""
    text = words.compress
    gr.Markdown(text.SHARE)
    ratio = Field(
        "share-ratio", text.REDUCTION, RATIO, text.SHARE_RATIO, low=0.02, high=0.9, step=0.01
    )
    group = Field("share-group", text.GROUP, GROUP, text.GROUP_INFO, low=1)
    controls = job_fields("share", [ratio, group], text.START_SHARE)
    return SharedBases(controls, panel("share-caption"))


def wire(page: Page, store: Store, parts: SharedBases, tab: gr.Tab) -> None:
    """Attach the handlers."""
    listen(
        [tab.select, page.analysis_key.change, parts.controls.value.input],
        bind(describe, store),
        [parts.controls, *page.form.inputs],
        parts.caption,
        **DRAWN,
    )
    wire_start(page, store, parts.controls, start)


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


def start(store: Store, controls: list[Any], *values: Any) -> None:
    """Queue the run."""
    recipe, settings = read_and_check(store, values)
    ratio, group = read_controls(recipe, controls)
    name = run_name(controls[-1])
    store.jobs.submit(ShareJob(recipe.with_(ratio=ratio), group, name, settings))
