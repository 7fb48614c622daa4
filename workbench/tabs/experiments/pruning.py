"""Removal of complete layers: their choice, the remaining size, and the job."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore

from ... import words
from ...figures import allocation as figures
from ...figures.base import captioned
from ...jobs import PruneLayersJob
from ...state.store import Store
from ...views import markup, preview
from ...widgets.components import panel, plot, whole_number
from ...widgets.events import DRAWN, FormData, bind, form_data, listen
from ...widgets.form import try_recipe
from ...widgets.page import Page
from ..compress.job_inputs import (
    name_and_start,
    read_and_check,
    run_name,
    sentence_or_error,
    wire_start,
)


@dataclass(frozen=True)
class Pruning:
    """controls: number of layers, and the criterion."""

    layers: gr.Slider
    criterion: gr.Radio
    controls: FormData
    influence: gr.HTML
    caption: gr.HTML
    name: gr.Textbox
    start: gr.Button


def layout() -> Pruning:
    """Place the controls and the figure of Block Influence."""
    text = words.compress
    gr.Markdown(text.PRUNE)
    layers = gr.Slider(1, 2, 1, step=1, label=text.LAYERS_TO_PRUNE, elem_id="drop-layers")
    criteria = [(label, name) for name, label in text.PRUNE_CRITERIA.items()]
    criterion = gr.Radio(criteria, value="influence", label=text.PRUNE_CRITERION, elem_id="drop-by")
    influence, caption = plot("influence", 180), panel("drop-caption")
    controls = form_data([layers, criterion], [1, "influence"])
    name, start = name_and_start("drop", text.START_PRUNE)
    return Pruning(layers, criterion, controls, influence, caption, name, start)


def wire(page: Page, store: Store, parts: Pruning, tab: gr.Tab) -> None:
    """Attach the handlers."""
    form = page.form.inputs
    opened = [tab.select, page.analysis_key.change]
    listen(opened, bind(fit_range, store), [parts.controls, *form], parts.layers, **DRAWN)
    listen(
        [*opened, parts.layers.change, parts.criterion.change],
        bind(draw, store),
        [parts.controls, *form],
        [parts.influence, parts.caption],
        **DRAWN,
    )
    wire_start(page, store, parts.start, parts.name, parts.controls, start)


def fit_range(store: Store, controls: list[Any], *values: Any) -> Any:
    """Return the slider with the range of the model."""
    layers, _ = controls
    recipe = try_recipe(values)
    analysis = store.peek_analysis(recipe) if recipe else None
    if analysis is None or analysis.layers < 2:
        return gr.skip()
    maximum = analysis.layers - 1
    return gr.Slider(maximum=maximum, **({"value": maximum} if (layers or 0) > maximum else {}))


def draw(store: Store, controls: list[Any], *values: Any) -> tuple[str, str]:
    """Draw Block Influence of all layers, and describe the result of the job."""
    layers, criterion = controls
    recipe = try_recipe(values)
    analysis = store.peek_analysis(recipe) if recipe else None
    model = store.peek_dense(recipe) if recipe else None
    if analysis is None or model is None:
        return "", markup.missing(store.waiting_jobs(recipe), words.spectra.NOT_ANALYZED)
    influence = analysis.block_influence

    def sentence() -> str:
        pruned = lowest(influence, whole_number(layers, words.compress.LAYERS_TO_PRUNE))
        size = lrcore.drop_layers(model, pruned, criterion).account.to_dict()
        return preview.pruning(influence, pruned, criterion, size)

    marked = lowest(influence, round(layers or 0)) if criterion == "influence" else []
    caption = words.spectra.source_caption(recipe, words.compress.INFLUENCE)
    return captioned(figures.influence(influence, marked), caption), sentence_or_error(sentence)


def start(store: Store, name: str, controls: list[Any], *values: Any) -> str:
    """Queue the run and return an empty name."""
    layers, criterion = controls
    recipe, settings = read_and_check(store, values)
    count = whole_number(layers, words.compress.LAYERS_TO_PRUNE)
    store.jobs.submit(PruneLayersJob(recipe, count, criterion, run_name(name), settings))
    return ""


def lowest(influence: Sequence[float], count: int) -> list[int]:
    """Return the layers with the lowest Block Influence, in this order; at least one remains."""
    ordered = sorted(range(len(influence)), key=influence.__getitem__)
    return ordered[: max(0, min(count, len(influence) - 1))]
