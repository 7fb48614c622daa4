"""Perplexity against budget: the predicted curve of the plan on show, and clicks in it."""

import time
from typing import Any

import gradio as gr

import lrcore

from ... import budget_text, markup, saving_text
from ...events import event_data
from ...figures.base import captioned
from ...figures.budget_curve import BudgetCurves, budget_curves
from ...form import try_recipe
from ...keys import UNIFORM, factor_key
from ...store import Store

Curve = tuple[lrcore.CurvePoint, ...]


def draw(store: Store, *values: Any) -> tuple[Any, str]:
    """The figure and what it says; empty where the slots were not probed."""
    recipe = try_recipe(values)
    if recipe is None:
        return gr.skip(), gr.skip()
    own = curve(store, recipe)
    try:
        plan = store.plan(recipe)
    except lrcore.InputError:  # said above the bars
        return gr.skip(), gr.skip()
    if not own or plan is None or plan.predicted is None or plan.dense_perplexity is None:
        return "", markup.note(budget_text.NO_PROBES, "hint")
    drawn = BudgetCurves(
        own,
        f"{recipe.method}, {recipe.policy}",
        plan.dense_perplexity,
        others(store, recipe),
        (plan.account.achieved, plan.predicted.perplexity),
    )
    caption = saving_text.plan_source(recipe, plan.budget)
    return captioned(budget_curves(drawn), caption), markup.note(budget_text.HELP)


def curve(store: Store, recipe: lrcore.Recipe) -> Curve:
    """The predicted curve by the factors whose slots were probed; empty where there are none."""
    base = recipe.with_(policy="probed", policy_options={})
    factors = store.peek_factors(base)
    if factors is None:
        return ()
    anywhere = recipe.with_(ratio=lrcore.Recipe().ratio)  # a curve has every ratio
    key = (factor_key(base), anywhere.to_json())
    found: Curve = store.objects.get(
        "curves", key, lambda: lrcore.predicted_curve(factors, anywhere)
    )
    return found


def others(store: Store, recipe: lrcore.Recipe) -> dict[str, Curve]:
    """The curve of uniform ranks, and of other methods by the same policy."""
    wanted = [recipe.with_(policy=UNIFORM, policy_options={}), *store.by_method(recipe)]
    curves = {
        f"{one.method}, {one.policy}": curve(store, one.with_(overrides={})) for one in wanted
    }
    own = f"{recipe.method}, {recipe.policy}"
    return {name: points for name, points in curves.items() if points and name != own}


def set_budget(event: gr.EventData, choice: list[Any]) -> tuple[Any, Any]:
    """The ratio of the point clicked, and what makes the tabs follow (see `Page.choice`)."""
    point = event_data(event)
    ratio = (point.get("custom") or [None])[0]
    return (gr.skip(), gr.skip()) if ratio is None else (ratio, [*choice[:2], time.time()])
