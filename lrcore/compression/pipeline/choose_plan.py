"""The plan of a recipe, checked against uniform ranks, and predicted perplexity by ratio."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ...models.layers import clone
from ...models.load import LoadedModel
from ...ranks.evidence import AgainstUniform
from ...ranks.plan import RankPlan
from ...ranks.policies import find_policy
from ...recipes.recipe import Recipe
from ...system.cache import keep_value, read_as
from ...system.errors import InputError
from ..evidence.divergence import DensePredictions
from ..evidence.kind import cache_file
from ..evidence.plan_loss import measure_plan
from ..evidence.probe_windows import select_windows
from ..solve.allocate import allocate
from ..solve.factorize import Factorization

FORMAT = 2  # of the files on disk; increase it when the meaning of the contents changes
RATIOS = tuple(round(0.05 * step, 2) for step in range(1, 19))  # 5 % to 90 %


def choose_plan(model: LoadedModel, factors: Factorization, recipe: Recipe) -> RankPlan:
    """Return the plan of a recipe, or the uniform plan if the policy's ranks are worse.

    This applies to policies with `Policy.checked`, whose ranks follow from predictions. They are
    worse if their divergence from the dense model exceeds that of uniform ranks by more than two
    standard errors.

    Both plans are truncated without a refit, and measured on windows that neither the moments nor
    the probes have seen, if the text has enough. At most two evaluations, cached on disk; none if
    the ranks are equal or if uniform ranks cannot save as much. `RankPlan.against_uniform` has the
    result. Raises InputError as `allocate` does.
    """
    plan = allocate(factors, recipe)
    if not find_policy(recipe.policy).checked:
        return plan
    try:
        uniform = allocate(factors, recipe.with_(policy="uniform", policy_options={}))
    except InputError:  # uniform ranks use the first form of each part, which saves too little
        return plan
    if plan.key == uniform.key:
        return plan
    comparison = against_uniform(model, factors, plan, uniform)
    return replace(uniform if comparison.hurts else plan, against_uniform=comparison)


def against_uniform(
    model: LoadedModel, factors: Factorization, plan: RankPlan, uniform: RankPlan
) -> AgainstUniform:
    """Return the divergences of a plan and of the uniform plan from the dense model."""
    windows = select_windows(factors.calibration)
    tokens = windows.checking
    plans = (plan, uniform)
    keys = [each.key[0] for each in plans], *[each.key[1:] for each in plans if each.bits]
    path = cache_file("probes", factors, "against uniform", FORMAT, *keys, tokens.tolist())
    if (pair := read_as(path, lambda values: _to_pair(values, len(tokens)))) is None:
        values = _divergences(model, factors, tokens, plans)
        keep_value(path, values)
        pair = _to_pair(values, len(tokens))
    measured, reference = pair
    error = float("inf")
    if len(measured) > 1:
        error = float((measured - reference).std()) / len(measured) ** 0.5
    is_unseen = windows.is_checking_unseen
    return AgainstUniform(float(measured.mean()), float(reference.mean()), error, is_unseen)


def _to_pair(values: Sequence[Sequence[float]], windows: int) -> torch.Tensor:
    """Return the divergences of two plans by window [2, n]; other shapes raise ValueError."""
    pair = torch.tensor(values, dtype=torch.float64)
    if pair.shape != (2, windows):
        raise ValueError(pair.shape)
    return pair


@torch.inference_mode()
def _divergences(
    model: LoadedModel, factors: Factorization, tokens: torch.Tensor, plans: Sequence[RankPlan]
) -> list[list[float]]:
    """Return the divergences of plans from the dense model on tokens [n, t], by window."""
    dense = DensePredictions(clone(model.network), tokens)
    return [measure_plan(model, factors, plan, dense.compared)[0].tolist() for plan in plans]


@dataclass(frozen=True)
class CurvePoint:
    """The predicted perplexity at a ratio; low and high as in `PlanSummary`."""

    ratio: float
    perplexity: float
    low: float | None
    high: float | None


def predicted_curve(factors: Factorization, recipe: Recipe) -> tuple[CurvePoint, ...]:
    """Return the predicted perplexities of the recipe's plans at 5 to 90 %, by ascending ratio.

    Ratios that the method, policy and overrides cannot meet are left out, and ratios without a
    trustworthy prediction. Takes milliseconds. Empty unless the slots were probed.
    """
    if not factors.evidence.has("probes"):
        return ()
    points = []
    for ratio in RATIOS:
        try:
            predicted = allocate(factors, recipe.with_(ratio=ratio)).predicted
        except InputError:  # the budget cannot be met, or the evidence was not measured
            continue
        if predicted is not None:
            points.append(CurvePoint(ratio, predicted.perplexity, predicted.low, predicted.high))
    return tuple(points)
