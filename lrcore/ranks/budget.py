"""Budgets, prices of ranks, and the steps in which ranks grow."""

import heapq
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..layers.spectra import Cost, Slot, Spectrum, by_part, first_forms
from ..system.errors import InputError

Spectra = Mapping[Slot, Spectrum]


@dataclass(frozen=True, eq=False)
class Offer:
    """The ranks on offer for a slot, ascending, the last one full; prices [ranks], int64.

    positions [ranks], int64: indices in `cost.ranks()`; None if all of these ranks are on offer.
    """

    ranks: Sequence[int]
    prices: Tensor
    positions: np.ndarray | None = None

    @property
    def dense(self) -> int:
        """Price at full rank."""
        return int(self.prices[-1])

    @cached_property
    def float_prices(self) -> np.ndarray:
        """The prices, [ranks], float64."""
        return self.prices.double().numpy()


@dataclass(frozen=True)
class Prices:
    """Prices of ranks in the unit of a budget.

    Cached numbers per token for "kv", parameters for "params" and "all_params".
    """

    kind: str

    def price(self, cost: Cost, rank: int) -> int:
        """Return the price of a slot at a rank."""
        return cost.kv(rank) if self.kind == "kv" else cost.parameters(rank)

    def counts(self, cost: Cost) -> bool:
        """Return True if the rank of a slot changes the quantity that the budget counts."""
        return self.kind != "kv" or cost.kv_per_rank > 0

    def cap(self, cost: Cost) -> int:
        """Return the largest rank below full that costs less than full."""
        return cost.kv_cap if self.kind == "kv" else cost.cap

    def price_per_rank(self, cost: Cost) -> float:
        """Return the average price of a rank, over the ranks that save something."""
        rank = self.cap(cost) or cost.full
        return self.price(cost, rank) / rank

    def smallest_rank(self, cost: Cost) -> int:
        """Return the smallest rank on offer; full if no smaller rank saves anything."""
        return cost.step if cost.step <= self.cap(cost) else cost.full

    def dense_price(self, spectra: Spectra) -> int:
        """Return the price at full rank of the parts of these slots, each part once."""
        return sum(self.price(s.cost, s.cost.full) for s in first_forms(spectra).values())

    def smallest_price(self, spectra: Spectra) -> int:
        """Return the price at the smallest ranks, each part in the cheapest form."""
        return sum(
            min(
                sum(self.price(s.cost, self.smallest_rank(s.cost)) for s in form_spectra.values())
                for form_spectra in forms
            )
            for forms in (part.values() for part in by_part(spectra).values())
        )

    def offer(self, cost: Cost) -> Offer:
        """Return the ranks on offer and their prices, computed once for all slots of equal cost."""
        return _offer(Prices(self.kind), cost)

    def next_rank(self, cost: Cost, rank: int) -> int | None:
        """Return the next rank on offer above `rank`, or None at full."""
        if rank >= cost.full:
            return None
        return rank + cost.step if rank + cost.step <= self.cap(cost) else cost.full


@lru_cache(maxsize=256)  # a model has few different costs: most layers have the same sizes
def _offer(prices: Prices, cost: Cost) -> Offer:
    ranks = [*range(cost.step, prices.cap(cost) + 1, cost.step), cost.full]
    position_of_rank = {rank: position for position, rank in enumerate(cost.ranks())}
    positions = (
        None
        if len(ranks) == len(position_of_rank)
        else np.array([position_of_rank[rank] for rank in ranks])
    )
    return Offer(ranks, torch.tensor([prices.price(cost, rank) for rank in ranks]), positions)


@dataclass(frozen=True)
class Budget(Prices):
    """A limit on the price of a plan.

    kind: "params", "all_params" or "kv". limit: the largest total price of all slots, in parameters
    or in cached numbers per token. dense: their price at full rank.
    """

    limit: int
    dense: int

    @property
    def keep(self) -> float:
        """Share of the dense price within the limit, in [0, 1]."""
        return self.limit / self.dense


