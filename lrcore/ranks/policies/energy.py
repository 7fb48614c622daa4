"""A common energy threshold for all slots, which meets the budget."""

from bisect import bisect_left

from ...layers.spectra import Slot, cumulative_energy
from ...system.settings import NoOptions
from ..budget import Budget
from ..evidence import Evidence
from .policy import Policy, Targets


def energy(evidence: Evidence, budget: Budget, options: NoOptions) -> Targets:
    """Keep the fewest ranks of each slot that hold the share theta of its energy.

    theta is the largest share that fits the budget, found by bisection.
    """
    spectra = evidence.spectra
    # lists, because each step of the bisection reads a single entry per slot
    energies = {slot: cumulative_energy(s.values).tolist() for slot, s in spectra.items()}
    grains = {slot: s.grain for slot, s in spectra.items()}
    offers = {slot: budget.offer(s.cost) for slot, s in spectra.items()}

    def prices(theta: float) -> dict[Slot, int]:
        result = {}
        for slot, s in spectra.items():
            needed = (bisect_left(energies[slot], theta - 1e-12) + 1) * grains[slot]
            position = bisect_left(offers[slot].ranks, min(needed, s.cost.full))
            result[slot] = int(offers[slot].prices[position])
        return result

    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if sum(prices(middle).values()) > budget.limit else (middle, high)
    return {slot: price / offers[slot].dense for slot, price in prices(low).items()}


POLICY = Policy("energy", "Each slot keeps the same share of its energy.", energy)
