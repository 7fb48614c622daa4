"""D-Rank's allocation (Mi et al., 2025): slots whose spectra are flat keep more."""

import math
from collections.abc import Mapping

from ..budget import Budget, Spectra, rank_for
from ..evidence import Evidence
from ..options import NoOptions
from ..spectra import Slot, effective_rank
from .policy import Policy, Targets, by_component
from .softmax import in_proportion


def d_rank(evidence: Evidence, budget: Budget, options: NoOptions) -> Targets:
    """Within each type of matrix (or component) the rank of a slot is proportional to
    `sqrt(R / w)`, up to its full rank: the least `sum R / k` at the price `sum w k`.

    R is the effective rank `exp(-sum p log p)`, `p = s^2 / sum s^2`; w the price of a rank. Every
    type keeps the requested share. A type whose error would not be smaller so than with equal
    shares has equal shares, as in the published code.
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
        better = lost(pool, uneven, budget) < lost(pool, even, budget)
        targets |= uneven if better else even
    return targets


def lost(pool: Spectra, shares: Mapping[Slot, float], budget: Budget) -> float:
    """The sum of the losses of slots in one unit at these shares."""
    return sum(
        s.tail(rank_for(s.cost, shares[slot], budget, nearest=False)) for slot, s in pool.items()
    )


POLICY = Policy(
    "d_rank",
    "Per type of matrix, ranks grow with the root of the spectrum's effective rank (D-Rank).",
    d_rank,
)
