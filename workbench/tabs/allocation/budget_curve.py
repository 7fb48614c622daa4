"""Perplexity against budget: the predicted curve of the plan on show, and clicks in it."""

import time
from collections.abc import Sequence
from typing import Any

import gradio as gr

import lrcore

from ... import budget_text, markup, saving_text, text
from ...events import event_data
from ...figures.base import captioned
from ...figures.budget_curve import BudgetCurves, MeasuredPoint, budget_curves
from ...form import try_recipe
from ...keys import UNIFORM, factor_key, uniform
from ...store import Store
from ...sweeps import by_recipe

MOST_RUNS = 100  # newest runs that are drawn
Curve = tuple[lrcore.CurvePoint, ...]


def draw(store: Store, *values: Any) -> tuple[Any, Any]:
    """The figure and what it says; empty where the slots were not probed. Until there are factors
    the figure of before stays, dimmed.
    """
    recipe = try_recipe(values)
    if recipe is None:
        return gr.skip(), gr.skip()
    own = curve(store, recipe)
    try:
        plan = store.plan(recipe)
    except lrcore.InputError:  # said above the bars
        return gr.skip(), gr.skip()
    if plan is None:
        return gr.skip(), markup.missing(store.awaited(recipe), text.NO_FACTORS)
    if not own or plan.predicted is None or plan.dense_perplexity is None:
        return "", markup.note(budget_text.NO_PROBES, "hint")
    measured = runs_of(store.runs.all(), recipe, plan.budget)
    drawn = BudgetCurves(
        own,
        f"{recipe.method}, {recipe.policy}",
        plan.dense_perplexity,
        uniform_curve(store, recipe),
        others(store, recipe),
        (plan.account.achieved, plan.predicted.perplexity),
        [point(run, one, recipe) for run, one in measured],
    )
    caption = saving_text.plan_source(recipe, plan.budget)
    words = budget_text.HELP
    if measured:
        words += budget_text.MEASURED.format(text.protocol(measured[0][1]["protocol"]))
    return captioned(budget_curves(drawn), caption), markup.folded(budget_text.READ, words)


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
    """The curves of the other methods that were factorised and probed, by the same policy."""
    wanted = [one for one in store.by_method(recipe) if one.method != recipe.method]
    curves = {f"{one.method}, {one.policy}": curve(store, one) for one in wanted}
    return {name: points for name, points in curves.items() if points}


def uniform_curve(store: Store, recipe: lrcore.Recipe) -> dict[str, Curve]:
    """The curve of uniform ranks by name; none where they are on show."""
    name = f"{recipe.method}, {UNIFORM}"
    return {} if recipe.policy == UNIFORM else {name: curve(store, uniform(recipe))}


def runs_of(
    runs: Sequence[lrcore.Run], recipe: lrcore.Recipe, budget: str
) -> list[tuple[lrcore.Run, dict[str, Any]]]:
    """Runs of the recipe's model and method that nothing followed, of the same kind of budget, and
    their evaluation by the protocol that the newest of them was measured by. runs: oldest first.
    """
    own = [
        run
        for run in runs
        if (run.recipe.model, run.recipe.method) == (recipe.model, recipe.method)
        and by_recipe(run)
        and run.account is not None
        and run.account.budget == budget
    ]
    known = [
        (run, one)
        for run in own
        for one in run.evaluations
        if one["perplexity"] and one["dense_perplexity"]
    ]
    newest = known[-1][1]["protocol"] if known else None
    by_run = {run.id: (run, one) for run, one in known if one["protocol"] == newest}
    return list(by_run.values())[-MOST_RUNS:]


def point(run: lrcore.Run, evaluation: dict[str, Any], recipe: lrcore.Recipe) -> MeasuredPoint:
    """Where a run stands."""
    perplexity, dense = evaluation["perplexity"], evaluation["dense_perplexity"]
    assert run.account is not None  # see `runs_of`
    name, own = f"{run.recipe.policy}: {run.name}", run.recipe.policy == recipe.policy
    return MeasuredPoint(name, run.account.achieved, perplexity, dense, own)


def set_budget(event: gr.EventData, choice: list[Any]) -> tuple[Any, Any]:
    """The ratio of the point clicked, and what makes the tabs follow (see `Page.choice`)."""
    point = event_data(event)
    ratio = (point.listed("custom") or [None])[0]
    if not isinstance(ratio, int | float | None):
        raise point.unclear("custom")
    return (gr.skip(), gr.skip()) if ratio is None else (ratio, [*choice[:2], time.time()])
