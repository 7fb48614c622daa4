"""The greedy heuristic of CARE's released code.

The next rank goes to the slot where it removes most of the remaining loss.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence

import torch
from torch import Tensor

from ...layers.spectra import Slot, Spectrum
from ...system.settings import NoOptions
from ..budget import Budget, Spectra, take_known_steps
from ..evidence import Evidence
from .policy import Policy, Targets
from .shares import by_component

LEAST, MOST = 0.5, 2.0  # range of ranks relative to the even share, as in the released code


def greedy(evidence: Evidence, budget: Budget, options: NoOptions) -> Targets:
    """Apply CARE's released heuristic per component; each component keeps the overall share.

    From half the even share on, the next rank r of layer l goes, while the budget permits, to the
    slot with the largest `(s_r^2 / sum_{j >= r} s_j^2) * sqrt((L - l) / ((L + 1) / 2)) / sqrt(r /
    r_least)`: the share of the remaining loss that it removes, larger for early layers and for
    slots with few ranks. Only ratios within a slot are compared, so slots need no common unit.
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
    """Return the ranks of the slots of a component by the score above.

    layers: L, the number of layers of the model.
    """
    offers = {slot: budget.offer(s.cost) for slot, s in pool.items()}
    lowest, highest = (
        {
            slot: max(0, bisect_right(offer.ranks, share * budget.keep * pool[slot].cost.full) - 1)
            for slot, offer in offers.items()
        }
        for share in (LEAST, MOST)
    )
    slots = sorted(pool)
    steps = take_known_steps(
        {s: -scores(pool[s], offers[s].ranks[lowest[s] : highest[s] + 1], layers) for s in slots},
        {s: offers[s].prices[lowest[s] : highest[s] + 1].diff() for s in slots},
        limit - sum(int(offers[s].prices[lowest[s]]) for s in slots),
    )
    return {slot: offers[slot].ranks[lowest[slot] + steps[slot]] for slot in pool}


def scores(s: Spectrum, ranks: Sequence[int], layers: int) -> Tensor:
    """Return the score of each step from a rank to the next, [len(ranks) - 1], float64."""
    residual = torch.cat([(s.values**2).flip(0).cumsum(0).flip(0), s.values.new_zeros(1)])
    ranks_offered = torch.tensor(ranks)
    remaining = residual[ranks_offered // s.grain]
    remaining[ranks_offered >= s.cost.full] = 0.0
    removed = torch.where(remaining[:-1] > 0, 1 - remaining[1:] / remaining[:-1], 0.0)
    travel = math.sqrt((layers - s.slot[0]) / ((layers + 1) / 2))
    return removed * travel / (ranks_offered[:-1].double() / ranks_offered[0]).sqrt()


POLICY = Policy(
    "greedy",
    "The next rank goes where it removes most of the remaining loss, early layers first "
    "(CARE's code).",
    greedy,
)
