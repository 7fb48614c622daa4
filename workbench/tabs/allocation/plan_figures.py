"""Figures and controls of the Allocation tab for a displayed plan."""

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import gradio as gr

import lrcore
from lrcore.layers.spectra import Slot
from lrcore.methods import METHODS
from lrcore.ranks.plan import RankPlan
from lrcore.ranks.policies.softmax import HIGHEST_SUGGESTED

from ... import words
from ...base import numbers
from ...figures.base import captioned
from ...figures.network import Block, Network, network
from ...figures.rank_bars import Bar, RankBars, rank_bars
from ...state.keys import BYTES, policy_row
from ...state.plan_view import PlanView
from ...state.store import Store
from ...views import markup
from ...widgets.form import TEMPERATURES, try_recipe


def plan_bars(view: PlanView) -> str:
    """Return the figure of a plan's ranks in front of the reference plan, with the caption."""
    if view.missing_evidence is not None:
        name = words.allocation.RANKS_OF.format(view.displayed_recipe.policy)
        figure = bars(view.plan, view.uniform, displayed_name=name)
    else:
        overrides = view.recipe.rank_overrides
        figure = bars(view.plan, view.reference, overrides, is_pinned=view.is_pinned_drawn)
    return captioned(figure, view.caption)


def bars(
    plan: Any,
    reference: Any,
    overrides: Collection[str] = (),
    displayed_name: str = "",
    is_pinned: bool = False,
) -> str:
    """Return the figure of a plan's ranks in front of the ranks of a reference plan.

    displayed_name: name of a plan that does not have the chosen policy; it is drawn pale and
    cannot be dragged. A plan of bytes cannot be dragged either: bits come with the ranks.
    is_pinned: True if the reference is the pinned plan.
    """
    steps = {component: spectrum.cost.step for (_, component), spectrum in plan.spectra.items()}
    steps = {} if displayed_name or plan.budget == BYTES else steps
    behind = words.allocation.PINNED_RANK if is_pinned else words.allocation.UNIFORM_RANK
    of_plan = bars_by_part(plan, lambda slot: slot_loss(plan, slot, reference, behind))
    figure = RankBars(of_plan, bars_by_part(reference), overrides, steps, displayed_name, is_pinned)
    return rank_bars(figure)


def slot_loss(plan: RankPlan, slot: Slot, reference: RankPlan, behind: str) -> str:
    """Return what a slot loses at its rank and would lose at that of the reference, a line each.

    This is the measured increase in loss if the plan has probes, else the energy; "" for a plan of
    bytes, where bits lose as well.
    """
    if plan.budget == BYTES:
        return ""
    spectrum, curve = plan.spectra[slot], None
    if plan.probes is not None:
        curve = plan.probes.curves[slot]

    def loss(rank: int) -> str:
        if curve is not None:
            return words.allocation.LOSS_ALONE.format(numbers.small_nats(curve.loss(rank)))
        return words.allocation.ENERGY_LOST.format(numbers.percent(1 - spectrum.energy(rank), 2))

    lines, other = [loss(plan.ranks[slot])], reference.ranks.get(slot)
    if other not in (None, plan.ranks[slot]) and (curve is None or other in curve.ranks):
        lines.append(f"{behind.format(other)} {loss(other)}")
    return "".join(f"<br>{line}" for line in lines)


def bars_by_part(plan: Any, loss: Callable[[Slot], str] = lambda _: "") -> dict[str, list[Bar]]:
    """Return the slots of a plan by the part of a layer that they belong to, layer by layer.

    loss: returns the text of `Bar.loss`.
    """
    components: dict[tuple[str, int], list[str]] = {}
    for (layer, component), spectrum in plan.spectra.items():
        part = component if spectrum.form is None else spectrum.form.part
        components.setdefault((part, layer), []).append(component)
    parts: dict[str, list[Bar]] = {}
    for (part, layer), names in sorted(components.items(), key=lambda entry: entry[0][1]):
        for position, name in enumerate(names):
            spectrum, rank = plan.spectra[layer, name], plan.ranks[layer, name]
            form = "" if spectrum.form is None else spectrum.form.name
            bits = plan.bits.get((layer, name), 0) if plan.budget == BYTES else None
            bar = Bar(layer, name, rank, spectrum.cost.full, form, position, len(names), bits)
            bar = replace(bar, loss=loss((layer, name)))
            parts.setdefault(part, []).append(bar)
    return parts


