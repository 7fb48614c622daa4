"""ASVD's search (Yuan et al., 2023): a common threshold on the predicted loss of each slot."""

from bisect import bisect_left

import torch

from ...layers.spectra import Slot
from ...system.settings import NoOptions
from ..budget import Budget
from ..evidence import Evidence
from .policy import Policy, Targets


def sensitivity(evidence: Evidence, budget: Budget, options: NoOptions) -> Targets:
    """Keep the smallest rank of each slot whose predicted increase in loss is at most a threshold.

    Evidence "probes". The threshold is the smallest whose plan meets the budget, found by bisection
    over the increases of all slots at all ranks. If the last step of the threshold saves more than
    needed, the difference is returned to the slots that changed, in proportion.

    Raises InputError if the slots were not probed.
    """
    curves = evidence.get("probes").curves
    prices, rises = {}, {}
    for slot, s in evidence.spectra.items():
        offer = budget.offer(s.cost)
        prices[slot] = offer.prices.tolist()
        rises[slot] = curves[slot].at(offer.ranks).tolist()
    thresholds = torch.unique(
        torch.tensor(
            [rise for increases in rises.values() for rise in increases], dtype=torch.float64
        )
    ).tolist()

    def kept_prices(threshold: float) -> dict[Slot, int]:
        """Return the price of each slot's smallest rank within the threshold."""
        return {
            slot: prices[slot][bisect_left(increases, -threshold, key=lambda rise: -rise)]
            for slot, increases in rises.items()
        }

    smallest = bisect_left(
        range(len(thresholds)),
        True,
        key=lambda i: sum(kept_prices(thresholds[i]).values()) <= budget.limit,
    )
    dense = {slot: increases[-1] for slot, increases in prices.items()}
    after = kept_prices(thresholds[smallest])
    before = kept_prices(thresholds[smallest - 1]) if smallest else dense
    saved, over = sum(before.values()) - sum(after.values()), sum(before.values()) - budget.limit
    returned = 1 - over / saved if saved else 0.0
    return {
        slot: (after[slot] + returned * (before[slot] - after[slot])) / dense[slot]
        for slot in evidence.spectra
    }


POLICY = Policy(
    "sensitivity",
    "A common threshold on the predicted increase in loss of single slots (ASVD's search).",
    sensitivity,
    needs="probes",
)
