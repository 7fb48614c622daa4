"""Removal of complete layers: their choice, the remaining size, and the job."""

from collections.abc import Sequence
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
from ...widgets.fields import Field, FieldGroup
from ...widgets.form import try_recipe
from ..compress.job_inputs import (
    job_fields,
    read_and_check,
    run_name,
    sentence_or_error,
)
from .reduction import Reduction


def layout() -> Reduction:
    """Place the controls and the figure of Block Influence."""
    text = words.compress
    layers = Field("drop-layers", text.LAYERS_TO_PRUNE, 1, low=1, high=2, step=1)
    criteria = tuple((label, name) for name, label in text.PRUNE_CRITERIA.items())
    criterion = Field("drop-by", text.PRUNE_CRITERION, "influence", choices=criteria)
    controls = job_fields("drop", [layers, criterion], text.START_PRUNE, text.PRUNE)
    results = (plot("influence", 180), panel("drop-caption"))
    return Reduction(controls, results, draw, start, fit_range)


def fit_range(store: Store, group: FieldGroup, controls: list[Any], *values: Any) -> Any:
    """Return the fields with the range of the model."""
    recipe = try_recipe(values)
    analysis = store.peek_analysis(recipe) if recipe else None
    if analysis is None or analysis.layers < 2:
        return gr.skip()
    maximum, (layers, *others) = analysis.layers - 1, controls
    fields = group.with_values([min(layers or 1, maximum), *others])
    return [fields[0] | {"high": maximum}, *fields[1:]]


def draw(store: Store, controls: list[Any], *values: Any) -> tuple[str, str]:
    """Draw Block Influence of all layers, and describe the result of the job."""
    layers, criterion, _ = controls
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


def start(store: Store, controls: list[Any], *values: Any) -> None:
    """Queue the run."""
    layers, criterion, name = controls
    recipe, settings = read_and_check(store, values)
    count = whole_number(layers, words.compress.LAYERS_TO_PRUNE)
    store.jobs.submit(PruneLayersJob(recipe, count, criterion, run_name(name), settings))


def lowest(influence: Sequence[float], count: int) -> list[int]:
    """Return the layers with the lowest Block Influence, in this order; at least one remains."""
    ordered = sorted(range(len(influence)), key=influence.__getitem__)
    return ordered[: max(0, min(count, len(influence) - 1))]
