"""Measured quality of methods and policies on the model of a recipe."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import lrcore
from lrcore.runs.runs import Run

from .keys import model_key
from .store import Store
from .sweep_runs import ends_with_recipe


class Quality(NamedTuple):
    """A measured plan. change: of the perplexity, relative to the dense model.

    removed: achieved fraction of what the budget counts.
    """

    method: str
    policy: str
    budget: str
    removed: float
    change: float


def measured_qualities(store: Store, recipe: lrcore.Recipe) -> list[Quality]:
    """Return the measured plans of a recipe's model: finished runs, then live figures.

    Measurements on the calibration text are left out. The budget "auto" stands for any budget.
    """
    qualities = [
        Quality(
            run.method, run.policy, run.account.budget, run.account.achieved, change_of(evaluation)
        )
        for run in store.runs.all()
        if run.recipe.model == recipe.model and run.account is not None and ends_with_recipe(run)
        for evaluation in held_out_evaluations(run)[-1:]
    ]
    qualities += [
        Quality(*plan[2:], (figure.perplexity or 0.0) / figure.dense - 1)
        for plan, figure in store.live.measured_plans()
        if (plan.model, plan.data) == (model_key(recipe), recipe.data) and figure.dense
    ]
    budget = recipe.budget
    return [quality for quality in qualities if budget in ("auto", quality.budget)]


def held_out_evaluations(run: Run) -> list[dict[str, Any]]:
    """Return the evaluations of a run on other text than its calibration text, oldest first."""
    return [
        evaluation
        for evaluation in run.evaluations
        if evaluation["perplexity"]
        and evaluation["dense_perplexity"]
        and not evaluation["protocol"].get("on_calibration_text")
    ]


def change_of(evaluation: dict[str, Any]) -> float:
    """Return the relative change of the perplexity in an evaluation."""
    return float(evaluation["perplexity"] / evaluation["dense_perplexity"] - 1)


def nearest(qualities: Sequence[Quality], ratio: float) -> Quality | None:
    """Return the quality whose size is nearest to a ratio; of equal sizes, the best."""

    def distance(quality: Quality) -> tuple[float, float]:
        return round(abs(quality.removed - ratio), 2), quality.change

    return min(qualities, key=distance, default=None)