def temperature_slider(plan: RankPlan, is_automatic: bool) -> Any:
    """Return the update of the temperature slider: range, explanation and automatic value.

    The range includes a temperature that was typed.
    """
    suggested = plan.suggested_temperature
    if suggested is None:
        return gr.skip()
    if suggested >= HIGHEST_SUGGESTED:  # all ranks are nearly uniform: a range that has others
        (minimum, _), value = TEMPERATURES, {"value": plan.temperature} if is_automatic else {}
        maximum = max(suggested, plan.temperature or suggested)
        info = words.allocation.TEMPERATURE_UNIFORM.format(suggested)
        return gr.update(info=info, minimum=minimum, maximum=maximum, step=minimum, **value)
    # The automatic temperature ranges from thousandths to tens, with the differences between the
    # layers of a model. The range of the slider is proportional to it.
    digits = 1 - math.floor(math.log10(suggested))
    step = round(0.1**digits, digits)
    usual_maximum = round(10 * suggested + 0.1**digits, digits)
    maximum = max(usual_maximum, round(plan.temperature + 0.1**digits, digits))
    changes: dict[str, Any] = {"minimum": step, "maximum": maximum, "step": step}
    # The browser would show a typed value beyond the previous range as the end of that range.
    if is_automatic or plan.temperature > usual_maximum:
        changes["value"] = max(step, round(plan.temperature, digits))
    return gr.update(info=words.allocation.TEMPERATURE_INFO.format(suggested), **changes)


def about_choice(recipe: lrcore.Recipe) -> str:
    """Return the chosen method and policy, with their descriptions."""
    method = next(row for row in lrcore.list_methods() if row["name"] == recipe.method)
    policy = policy_row(recipe)
    descriptions = markup.about(method["name"], method["paper"], method["notes"])
    descriptions += markup.about(policy["name"], policy["summary"])
    budget = words.allocation.budget(METHODS[recipe.method].budget(recipe.budget))
    return markup.chosen(method["name"], policy["name"], budget, descriptions)


def draw_network(store: Store, browser: gr.Request, *values: Any) -> Any:
    """Draw the network with the ranks of the form's recipe.

    While the policy waits for measurements, the plan of the previous policy is drawn pale. Without
    factors, the previous figure stays, dimmed.
    """
    recipe = try_recipe(values)
    if recipe is None:
        return gr.skip()
    is_ready = store.peek_factors(recipe) is not None
    displayed = recipe if is_ready else store.browsers.previous_recipe(browser.session_hash, recipe)
    try:
        plan = store.plan(displayed)
    except lrcore.InputError:  # the message is above the bars
        return gr.skip()
    if plan is None:
        return gr.skip()
    caption = words.allocation.plan_caption(displayed, plan.budget)
    return captioned(network(network_of(plan, is_pale=not is_ready)), caption)


def network_of(plan: RankPlan, is_pale: bool = False) -> Network:
    """Return the blocks of a plan: parameters, or bytes of the KV cache for the budget "kv", or of
    the slots for the budget "bytes".
    """
    counts_cache, itemsize = plan.budget == "kv", plan.shape.itemsize
    columns: dict[str, dict[int, Block]] = {}
    for row in plan.slot_ranks:
        counts, bits = (row.parameters, row.dense_parameters), None
        if counts_cache:
            counts = (row.kv_bytes, row.dense_kv_bytes)
        elif plan.budget == BYTES:
            stored = round(plan.slot_bytes((row.layer, row.component)))
            counts, bits = (stored, row.dense_parameters * itemsize), row.bits
        if counts[1]:
            block = Block(row.rank, row.full, *counts, bits)
            columns.setdefault(row.component, {})[row.layer] = block
    units = {"kv": words.allocation.CACHED_BYTES, BYTES: words.allocation.STORED_BYTES}
    layers, unit = plan.shape.layers, units.get(plan.budget, words.allocation.PARAMETERS)
    in_slots = sum(row.dense_parameters for row in plan.slot_ranks)
    outside_slots = 0.0 if counts_cache else (plan.shape.decoder_linear - in_slots) / layers
    outside_slots *= itemsize if plan.budget == BYTES else 1
    forms = {
        component: tuple(spectrum.form)
        for (_, component), spectrum in plan.spectra.items()
        if spectrum.form is not None
    }
    return Network(columns, layers, unit, outside_slots, is_pale, forms)
