"""One energy threshold everywhere: the classic rule, with the threshold that meets the budget."""

from bisect import bisect_left

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
    # lists: each of the steps below looks one entry of every slot up
    held = {slot: cumulative_energy(s.values).tolist() for slot, s in spectra.items()}
    grains = {slot: s.grain for slot, s in spectra.items()}
    offers = {slot: budget.offer(s.cost) for slot, s in spectra.items()}

    def prices(theta: float) -> dict[Slot, int]:
        paid = {}
        for slot, s in spectra.items():
            enough = (bisect_left(held[slot], theta - 1e-12) + 1) * grains[slot]
            at = bisect_left(offers[slot].ranks, min(enough, s.cost.full))
            paid[slot] = int(offers[slot].prices[at])
        return paid

    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if sum(prices(middle).values()) > budget.limit else (middle, high)
    return {slot: price / offers[slot].dense for slot, price in prices(low).items()}


POLICY = Policy("energy", "Every slot keeps the same share of its energy.", energy)
