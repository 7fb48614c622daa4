"""One energy threshold everywhere: the classic rule, with the threshold that meets the budget."""

import torch

from ..budget import Budget
from ..evidence import Evidence
from ..options import NoOptions
from ..spectra import Slot, cumulative_energy
from .policy import Policy, Targets


def energy(evidence: Evidence, budget: Budget, options: NoOptions) -> Targets:
    """Every slot keeps the fewest ranks that hold the share theta of its energy; theta by
    bisection, the largest that fits the budget.
    """
    spectra = evidence.spectra
    held = {slot: cumulative_energy(s.values) for slot, s in spectra.items()}
    offered = {slot: budget.ranks(s.cost) for slot, s in spectra.items()}

    def prices(theta: float) -> dict[Slot, int]:
        paid = {}
        for slot, s in spectra.items():
            enough = (int(torch.searchsorted(held[slot], theta - 1e-12)) + 1) * s.grain
            paid[slot] = budget.price(
                s.cost, next(rank for rank in offered[slot] if rank >= min(enough, s.cost.full))
            )
        return paid

    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if sum(prices(middle).values()) > budget.limit else (middle, high)
    return {
        slot: price / budget.price(spectra[slot].cost, spectra[slot].cost.full)
        for slot, price in prices(low).items()
    }


POLICY = Policy("energy", "Every slot keeps the same share of its energy.", energy)
