"""The greedy heuristic of CARE's released code: the next rank goes where it removes most of the
remaining loss.
"""

import math
from bisect import bisect_right

from ..budget import Budget, Spectra, take_steps
from ..evidence import Evidence
from ..options import NoOptions
from ..spectra import Slot, Spectrum
from .policy import Policy, Targets

LEAST, MOST = 0.5, 2.0  # ranks stay between half and twice the even share, as in the released code


def greedy(evidence: Evidence, budget: Budget, options: NoOptions) -> Targets:
    """CARE's released heuristic, per component; every component keeps the overall share.

    From half the even share on, the next rank r of layer l goes, while the budget holds, where
    `(s_r^2 / sum_{j >= r} s_j^2) * sqrt((L - l) / ((L + 1) / 2)) / sqrt(r / r_least)` is largest:
    the share of the remaining loss that it removes, larger for early layers and for slots with few
    ranks. Only ratios within a slot enter, so slots need no common unit.
    """
    spectra, layers = evidence.spectra, len(evidence.influence["block"])
    targets: Targets = {}
    for component in dict.fromkeys(name for _, name in spectra):
        pool = {slot: s for slot, s in spectra.items() if slot[1] == component}
        dense = {slot: budget.price(s.cost, s.cost.full) for slot, s in pool.items()}
        ranks = fill_by_residual(pool, sum(dense.values()) * budget.keep, budget, layers)
        targets |= {
            slot: budget.price(s.cost, ranks[slot]) / dense[slot] for slot, s in pool.items()
        }
    return targets


def fill_by_residual(pool: Spectra, limit: float, budget: Budget, layers: int) -> dict[Slot, int]:
    """Ranks of the slots of one component by the score above.

    layers: L, the number of layers of the model.
    """
    offered = {slot: budget.ranks(s.cost) for slot, s in pool.items()}
    least, most = (
        {
            slot: max(0, bisect_right(ranks, share * budget.keep * pool[slot].cost.full) - 1)
            for slot, ranks in offered.items()
        }
        for share in (LEAST, MOST)
    )
    chosen, left_over = dict(least), {slot: _tails(s, offered[slot]) for slot, s in pool.items()}
    prices = {
        slot: [budget.price(s.cost, rank) for rank in offered[slot]] for slot, s in pool.items()
    }
    left = limit - sum(prices[slot][i] for slot, i in chosen.items())

    def following(slot: Slot) -> tuple[float, int] | None:
        i = chosen[slot]
        if i >= most[slot]:
            return None
        before, after = left_over[slot][i : i + 2]
        travel = math.sqrt((layers - slot[0]) / ((layers + 1) / 2))
        score = (
            (1 - after / before if before > 0 else 0.0)
            * travel
            / math.sqrt(offered[slot][i] / offered[slot][least[slot]])
        )
        return -score, prices[slot][i + 1] - prices[slot][i]

    def take(slot: Slot) -> None:
        chosen[slot] += 1

    take_steps(pool, left, following, take)
    return {slot: offered[slot][i] for slot, i in chosen.items()}


def _tails(s: Spectrum, ranks: list[int]) -> list[float]:
    """The loss left at each of these ranks."""
    residual = [*(s.values**2).flip(0).cumsum(0).flip(0).tolist(), 0.0]
    return [0.0 if rank >= s.cost.full else residual[rank // s.grain] for rank in ranks]


POLICY = Policy(
    "greedy",
    "The next rank goes where it removes most of the remaining loss, early layers first "
    "(CARE's code).",
    greedy,
)
