"""Least summed loss within a budget, exactly: the multiple-choice knapsack problem.

A multiplier gives a plan near the optimum and a lower bound of all sums (multiplier.py). The
difference rules out most ranks of each slot; a dynamic program over the others finds the optimum.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...layers.spectra import Slot
from ..budget import Spectra
from .multiplier import nearest_plan

# Sums of floating-point losses differ by rounding: what exceeds a bound by less is not ruled out.
ROUNDING = 1e-9
# Partial plans of a slot that the program keeps. Models of 32 layers with ranks in eights need a
# few thousand; beyond the limit those of least excess stay, and the plan is at least as good as
# that of the multiplier.
MAX_STATES = 200_000


def least_sum_exactly(
    losses: dict[Slot, np.ndarray],
    prices: dict[Slot, np.ndarray],
    spectra: Spectra,
    limit: float,
) -> dict[Slot, int]:
    """Return the index of one choice per slot, of least summed loss, whose prices fit the limit.

    losses, prices: of the choices of each slot, [choices] float64 each, by ascending price. The
    cheapest choices of all slots fit the limit. Each part has a single form.
    """
    multiplier, choice = nearest_plan(losses, prices, spectra, limit)
    objectives = {slot: losses[slot] + multiplier * prices[slot] for slot in losses}
    least = sum(float(values.min()) for values in objectives.values())
    gap = sum(float(losses[slot][i]) for slot, i in choice.items()) - (least - multiplier * limit)
    gap += ROUNDING * (abs(least) + multiplier * limit)
    open_slots = []
    for slot, values in objectives.items():
        excess = values - values.min()
        indices = (excess <= gap).nonzero()[0]
        open_slots.append(_OpenSlot(slot, indices, prices[slot][indices], excess[indices]))
    open_slots.sort(key=lambda each: len(each.indices))
    return _program(open_slots, multiplier, limit, gap) or choice


@dataclass(frozen=True, eq=False)
class _OpenSlot:
    """The choices of a slot that are not ruled out.

    indices [n]; prices [n]; excess [n]: of `loss + multiplier * price` over the least of the slot.
    """

    slot: Slot
    indices: np.ndarray
    prices: np.ndarray
    excess: np.ndarray

    @cached_property
    def price_range(self) -> np.ndarray:
        """The least and the largest price, [2]."""
        return np.array([self.prices.min(), self.prices.max()])


def _program(
    slots: list[_OpenSlot], multiplier: float, limit: float, gap: float
) -> dict[Slot, int]:
    """Return the best choice of each slot; empty if no plan is within the gap.

    A state is the summed price and excess of a choice for each of the first slots. A state is
    dropped if the remaining slots cannot fit the limit, if no plan that continues it is within the
    gap, or if another state has neither a higher price nor a higher loss.
    """
    prices, excess = np.zeros(1), np.zeros(1)
    remaining = sum((slot.price_range for slot in slots), np.zeros(2))
    history: list[tuple[np.ndarray, np.ndarray]] = []  # of each slot: previous state, choice
    for slot in slots:
        remaining = remaining - slot.price_range
        prices = (prices[:, None] + slot.prices).ravel()  # [states * choices]
        excess = (excess[:, None] + slot.excess).ravel()
        unspent = (limit - prices - remaining[1]).clip(min=0)  # whatever the other slots take
        is_kept = (prices + remaining[0] <= limit) & (excess + multiplier * unspent <= gap)
        kept = is_kept.nonzero()[0]
        loss = excess - multiplier * prices  # up to a constant
        kept = kept[np.lexsort((loss[kept], prices[kept]))]
        best = np.minimum.accumulate(loss[kept])
        kept = kept[np.append(True, best[1:] < best[:-1])] if len(kept) else kept
        if len(kept) > MAX_STATES:
            kept = kept[np.argpartition(excess[kept], MAX_STATES)[:MAX_STATES]]
        history.append((kept // len(slot.indices), kept % len(slot.indices)))
        prices, excess = prices[kept], excess[kept]
    if not len(prices):
        return {}
    state = int((excess - multiplier * prices).argmin())
    choice: dict[Slot, int] = {}
    for slot, (previous, chosen) in zip(reversed(slots), reversed(history), strict=True):
        choice[slot.slot] = int(slot.indices[chosen[state]])
        state = int(previous[state])
    return choice
