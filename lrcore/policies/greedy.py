"""The greedy heuristic of CARE's released code: the next rank goes where it removes most of the
remaining loss.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence

import torch
from torch import Tensor

from ..budget import Budget, Spectra, take_known_steps
from ..evidence import Evidence
from ..options import NoOptions
from ..spectra import Slot, Spectrum
from .policy import Policy, Targets, by_component

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
    for pool in by_component(spectra).values():
        dense = {slot: budget.offer(s.cost).dense for slot, s in pool.items()}
        ranks = fill_by_residual(pool, sum(dense.values()) * budget.keep, budget, layers)
        targets |= {
            slot: budget.price(s.cost, ranks[slot]) / dense[slot] for slot, s in pool.items()
        }
    return targets


def fill_by_residual(pool: Spectra, limit: float, budget: Budget, layers: int) -> dict[Slot, int]:
    """Ranks of the slots of one component by the score above.

    layers: L, the number of layers of the model.
    """
    offers = {slot: budget.offer(s.cost) for slot, s in pool.items()}
    least, most = (
        {
            slot: max(0, bisect_right(offer.ranks, share * budget.keep * pool[slot].cost.full) - 1)
            for slot, offer in offers.items()
        }
        for share in (LEAST, MOST)
    )
    slots = sorted(pool)
    steps = take_known_steps(
        {s: -scores(pool[s], offers[s].ranks[least[s] : most[s] + 1], layers) for s in slots},
        {s: offers[s].prices[least[s] : most[s] + 1].diff() for s in slots},
        limit - sum(int(offers[s].prices[least[s]]) for s in slots),
    )
    return {slot: offers[slot].ranks[least[slot] + steps[slot]] for slot in pool}


def scores(s: Spectrum, ranks: Sequence[int], layers: int) -> Tensor:
    """The score of each step from one of these ranks to the next. [len(ranks) - 1], float64"""
    residual = torch.cat([(s.values**2).flip(0).cumsum(0).flip(0), s.values.new_zeros(1)])
    offered = torch.tensor(ranks)
    left = residual[offered // s.grain]
    left[offered >= s.cost.full] = 0.0
    removed = torch.where(left[:-1] > 0, 1 - left[1:] / left[:-1], 0.0)
    travel = math.sqrt((layers - s.slot[0]) / ((layers + 1) / 2))
    return removed * travel / (offered[:-1].double() / offered[0]).sqrt()


POLICY = Policy(
    "greedy",
    "The next rank goes where it removes most of the remaining loss, early layers first "
    "(CARE's code).",
    greedy,
)
