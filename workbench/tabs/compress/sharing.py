"""A basis that neighbouring layers share (Basis Sharing): what is left, and its job."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore

from ... import markup, sharing_text, text
from ...components import Slider, panel, whole
from ...events import DRAWN, QUIET, FormData, bind, form_data, listen
from ...form import try_recipe
from ...jobs import ShareJob
from ...page import Page
from ...store import Store
from .reading import inputs, name_and_start, read_and_check, run_name, sentence_or_reason

RATIO, GROUP = 0.2, 2


@dataclass(frozen=True)
class SharedBases:
    ratio: gr.Slider
    group: gr.Number
    controls: FormData
    caption: gr.HTML
    name: gr.Textbox
    start: gr.Button


def layout() -> SharedBases:
    gr.Markdown(sharing_text.SHARE)
    ratio = Slider(
        0.02, 0.9, RATIO, step=0.01, label="Remove", info=sharing_text.RATIO, elem_id="share-ratio"
    )
    group = gr.Number(
        GROUP,
        label=sharing_text.GROUP,
        info=sharing_text.GROUP_INFO,
        precision=0,
        minimum=1,
        elem_id="share-group",
    )
    caption = panel("share-caption")
    controls = form_data([ratio, group], [RATIO, GROUP])
    return SharedBases(ratio, group, controls, caption, *name_and_start("share", "Share it"))


def wire(page: Page, store: Store, parts: SharedBases, tab: gr.Tab) -> None:
    listen(
        [
            tab.select,
            page.analysis_key.change,
            parts.ratio.change,
            parts.group.change,
        ],
        bind(describe, store),
        [parts.controls, *page.form.inputs],
        parts.caption,
        **DRAWN,
    )
    values = [parts.name, parts.controls, *inputs(page)]
    listen([parts.start.click], bind(start, store), values, parts.name, **QUIET)


def describe(store: Store, controls: list[Any], *values: Any) -> str:
    """What sharing would leave; controls: the share to remove, and how many layers to a basis."""
    recipe = try_recipe(values)
    model = store.peek_dense(recipe) if recipe else None
    if model is None:
        return markup.missing(store.awaited(recipe), text.NOT_ANALYSED)

    def sentence() -> str:
        ratio, group = checked(recipe, controls)
        left = lrcore.shared_size(model, ratio, group)
        return sharing_text.to_be_shared(left, model.size.decoder_linear, group)

    return sentence_or_reason(sentence)


def checked(recipe: lrcore.Recipe, controls: list[Any]) -> tuple[float, int]:
    """The share to remove and the size of a group. Raises InputError for one out of range."""
    ratio, group = controls[0], whole(controls[1], sharing_text.GROUP)
    if group < 1:
        raise lrcore.InputError(f"{sharing_text.GROUP} must be at least 1; got {group}.")
    return recipe.with_(ratio=ratio).ratio, group


def start(store: Store, name: str, controls: list[Any], *values: Any) -> str:
    """Queue the run; the box of its name is empty afterwards."""
    recipe, settings = read_and_check(store, values)
    ratio, group = checked(recipe, controls)
    store.jobs.submit(ShareJob(recipe.with_(ratio=ratio), group, run_name(name), settings))
    return ""
