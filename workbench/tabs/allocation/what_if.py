"""Sizes of another model with the ratios of the displayed plan."""

import json
from html import escape
from typing import Any

import gradio as gr

import lrcore
from lrcore.compression.what_if import WhatIf
from lrcore.system.path_access import strip_paths

from ... import words
from ...base import numbers
from ...state.store import Store
from ...views import markup
from ...widgets.components import whole_number
from ...widgets.form import try_recipe

CARDS = (8, 24, 80)  # memory of common GPUs, GB


def draw(store: Store, fields: tuple[str, float | None, str], *values: Any) -> Any:
    """Draw the table of sizes.

    fields: name of a built-in shape, tokens in the cache, and a pasted config.json, which replaces
    the shape.
    """
    text, recipe, (shape, context, config) = words.allocation, try_recipe(values), fields
    if recipe is None:
        return gr.skip()
    try:
        plan = store.plan(recipe)
        if plan is None:
            return gr.skip()
        tokens = whole_number(context, text.CONTEXT)
        if tokens < 1:
            raise lrcore.InputError(text.WHAT_IF_CONTEXT_RANGE.format(tokens))
        model = read_config(config) if config.strip() else shape
        projection = lrcore.what_if(plan, recipe.method, model)
    except lrcore.InputError as error:
        return markup.note(strip_paths(str(error)), "error")
    bits = markup.note(text.WHAT_IF_BITS) if plan.bits else ""
    return size_table(projection, tokens) + bits


def read_config(config: str) -> dict[str, Any]:
    """Return the fields of a pasted config.json. Raises InputError for invalid ones."""
    try:
        fields = json.loads(config)
    except (ValueError, RecursionError) as error:
        raise lrcore.InputError(words.allocation.WHAT_IF_NOT_JSON.format(error)) from error
    if not isinstance(fields, dict):
        raise lrcore.InputError(words.allocation.WHAT_IF_NOT_OBJECT)
    return fields


def size_table(projection: WhatIf, context: int) -> str:
    """Return the sizes of the other model, dense and compressed, and the GPUs that fit it."""
    text = words.allocation
    weights = [projection.memory(0, dense) for dense in (True, False)]
    totals = [projection.memory(context, dense) for dense in (True, False)]
    caches = [total - weight for total, weight in zip(totals, weights, strict=True)]
    parameters = (projection.dense_parameters, projection.parameters)
    rows = [
        (text.WHAT_IF_PARAMETERS, [numbers.count(count) for count in parameters]),
        (text.WHAT_IF_WEIGHTS, sizes(weights)),
        (text.WHAT_IF_CACHE.format(numbers.count(context)), sizes(caches)),
        (text.WHAT_IF_TOTAL, sizes(totals)),
    ]
    for card in CARDS:
        fits = [projection.fits(card, context, dense) for dense in (True, False)]
        answers = [text.YES if does_fit else text.NO for does_fit in fits]
        rows.append((text.WHAT_IF_FITS.format(card), answers))
    head = "".join(f"<th>{escape(name)}</th>" for name in text.WHAT_IF_COLUMNS)
    body = "".join(
        f"<tr><th>{escape(name)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for name, cells in rows
    )
    explanation = text.WHAT_IF_HELP.format(model=projection.name, layers=projection.layers)
    if projection.unchanged:
        explanation += text.WHAT_IF_UNCHANGED.format(", ".join(projection.unchanged))
    return f"<table class='changes what-if'><tr>{head}</tr>{body}</table>{markup.note(explanation)}"


def sizes(counts: list[int]) -> list[str]:
    """Return numbers of bytes as text."""
    return [numbers.megabytes(count / 1e6) for count in counts]
