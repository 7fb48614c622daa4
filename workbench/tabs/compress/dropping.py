"""Whole layers dropped: which, what is left, and the job that does it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore

from ... import markup, saving_text, text
from ...components import Slider, panel, plot, whole
from ...events import DRAWN, FormData, bind, form_data, listen
from ...figures import allocation as figures
from ...figures.base import captioned
from ...form import try_recipe
from ...jobs import ShortenJob
from ...page import Page
from ...store import Store
from .reading import name_and_start, read_and_check, run_name, sentence_or_reason, wire_start


@dataclass(frozen=True)
class Dropping:
    layers: gr.Slider
    by: gr.Radio
    controls: FormData
    influence: gr.HTML
    caption: gr.HTML
    name: gr.Textbox
    start: gr.Button


def layout() -> Dropping:
    gr.Markdown(text.DROP)
    layers = Slider(1, 2, 1, step=1, label=text.LAYERS_TO_DROP, elem_id="drop-layers")
    orders = [(label, name) for name, label in text.ORDERS.items()]
    by = gr.Radio(orders, value="influence", label="Chosen by", elem_id="drop-by")
    influence, caption = plot("influence", 180), panel("drop-caption")
    controls = form_data([layers, by], [1, "influence"])
    return Dropping(layers, by, controls, influence, caption, *name_and_start("drop", "Drop them"))


def wire(page: Page, store: Store, parts: Dropping, tab: gr.Tab) -> None:
    form = page.form.inputs
    shown = [tab.select, page.analysis_key.change]
    listen(shown, bind(fit_range, store), [parts.controls, *form], parts.layers, **DRAWN)
    listen(
        [*shown, parts.layers.change, parts.by.change],
        bind(draw, store),
        [parts.controls, *form],
        [parts.influence, parts.caption],
        **DRAWN,
    )
    wire_start(page, store, parts.start, parts.name, parts.controls, start)


def fit_range(store: Store, controls: list[Any], *values: Any) -> Any:
    """The slider's range is that of the model on show."""
    layers, _ = controls
    recipe = try_recipe(values)
    analysis = store.peek_analysis(recipe) if recipe else None
    if analysis is None or analysis.layers < 2:
        return gr.skip()
    most = analysis.layers - 1
    return gr.Slider(maximum=most, **({"value": most} if (layers or 0) > most else {}))


def draw(store: Store, controls: list[Any], *values: Any) -> tuple[str, str]:
    """Block Influence of every layer, and what dropping some would leave.

    controls: how many layers, chosen by what.
    """
    layers, by = controls
    recipe = try_recipe(values)
    analysis = store.peek_analysis(recipe) if recipe else None
    model = store.peek_dense(recipe) if recipe else None
    if analysis is None or model is None:
        return "", markup.missing(store.awaited(recipe), text.NOT_ANALYSED)
    influence = analysis.block_influence

    def sentence() -> str:
        dropped = least(influence, whole(layers, text.LAYERS_TO_DROP))
        summary = lrcore.drop_layers(model, dropped, by).account.to_dict()
        return text.dropped(influence, dropped, by, summary)

    shown = least(influence, round(layers or 0)) if by == "influence" else []
    caption = saving_text.source(recipe, saving_text.INFLUENCE)
    return captioned(figures.influence(influence, shown), caption), sentence_or_reason(sentence)


def start(store: Store, name: str, controls: list[Any], *values: Any) -> str:
    """Queue the run; the box of its name is empty afterwards."""
    layers, by = controls
    recipe, settings = read_and_check(store, values)
    count = whole(layers, text.LAYERS_TO_DROP)
    store.jobs.submit(ShortenJob(recipe, count, by, run_name(name), settings))
    return ""


def least(influence: Sequence[float], layers: int) -> list[int]:
    """The layers of least Block Influence, least first; at least one stays."""
    order = sorted(range(len(influence)), key=influence.__getitem__)
    return order[: max(0, min(layers, len(influence) - 1))]
