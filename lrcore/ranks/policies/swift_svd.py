"""Swift-SVD's allocation (Qi et al., ICML 2026).

Influential layers and slots with large outputs keep more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import add, mul

from ...system.settings import option
from ..budget import Budget
from ..evidence import Evidence
from .policy import Policy, Targets
from .shares import by_component, in_proportion
from .svd_llm_v2 import LEVEL, relative_logs


@dataclass(frozen=True)
class SwiftSvdOptions:
    """The default alpha and floor are those of the published code."""

    alpha: float = option(
        0.6, "weight of the layer's influence against the size of the slot", low=0.0, high=3.0
    )
    floor: float = option(
        0.25, "minimum share of the full rank, relative to the budget's share", low=0.0, high=1.0
    )
    level: float = option(
        LEVEL, "logarithm assigned to the smallest output of a type", low=0.1, high=100.0
    )


def swift_svd(evidence: Evidence, budget: Budget, options: SwiftSvdOptions) -> Targets:
    """Within each type of matrix (or component), set shares by influence and output size.

    Each slot first has the rank `floor * keep * full`. The remainder of the type's budget is shared
    in proportion to `I_l^alpha (log e)^(1 - alpha)`. I is the Block Influence rescaled to [1, 2]
    over the layers; e is the root of the slot's loss at rank 0, `|W X|_F` for whitened matrices.
    The logarithm depends on the unit and the number of tokens, so it is computed as in
    `svd_llm_v2`: level for the smallest e of the type. Each type keeps the requested share.
    """
    influence, targets = rescaled(evidence.influence["block"]), Targets()
    for pool in by_component(evidence.spectra).values():
        sizes = [float(budget.price(s.cost, s.cost.full)) for s in pool.values()]
        prices = [budget.price_per_rank(s.cost) for s in pool.values()]
        logs = relative_logs([s.tail(0) ** 0.5 for s in pool.values()])
        scores = [
            influence[slot[0]] ** options.alpha * (options.level + log) ** (1 - options.alpha)
            for slot, log in zip(pool, logs, strict=True)
        ]
        slots = list(zip(pool.values(), prices, sizes, strict=True))
        floors = [min(1.0, options.floor * s.cost.full * p / size) for s, p, size in slots]
        floors = [budget.keep * share for share in floors]
        remaining = budget.keep - sum(map(mul, floors, sizes)) / sum(sizes)
        weights = [score * p / size for score, (_, p, size) in zip(scores, slots, strict=True)]
        shares = in_proportion(weights, remaining, 1 - max(floors), sizes)
        targets |= dict(zip(pool, map(add, floors, shares), strict=True))
    return targets


def rescaled(influence: Sequence[float]) -> list[float]:
    """Rescale influences [layers] to [1, 2]; all 1 if they are equal."""
    lowest, highest = min(influence), max(influence)
    return [
        1 + (value - lowest) / (highest - lowest) if highest > lowest else 1.0
        for value in influence
    ]


POLICY = Policy(
    "swift_svd",
    "Per type of matrix, influential layers and slots with large outputs keep more (Swift-SVD).",
    swift_svd,
    needs="influence",
    options=SwiftSvdOptions,
)
