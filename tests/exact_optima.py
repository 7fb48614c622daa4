"""Methods on ill-conditioned layers, compared with the minima of their objectives with 60
digits.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import mpmath
import torch
from exact_objectives import Exact
from exact_references import REFERENCES
from hard_layers import hard_layer
from method_options import UNDAMPED

from lrcore.layers.statistics import COMMON_TAPS, Moments
from lrcore.methods import METHODS

SHARE = 1e-5  # allowed error above the minimum, relative to it
ROUNDING = 1e-11  # rounding error of float64, relative to the total


@cache
def exact_layer(layer: str, kind: str) -> Exact:
    """Return the exact layer, shared by all methods. Activations of the dense model, used for cross
    moments, differ from those seen.
    """
    case = hard_layer(layer, kind)
    seconds = {tap: case.moments.second(tap) for tap in COMMON_TAPS}
    cross = {(tap, "cross"): second + 0.01 * second.flip(0) for tap, second in seconds.items()}
    moments = Moments({**case.moments.values, **cross}, case.moments.tokens)
    return Exact(replace(case, moments=moments))


def above_the_least(
    name: str, options: dict[str, Any], layer: str, kind: str, every_rank: bool = False
) -> list[str]:
    """Return the errors of a method above the minimum, by slot and rank, and non-finite results,
    for a middle rank and the last one below full rank, or for all ranks.
    """
    e, chosen = exact_layer(layer, kind), METHODS[name].choose(UNDAMPED.get(name, {}) | options)
    factors, failures = METHODS[name].factor(e.layer, e.case.moments, chosen), []
    for slot, objective in REFERENCES[name](e, chosen).items():
        factor = factors[slot]
        ranks = [rank for rank in factor.cost.ranks() if rank < factor.cost.full]
        for rank in ranks if every_rank else sorted({ranks[len(ranks) // 2], ranks[-1]}):
            small = factor.truncate(e.layer, rank)
            tensors = [t for p in small.matrices().values() for t in (p.weight, p.bias)]
            if not all(t is None or torch.isfinite(t).all() for t in (*tensors, factor.values)):
                failures.append(f"{slot} at {rank}: not finite")
                continue
            error, best = objective.error(small, factor, rank), objective.best(factor, rank)
            allowed = SHARE * best + ROUNDING * objective.total
            bound = objective.bound and kind == "well_conditioned"
            if error - best > allowed or (bound and best - error > allowed):
                numbers = (mpmath.nstr(number, 8) for number in (error, best, objective.total))
                failures.append(f"{slot} at {rank}: {' '.join(numbers)}")
    return failures
