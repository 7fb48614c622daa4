"""ASVD's search (Yuan et al., 2023): one threshold on what each slot alone costs the model."""

from bisect import bisect_left

import torch

from ..budget import Budget
from ..evidence import Evidence
from ..options import NoOptions
from ..spectra import Slot
from .policy import Policy, Targets


def sensitivity(evidence: Evidence, budget: Budget, options: NoOptions) -> Targets:
    """Every slot keeps the smallest rank whose predicted increase in loss, evidence "probes", is at
    most a threshold.

    The threshold is the smallest whose plan meets the budget, by bisection over the increases of
    all slots at all ranks. What the last step of the threshold saves beyond the budget goes back to
    the slots that it changed, in proportion.

    Raises InputError where the slots were not probed.
    """
    curves = evidence.get("probes").curves
    prices, rises = {}, {}
    for slot, s in evidence.spectra.items():
        offer = budget.offer(s.cost)
        prices[slot] = offer.prices.tolist()
        rises[slot] = curves[slot].at(offer.ranks).tolist()
    thresholds = torch.unique(
        torch.tensor([rise for own in rises.values() for rise in own], dtype=torch.float64)
    ).tolist()

    def kept_prices(threshold: float) -> dict[Slot, int]:
        """The price of the smallest rank of every slot within the threshold; the increase in loss
        falls with the rank.
        """
        return {
            slot: prices[slot][bisect_left(own, -threshold, key=lambda rise: -rise)]
            for slot, own in rises.items()
        }

    least = bisect_left(
        range(len(thresholds)),
        True,
        key=lambda i: sum(kept_prices(thresholds[i]).values()) <= budget.limit,
    )
    dense = {slot: own[-1] for slot, own in prices.items()}
    after = kept_prices(thresholds[least])
    before = kept_prices(thresholds[least - 1]) if least else dense
    saved, over = sum(before.values()) - sum(after.values()), sum(before.values()) - budget.limit
    back = 1 - over / saved if saved else 0.0
    return {
        slot: (after[slot] + back * (before[slot] - after[slot])) / dense[slot]
        for slot in evidence.spectra
    }


POLICY = Policy(
    "sensitivity",
    "One threshold on the predicted increase in loss of every slot alone (ASVD's search).",
    sensitivity,
    needs="probes",
)
