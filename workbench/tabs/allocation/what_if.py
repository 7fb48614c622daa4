"""The plan on show, projected onto another model: what that would weigh."""

import json
from html import escape
from typing import Any

import gradio as gr

import lrcore

from ... import markup, numbers, what_if_text
from ...components import whole
from ...form import try_recipe
from ...store import Store

CARDS = (8, 24, 80)  # GB of memory that graphics cards have


def draw(store: Store, shape: str | None, context: float | None, config: str, *values: Any) -> Any:
    """The table of sizes."""
    recipe = try_recipe(values)
    if recipe is None:
        return gr.skip()
    try:
        plan = store.plan(recipe)
        if plan is None:
            return gr.skip()
        tokens = whole(context, what_if_text.CONTEXT)
        if tokens < 1:
            raise lrcore.InputError(what_if_text.NO_CONTEXT.format(tokens))
        found = lrcore.what_if(plan, recipe.method, read(config) if config.strip() else shape or "")
    except lrcore.InputError as error:
        return markup.note(lrcore.without_paths(str(error)), "error")
    return table(found, tokens)


def read(config: str) -> dict[str, Any]:
    """The fields of a pasted config.json. Raises InputError for what is none."""
    try:
        fields = json.loads(config)
    except (ValueError, RecursionError) as error:
        raise lrcore.InputError(
            f"The pasted text is no JSON ({error}). Paste a whole config.json."
        ) from error
    if not isinstance(fields, dict):
        raise lrcore.InputError("The pasted text is no object. Paste a whole config.json.")
    return fields


def table(found: lrcore.WhatIf, context: int) -> str:
    """Sizes of the other model, dense and with the shares of the plan, and where they fit."""
    sides = (True, False)
    weights = [found.memory(0, dense) for dense in sides]
    both = [found.memory(context, dense) for dense in sides]
    rows = [
        (what_if_text.PARAMETERS, [numbers.count(n) for n in parameters(found)]),
        (what_if_text.WEIGHTS, [numbers.megabytes(one / 1e6) for one in weights]),
        (
            what_if_text.CACHE.format(numbers.count(context)),
            [numbers.megabytes((one - own) / 1e6) for one, own in zip(both, weights, strict=True)],
        ),
        (what_if_text.BOTH, [numbers.megabytes(one / 1e6) for one in both]),
    ]
    for card in CARDS:
        fits = [found.fits(card, context, dense) for dense in sides]
        words = [what_if_text.YES if one else what_if_text.NO for one in fits]
        rows.append((what_if_text.FITS.format(card), words))
    head = "".join(f"<th>{escape(one)}</th>" for one in what_if_text.HEAD)
    body = "".join(
        f"<tr><th>{escape(name)}</th>{''.join(f'<td>{escape(one)}</td>' for one in cells)}</tr>"
        for name, cells in rows
    )
    words = what_if_text.HELP.format(model=found.name, layers=found.layers)
    if found.unchanged:
        words += what_if_text.UNCHANGED.format(", ".join(found.unchanged))
    return f"<table class='changes what-if'><tr>{head}</tr>{body}</table>{markup.note(words)}"


def parameters(found: lrcore.WhatIf) -> tuple[int, int]:
    return found.dense_parameters, found.parameters