def make_budget(
    kind: str,
    ratio: float,
    spectra: Spectra,
    base: int,
    shrinking: Sequence[str] = (),
    experts: Sequence[str] = (),
) -> Budget:
    """Return the budget that removes `ratio` of the quantity `kind`.

    base: this quantity of the dense model in the unit of the budget, including parts that the
    method does not change. shrinking: names of methods that shrink the KV cache, for the message if
    this method does not. experts: names of methods that compress experts, if this method does not.

    Raises InputError if the method cannot remove that share of the quantity.
    """
    prices = Prices(kind)
    counted = {slot: s for slot, s in spectra.items() if prices.counts(s.cost)}
    if not counted:
        remedy = "Choose another budget: params, all_params, flops or latency."
        if shrinking:
            remedy = f"For 'kv' and 'both' choose one that shrinks it: {', '.join(shrinking)}."
        raise InputError(f"This method leaves the KV cache of this model as it is. {remedy}")
    dense, smallest = prices.dense_price(counted), prices.smallest_price(counted)
    limit = dense - math.ceil(ratio * base - 1e-9)
    if limit < smallest:
        largest_ratio, remedy = (dense - smallest) / base, "Lower the ratio."
        if kind != "kv" and all(s.cost.latent for s in spectra.values()):
            remedy = "It changes keys and values only: lower the ratio, or choose budget 'kv'."
        elif experts and kind != "kv":  # experts cache nothing
            remedy = (
                "It leaves the experts as they are: lower the ratio, or choose a method that "
                f"compresses them: {', '.join(experts)}."
            )
        raise InputError(
            f"A ratio of {ratio:g} of '{kind}' is more than this method can remove here; at most "
            f"{largest_ratio:.3f}. {remedy}"
        )
    return Budget(kind, limit, dense)


def rank_for(cost: Cost, target: float, budget: Budget, nearest: bool) -> int:
    """Return the largest rank whose price is at most `target` times the dense price.

    With nearest, return the rank whose price is nearest to it. If even the smallest rank costs
    more, return the smallest rank.
    """
    if target >= 1 - 1e-12:
        return cost.full
    # prices are integers; the small addition absorbs the rounding of the target
    aim = target * budget.price(cost, cost.full) + 1e-6
    ranks = range(cost.step, budget.cap(cost) + 1, cost.step)
    below = bisect_right(ranks, aim, key=lambda rank: budget.price(cost, rank))
    rank = ranks[max(below - 1, 0)] if ranks else cost.full
    above = budget.next_rank(cost, rank)
    if nearest and below and above == rank + cost.step:
        low, high = budget.price(cost, rank), budget.price(cost, above)
        return above if 2 * aim >= low + high else rank
    return rank


def take_steps(
    slots: Iterable[Slot],
    remaining: float,
    next_step: Callable[[Slot], tuple[Any, float] | None],
    advance: Callable[[Slot], None],
) -> None:
    """Take steps one by one, each time the step of the smallest key, while any step fits.

    remaining: price of all steps that fit. next_step(slot) returns the slot's next step as (key,
    price), or None; advance(slot) takes it. Ties go in the order of the slots. A slot is skipped
    once a step of it does not fit, so in the end no further step fits.
    """
    queue: list[tuple[Any, Slot, float]] = []

    def offer(slot: Slot) -> None:
        step = next_step(slot)
        if step is not None:
            heapq.heappush(queue, (step[0], slot, step[1]))

    for slot in slots:
        offer(slot)
    while queue:
        _, slot, price = heapq.heappop(queue)
        if price <= remaining:
            remaining -= price
            advance(slot)
            offer(slot)


def take_known_steps(
    keys: Mapping[Slot, Tensor], prices: Mapping[Slot, Tensor], remaining: float
) -> dict[Slot, int]:
    """Return the number of steps of each slot, like `take_steps`, by sorting.

    All steps must be known in advance. keys, prices: of the slot's steps in order, [steps] each.
    Ties go in the order of `keys`.
    """
    slots = list(keys)
    counts = torch.tensor([len(keys[slot]) for slot in slots])
    owners = torch.repeat_interleave(torch.arange(len(slots)), counts)
    # A step cannot precede earlier steps of the slot, so it counts by the largest key so far.
    order = torch.cat([torch.cummax(keys[slot], 0).values for slot in slots]).argsort(stable=True)
    owner, price = owners[order], torch.cat([prices[slot].double() for slot in slots])[order]
    counts_taken = torch.zeros(len(slots), dtype=torch.int64)
    while len(price) and price.min() <= remaining:
        paid = price.cumsum(0)
        fitting = int(torch.searchsorted(paid, remaining, right=True))
        counts_taken += torch.bincount(owner[:fitting], minlength=len(slots))
        if fitting == len(price):
            break
        remaining -= float(paid[fitting - 1]) if fitting else 0.0
        # the slot whose step does not fit is skipped
        is_other_slot = owner[fitting:] != owner[fitting]
        owner, price = owner[fitting:][is_other_slot], price[fitting:][is_other_slot]
    return dict(zip(slots, counts_taken.tolist(), strict=True))
