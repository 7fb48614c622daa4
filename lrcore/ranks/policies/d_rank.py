"""D-Rank's allocation (Mi et al., 2025): slots with flat spectra keep more."""

import math
from collections.abc import Mapping

from ...layers.spectra import Slot, effective_rank
from ...system.settings import NoOptions
from ..budget import Budget, Spectra, rank_for
from ..evidence import Evidence
from .policy import Policy, Targets
from .shares import by_component, in_proportion


def d_rank(evidence: Evidence, budget: Budget, options: NoOptions) -> Targets:
    """Within each type of matrix (or component), set ranks in proportion to `sqrt(R / w)`.

    Ranks are at most full. This minimizes `sum R / k` at the price `sum w k`. R is the effective
    rank `exp(-sum p log p)`, `p = s^2 / sum s^2`; w the price of a rank. Each type keeps the
    requested share. If the error is not smaller than with equal shares, a type has equal shares, as
    in the published code.
    """
    targets: Targets = {}
    for pool in by_component(evidence.spectra).values():
        sizes = [float(budget.price(s.cost, s.cost.full)) for s in pool.values()]
        weights = [
            math.sqrt(effective_rank(s.values**2) * budget.price_per_rank(s.cost)) / size
            for s, size in zip(pool.values(), sizes, strict=True)
        ]
        shares = in_proportion(weights, budget.keep, 1.0, sizes)
        uneven = dict(zip(pool, shares, strict=True))
        even = dict.fromkeys(pool, budget.keep)
        is_better = lost(pool, uneven, budget) < lost(pool, even, budget)
        targets |= uneven if is_better else even
    return targets


def lost(pool: Spectra, shares: Mapping[Slot, float], budget: Budget) -> float:
    """Return the sum of the losses of comparable slots at these shares."""
    return sum(
        s.tail(rank_for(s.cost, shares[slot], budget, nearest=False)) for slot, s in pool.items()
    )


POLICY = Policy(
    "d_rank",
    "Per type of matrix, ranks grow with the root of the spectrum's effective rank (D-Rank).",
    d_rank,
)
