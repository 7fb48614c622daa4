"""Swift-SVD's allocation (Qi et al., ICML 2026): influential layers, and slots with large outputs,
keep more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import add, mul

from ..budget import Budget
from ..evidence import Evidence
from ..options import option
from .policy import Policy, Targets, by_component
from .softmax import in_proportion
from .svd_llm_v2 import LEVEL, relative_logs


@dataclass(frozen=True)
class SwiftSvdOptions:
    """The default alpha and floor are those of the published code."""

    alpha: float = option(
        0.6, "weight of the layer's influence against the size of the slot", low=0.0, high=3.0
    )
    floor: float = option(
        0.25, "share of the full rank, times what is kept, that every slot has", low=0.0, high=1.0
    )
    level: float = option(
        LEVEL, "logarithm assigned to the smallest output of a type", low=0.1, high=100.0
    )


def swift_svd(evidence: Evidence, budget: Budget, options: SwiftSvdOptions) -> Targets:
    """Within each type of matrix (or component) every slot has the rank `floor * keep * full`, and
    the rest of the type's budget is shared in proportion to `I_l^alpha (log e)^(1 - alpha)`.

    I is the Block Influence rescaled to [1, 2] over the layers; e the root of all that the slot can
    lose, `|W X|_F` for whitened matrices. Its logarithm depends on the unit and the number of
    tokens, so it is taken as in `svd_llm_v2`: level for the smallest e of the type. Every type
    keeps the requested share.
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
        every = list(zip(pool.values(), prices, sizes, strict=True))
        least = [min(1.0, options.floor * s.cost.full * p / size) for s, p, size in every]
        least = [budget.keep * share for share in least]
        left = budget.keep - sum(map(mul, least, sizes)) / sum(sizes)
        weights = [score * p / size for score, (_, p, size) in zip(scores, every, strict=True)]
        rest = in_proportion(weights, left, 1 - max(least), sizes)
        targets |= dict(zip(pool, map(add, least, rest), strict=True))
    return targets


def rescaled(influence: Sequence[float]) -> list[float]:
    """Influences [layers] from 1 for the least to 2 for the most; all 1 where they are equal."""
    least, most = min(influence), max(influence)
    return [1 + (one - least) / (most - least) if most > least else 1.0 for one in influence]


POLICY = Policy(
    "swift_svd",
    "Per type of matrix, influential layers and slots with large outputs keep more (Swift-SVD).",
    swift_svd,
    needs="influence",
    options=SwiftSvdOptions,
)
