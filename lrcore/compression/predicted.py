"""Predicted perplexity over the whole range of budgets: what a plan at each would give."""

from dataclasses import dataclass

from ..errors import InputError
from ..recipe import Recipe
from .allocate import allocate
from .factorise import Factorisation

RATIOS = tuple(round(0.05 * step, 2) for step in range(1, 19))  # 5 % to 90 %


@dataclass(frozen=True)
class CurvePoint:
    """The predicted perplexity at a ratio; low and high as `lrcore.Planned` has them."""

    ratio: float
    perplexity: float
    low: float | None
    high: float | None


def predicted_curve(factors: Factorisation, recipe: Recipe) -> tuple[CurvePoint, ...]:
    """The recipe's plans at 5 to 90 %, as far as its method, policy and overrides can meet them, by
    ascending ratio; milliseconds. Empty unless the slots were probed.
    """
    if not factors.evidence.has("probes"):
        return ()
    points = []
    for ratio in RATIOS:
        try:
            predicted = allocate(factors, recipe.with_(ratio=ratio)).predicted
        except InputError:  # this budget cannot be met, or was not searched
            continue
        if predicted is not None:
            points.append(CurvePoint(ratio, predicted.perplexity, predicted.low, predicted.high))
    return tuple(points)
