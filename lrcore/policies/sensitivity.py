"""ASVD's search (Yuan et al., 2023): one threshold on what each slot alone costs the model."""

from bisect import bisect_left

import torch

from ..budget import Budget
from ..evidence import Evidence
from ..options import NoOptions
from ..spectra import Slot
from .policy import Policy, Targets


def sensitivity(evidence: Evidence, budget: Budget, options: NoOptions) -> Targets:
    """Every slot keeps the smallest rank at which the model's loss, with this slot alone truncated,
    rises by no more than a threshold.

    The candidates are all (slot, rank), sorted by their increase in loss, evidence "probes":
    measured at the probed ranks, read off the slot's bent curve between and beyond them. The
    threshold is the smallest whose plan the budget holds, by bisection; what its last step saved
    too much goes back to the slots that took it. Raises InputError where the slots were not probed.
    """
    curves = evidence.get("probes").curves
    prices, rises = {}, {}
    for slot, s in evidence.spectra.items():
        offered = budget.ranks(s.cost)
        prices[slot] = [budget.price(s.cost, rank) for rank in offered]
        rises[slot] = curves[slot].at(offered).tolist()
    thresholds = torch.unique(
        torch.tensor([rise for own in rises.values() for rise in own], dtype=torch.float64)
    ).tolist()

    def chosen(threshold: float) -> dict[Slot, int]:
        """The price of the smallest rank of every slot that rises no more; rises fall with the
        rank.
        """
        return {
            slot: prices[slot][bisect_left(own, -threshold, key=lambda rise: -rise)]
            for slot, own in rises.items()
        }

    found = bisect_left(
        range(len(thresholds)),
        True,
        key=lambda i: sum(chosen(thresholds[i]).values()) <= budget.limit,
    )
    least, before = (
        chosen(thresholds[found]),
        chosen(thresholds[found - 1]) if found else {slot: own[-1] for slot, own in prices.items()},
    )
    saved, over = sum(before.values()) - sum(least.values()), sum(before.values()) - budget.limit
    back = 1 - over / saved if saved else 0.0
    return {
        slot: (least[slot] + back * (before[slot] - least[slot])) / prices[slot][-1]
        for slot in evidence.spectra
    }


POLICY = Policy(
    "sensitivity",
    "One threshold on the measured rise of the loss by each slot alone (ASVD's search).",
    sensitivity,
    needs="probes",
)
