"""A basis that neighbouring layers share (Basis Sharing): what is left, and its job."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore

from ... import sharing_text
from ...components import Slider, panel, whole
from ...events import DRAWN, FormData, bind, form_data, listen
from ...jobs import ShareJob
from ...page import Page
from ...store import Store
from .reading import about_model, name_and_start, read_and_check, run_name, wire_start

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
    wire_start(page, store, parts.start, parts.name, parts.controls, start)


def describe(store: Store, controls: list[Any], *values: Any) -> str:
    """What sharing would leave; controls: the share to remove, and how many layers to a basis."""

    def sentence(recipe: lrcore.Recipe, model: lrcore.LoadedModel) -> str:
        ratio, group = checked(recipe, controls)
        left = lrcore.shared_size(model, ratio, group)
        return sharing_text.to_be_shared(left, model.size.decoder_linear, group)

    return about_model(store, values, sentence)


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
