"""One energy threshold everywhere: the classic rule, with the threshold that meets the budget."""

import torch

from ..budget import Budget, Influence, Spectra
from ..spectra import Slot, cumulative_energy


def energy(
    spectra: Spectra, budget: Budget, temperature: float, influence: Influence
) -> dict[Slot, float]:
    """Every slot keeps the fewest ranks that hold the share theta of its energy; theta by
    bisection, the largest that fits the budget.
    """
    held = {slot: cumulative_energy(s.values) for slot, s in spectra.items()}
    offered = {slot: budget.ranks(s.cost) for slot, s in spectra.items()}

    def prices(theta: float) -> dict[Slot, int]:
        found = {}
        for slot, s in spectra.items():
            enough = (int(torch.searchsorted(held[slot], theta - 1e-12)) + 1) * s.grain
            found[slot] = budget.price(
                s.cost, next(rank for rank in offered[slot] if rank >= min(enough, s.cost.full))
            )
        return found

    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if sum(prices(middle).values()) > budget.limit else (middle, high)
    return {
        slot: price / budget.price(spectra[slot].cost, spectra[slot].cost.full)
        for slot, price in prices(low).items()
    }
