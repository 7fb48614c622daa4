"""Perplexity against budget: the predicted curve, measured runs, and clicks on points."""

import time
from collections.abc import Sequence
from typing import Any

import gradio as gr

import lrcore
from lrcore.compression.pipeline.choose_plan import CurvePoint
from lrcore.ranks.plan import RankPlan
from lrcore.runs.runs import Run

from ... import words
from ...figures.base import captioned
from ...figures.budget_curve import BudgetCurves, MeasuredPoint, budget_curves
from ...jobs import start_analysis
from ...state.keys import BYTES, UNIFORM, factor_key, predicted_recipe, with_uniform_ranks
from ...state.store import Store
from ...state.sweep_runs import ends_with_recipe
from ...views import markup
from ...widgets.events import EventValues
from ...widgets.form import read_recipe, try_recipe

MOST_RUNS = 100  # newest runs that are drawn
Curve = tuple[CurvePoint, ...]


def draw(store: Store, *values: Any) -> tuple[Any, Any]:
    """Draw the figure and the explanation.

    Without probes, the figure is empty and a button starts the measurements. Without factors, the
    previous figure stays, dimmed.
    """
    recipe = try_recipe(values)
    if recipe is None:
        return gr.skip(), gr.skip()
    points = curve(store, recipe)
    try:
        plan = store.plan(recipe)
    except lrcore.InputError:  # the message is above the bars
        return gr.skip(), gr.skip()
    if plan is None and store.missing_evidence(recipe) is None:
        return gr.skip(), markup.missing(store.waiting_jobs(recipe), words.spectra.NO_FACTORS)
    if plan is None or not points or plan.dense_perplexity is None:
        return "", no_prediction(store, recipe)
    measured = measured_runs(store.runs.all(), recipe, plan.budget)
    figure = BudgetCurves(
        points,
        f"{recipe.method}, {recipe.policy}",
        plan.dense_perplexity,
        uniform_curve(store, recipe),
        other_curves(store, recipe),
        current_point(plan),
        [measured_point(run, evaluation, recipe) for run, evaluation in measured],
        plan.account.dense.megabytes if plan.budget == BYTES else None,
    )
    caption = words.allocation.plan_caption(recipe, plan.budget)
    explanation = words.allocation.BUDGET_CURVE_HELP
    if measured:
        protocol = words.compare_and_runs.protocol(measured[0][1]["protocol"])
        explanation += words.allocation.BUDGET_CURVE_RUNS.format(protocol)
    help_text = markup.folded(words.allocation.HOW_TO_READ, explanation)
    return captioned(budget_curves(figure), caption), help_text


def current_point(plan: RankPlan) -> tuple[float, float] | None:
    """Return ratio and predicted perplexity of the displayed plan; None without a prediction."""
    predicted = plan.predicted
    return None if predicted is None else (plan.account.achieved, predicted.perplexity)


def no_prediction(store: Store, recipe: lrcore.Recipe) -> str:
    """Return the note in place of the curve, with a button that starts missing measurements."""
    missing = store.missing_evidence(predicted_recipe(recipe))
    if missing is None:
        return markup.note(words.allocation.NO_PREDICTION, "hint")
    if missing.is_running:
        return markup.note(words.allocation.CURVE_RUNNING, "hint")
    label = words.allocation.MEASURE_CURVE
    if missing.seconds:
        label += f" ({words.allocation.approximate_time(missing.seconds)})"
    return markup.measure_button(words.allocation.NO_PREDICTION, label)


def measure(store: Store, browser: gr.Request, *values: Any) -> None:
    """Queue the probes of the form's method.

    A new choice in this tab does not drop them.
    """
    name = (browser.session_hash, "budget curve")
    start_analysis(store, predicted_recipe(read_recipe(values)), name)


def measure_and_draw(store: Store, browser: gr.Request, *values: Any) -> tuple[Any, Any]:
    """Queue the probes, and return the values of `draw`."""
    measure(store, browser, *values)
    return draw(store, *values)


def curve(store: Store, recipe: lrcore.Recipe) -> Curve:
    """Return the predicted curve from factors with probes; empty without such factors."""
    probed = predicted_recipe(recipe)
    factors = store.peek_factors(probed)
    if factors is None:
        return ()
    any_ratio = recipe.with_(ratio=lrcore.Recipe().ratio)  # a curve covers all ratios
    key = (factor_key(probed), any_ratio.to_json())
    points: Curve = store.objects.get(
        "curves", key, lambda: lrcore.predicted_curve(factors, any_ratio)
    )
    return points


def other_curves(store: Store, recipe: lrcore.Recipe) -> dict[str, Curve]:
    """Return the curves of the other methods with probes, for the same policy."""
    curves = {
        f"{other.method}, {other.policy}": curve(store, other)
        for other in store.recipes_by_method(recipe)
        if other.method != recipe.method
    }
    return {name: points for name, points in curves.items() if points}


def uniform_curve(store: Store, recipe: lrcore.Recipe) -> dict[str, Curve]:
    """Return the curve of uniform ranks by name; empty if the policy is uniform."""
    name = f"{recipe.method}, {UNIFORM}"
    return {} if recipe.policy == UNIFORM else {name: curve(store, with_uniform_ranks(recipe))}


def measured_runs(
    runs: Sequence[Run], recipe: lrcore.Recipe, budget: str
) -> list[tuple[Run, dict[str, Any]]]:
    """Return the comparable runs of a recipe's model and method, with their evaluations.

    Comparable runs have one step, the same kind of budget, and the protocol of the newest
    evaluation. runs: oldest first.
    """
    comparable = [
        run
        for run in runs
        if (run.recipe.model, run.recipe.method) == (recipe.model, recipe.method)
        and ends_with_recipe(run)
        and run.account is not None
        and run.account.budget == budget
    ]
    evaluated = [
        (run, evaluation)
        for run in comparable
        for evaluation in run.evaluations
        if evaluation["perplexity"] and evaluation["dense_perplexity"]
    ]
    newest = evaluated[-1][1]["protocol"] if evaluated else None
    by_run = {
        run.id: (run, evaluation)
        for run, evaluation in evaluated
        if evaluation["protocol"] == newest
    }
    return list(by_run.values())[-MOST_RUNS:]


def measured_point(run: Run, evaluation: dict[str, Any], recipe: lrcore.Recipe) -> MeasuredPoint:
    """Return the point of a run."""
    perplexity, dense = evaluation["perplexity"], evaluation["dense_perplexity"]
    assert run.account is not None  # see `measured_runs`
    name, is_same_policy = f"{run.recipe.policy}: {run.name}", run.recipe.policy == recipe.policy
    return MeasuredPoint(name, run.account.achieved, perplexity, dense, is_same_policy)


def set_budget(event: gr.EventData, choice: list[Any]) -> tuple[Any, Any]:
    """Return the ratio of the clicked point, and the choice that makes the tabs follow."""
    point = EventValues(event)
    ratio = (point.listed("custom") or [None])[0]
    if not isinstance(ratio, int | float | None):
        raise point.unclear("custom")
    return (gr.skip(), gr.skip()) if ratio is None else (ratio, [*choice[:2], time.time()])
