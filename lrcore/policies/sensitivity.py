"""ASVD's search (Yuan et al., 2023): one threshold on what each slot alone costs the model."""

from bisect import bisect_left

import torch

from ..budget import Budget, Influence, Spectra
from ..errors import InputError
from ..spectra import Slot


def sensitivity(
    spectra: Spectra, budget: Budget, temperature: float, influence: Influence
) -> dict[Slot, float]:
    """Every slot keeps the smallest rank at which the model's loss, with this slot alone truncated,
    rises by no more than a threshold.

    The candidates are all (slot, rank), sorted by their rise `Spectrum.nats`: measured at the
    probed ranks, read off the slot's bent curve between and beyond them. The threshold is the
    smallest whose plan the budget holds, by bisection; what its last step saved too much goes back
    to the slots that took it. Raises InputError where a slot was not probed.
    """
    if any(s.nats is None for s in spectra.values()):
        raise InputError(
            "Policy 'sensitivity' needs probed slots: call lrcore.probe on the factorisation "
            "first (some short evaluations)."
        )
    prices, rises = {}, {}
    for slot, s in spectra.items():
        offered, place = budget.ranks(s.cost), {rank: i for i, rank in enumerate(s.cost.ranks())}
        prices[slot] = [budget.price(s.cost, rank) for rank in offered]
        rises[slot] = s.nats[[place[rank] for rank in offered]].tolist()
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
        for slot in spectra
    }
