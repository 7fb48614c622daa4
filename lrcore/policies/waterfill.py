"""CARE's allocation: the largest singular values are kept, wherever they are."""

import heapq

import torch

from ..budget import Budget, Spectra, next_rank
from ..spectra import Slot


def waterfill(spectra: Spectra, budget: Budget, temperature: float, influence: list[float]) -> dict[Slot, float]:
    """CARE's water-filling: pool the singular values of one component over all layers and keep the largest that the budget holds.

    Values compare only within a component (scores, attention outputs and MLP outputs have units of their own), so each component
    keeps the overall share. Greedy is optimal here: kept sets are nested and every step of a component costs the same.
    """
    targets: dict[Slot, float] = {}
    for component in {slot[1] for slot in spectra}:
        pool = {slot: s for slot, s in spectra.items() if slot[1] == component}
        dense = sum(budget.price(s.cost, s.cost.full) for s in pool.values())
        limit = dense * budget.keep
        ranks = fill_by_value(pool, limit, budget)
        targets |= {slot: budget.price(s.cost, ranks[slot]) / budget.price(s.cost, s.cost.full) for slot, s in pool.items()}
    return targets


def fill_by_value(pool: Spectra, limit: float, budget: Budget) -> dict[Slot, int]:
    """From one step each, take the step of largest value next, again and again, while it fits. Ties go to the later slot."""
    ranks = {slot: s.cost.step for slot, s in pool.items()}
    left = limit - sum(budget.price(s.cost, s.cost.step) for s in pool.values())
    curves = {slot: torch.cummin(s.values, 0).values.tolist() for slot, s in pool.items()}  # nested: a step waits for those before it
    queue: list[tuple] = []

    def push(slot: Slot) -> None:
        cost = pool[slot].cost
        following = next_rank(cost, ranks[slot])
        if following is not None:
            price = budget.price(cost, following) - budget.price(cost, ranks[slot])
            heapq.heappush(queue, (-curves[slot][ranks[slot] // cost.step], -slot[0], slot, following, price))

    for slot in pool:
        push(slot)
    while queue:
        _, _, slot, following, price = heapq.heappop(queue)
        if price <= left:
            left -= price
            ranks[slot] = following
            push(slot)
    return ranks
