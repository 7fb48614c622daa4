"""The picture of the network under the bars, with the ranks on show."""

from typing import Any

import gradio as gr

import lrcore

from ... import network_text, saving_text
from ...figures.base import captioned
from ...figures.network import Block, Network, network
from ...form import try_recipe
from ...store import Store


def draw_network(store: Store, browser: gr.Request, *values: Any) -> Any:
    """The network with the ranks of the recipe; while its policy has to measure something first,
    pale with those of the policy before. Until there are factors the one before stays, dimmed.
    """
    recipe = try_recipe(values)
    if recipe is None:
        return gr.skip()
    chosen = store.peek_factors(recipe) is not None
    drawn = recipe if chosen else store.shown.before(browser.session_hash, recipe)
    try:
        plan = store.plan(drawn)
    except lrcore.InputError:  # said above the bars
        return gr.skip()
    if plan is None:
        return gr.skip()
    caption = saving_text.plan_source(drawn, plan.budget)
    return captioned(network(network_of(plan, pale=not chosen)), caption)


def network_of(plan: lrcore.RankPlan, pale: bool = False) -> Network:
    """The blocks of a plan: parameters, or cached bytes where its budget counts those."""
    cached = plan.budget == "kv"
    columns: dict[str, dict[int, Block]] = {}
    for row in plan.slot_ranks:
        counts = (row.parameters, row.dense_parameters)
        if cached:
            counts = (row.kv_bytes, row.dense_kv_bytes)
        if counts[1]:
            columns.setdefault(row.component, {})[row.layer] = Block(row.rank, row.full, *counts)
    counted, layers = network_text.CACHED if cached else network_text.PARAMETERS, plan.shape.layers
    dense = sum(row.dense_parameters for row in plan.slot_ranks)
    whole = 0.0 if cached else (plan.shape.decoder_linear - dense) / layers
    forms = {
        component: tuple(spectrum.form)
        for (_, component), spectrum in plan.spectra.items()
        if spectrum.form is not None
    }
    return Network(columns, layers, counted, whole, pale, forms)
