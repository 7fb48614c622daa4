"""What a plan may cost: a budget, and the steps in which ranks may grow."""

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

from .alternatives import by_part, first_forms
from .errors import InputError
from .spectra import Cost, Slot, Spectrum

Spectra = Mapping[Slot, Spectrum]


@dataclass(frozen=True, eq=False)
class Offer:
    """The ranks on offer for a slot, ascending, the last one full; prices [ranks], int64.

    places [ranks], int64: where they stand in `cost.ranks()`; None where all of these are on offer.
    """

    ranks: Sequence[int]
    prices: Tensor
    places: np.ndarray | None = None

    @property
    def dense(self) -> int:
        """The price at full rank."""
        return int(self.prices[-1])

    @cached_property
    def as_numbers(self) -> np.ndarray:
        """The prices, [ranks], float64."""
        return self.prices.double().numpy()


@dataclass(frozen=True)
class Prices:
    """What ranks cost in the unit of a kind of budget: cached numbers per token for "kv",
    parameters for "params" and "total".
    """

    kind: str

    def price(self, cost: Cost, rank: int) -> int:
        """What a slot costs at a rank, in the unit of this budget."""
        return cost.kv(rank) if self.kind == "kv" else cost.parameters(rank)

    def counts(self, cost: Cost) -> bool:
        """Whether the rank of a slot changes what this budget counts."""
        return self.kind != "kv" or cost.kv_per_rank > 0

    def cap(self, cost: Cost) -> int:
        """The largest rank below full that costs less than full."""
        return cost.kv_cap if self.kind == "kv" else cost.cap

    def price_per_rank(self, cost: Cost) -> float:
        """What a rank costs, on average over those below full that save something."""
        rank = self.cap(cost) or cost.full
        return self.price(cost, rank) / rank

    def least(self, cost: Cost) -> int:
        """The smallest rank on offer; full where no smaller one saves anything."""
        return cost.step if cost.step <= self.cap(cost) else cost.full

    def dense_of(self, spectra: Spectra) -> int:
        """What the parts of these slots cost at full rank, each counted once."""
        return sum(self.price(s.cost, s.cost.full) for s in first_forms(spectra).values())

    def least_of(self, spectra: Spectra) -> int:
        """What they cost at the least ranks, each in its cheapest form."""
        return sum(
            min(sum(self.price(s.cost, self.least(s.cost)) for s in own.values()) for own in forms)
            for forms in (part.values() for part in by_part(spectra).values())
        )

    def offer(self, cost: Cost) -> Offer:
        """The ranks on offer, and their prices: worked out once for all slots of one cost."""
        return _offer(Prices(self.kind), cost)

    def next_rank(self, cost: Cost, rank: int) -> int | None:
        """The next rank on offer above `rank`, or None at full."""
        if rank >= cost.full:
            return None
        return rank + cost.step if rank + cost.step <= self.cap(cost) else cost.full


@lru_cache(maxsize=256)  # many layers, few kinds of slots
def _offer(prices: Prices, cost: Cost) -> Offer:
    ranks = [*range(cost.step, prices.cap(cost) + 1, cost.step), cost.full]
    known = {rank: place for place, rank in enumerate(cost.ranks())}
    places = None if len(ranks) == len(known) else np.array([known[rank] for rank in ranks])
    return Offer(ranks, torch.tensor([prices.price(cost, rank) for rank in ranks]), places)


@dataclass(frozen=True)
class Budget(Prices):
    """What a plan may cost.

    kind: "params", "total" or "kv". limit: the most that all slots together may cost, in parameters
    or in cached numbers per token. dense: what they cost untouched.
    """

    limit: int
    dense: int

    @property
    def keep(self) -> float:
        """The share of the dense price that may be kept, in [0, 1]."""
        return self.limit / self.dense


def make_budget(
    kind: str,
    ratio: float,
    spectra: Spectra,
    base: int,
    shrinking: Sequence[str] = (),
    experts: Sequence[str] = (),
) -> Budget:
    """The budget that removes `ratio` of what `kind` names.

    base: what the dense model has of it, in the budget's unit: parts that the method leaves as they
    are count too. shrinking: the methods that shrink the KV cache, where this one never does;
    experts: those that compress experts, where this one leaves them as they are. Both are for a
    message that names them.

    Raises InputError where the method does not shrink what this kind of budget counts, or not by
    that ratio.
    """
    prices = Prices(kind)
    counted = {slot: s for slot, s in spectra.items() if prices.counts(s.cost)}
    if not counted:
        remedy = "Choose another budget: params, total, flops or latency."
        if shrinking:
            remedy = f"For budget 'kv' choose one that shrinks it: {', '.join(shrinking)}."
        raise InputError(f"This method leaves the KV cache of this model as it is. {remedy}")
    dense, least = prices.dense_of(counted), prices.least_of(counted)
    limit = dense - math.ceil(ratio * base - 1e-9)
    if limit < least:
        most, remedy = (dense - least) / base, "Lower the ratio."
        if kind != "kv" and all(s.cost.latent for s in spectra.values()):
            remedy = "It changes keys and values only: lower the ratio, or choose budget 'kv'."
        elif experts and kind != "kv":  # experts cache nothing
            remedy = (
                "It leaves the experts as they are: lower the ratio, or choose a method that "
                f"compresses them: {', '.join(experts)}."
            )
        raise InputError(
            f"A ratio of {ratio:g} of '{kind}' is more than this method can remove here; at most "
            f"{most:.3f}. {remedy}"
        )
    return Budget(kind, limit, dense)


def rank_for(cost: Cost, target: float, budget: Budget, nearest: bool) -> int:
    """The largest rank whose price is at most the share `target` of the dense price; with nearest,
    the rank whose price is nearest to it.
    """
    if target >= 1 - 1e-12:
        return cost.full
    # prices are whole numbers; the small addition absorbs the rounding of the target
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
    left: float,
    following: Callable[[Slot], tuple[Any, float] | None],
    take: Callable[[Slot], None],
) -> None:
    """Take steps one by one, always the one of least key among the slots' next steps, while any
    fits into what is left.

    following(slot): the slot's next step as (key, price), None where there is none; take(slot)
    takes it. Ties go in the order of the slots' names. A slot whose step does not fit is skipped
    from then on, so in the end no further step fits.
    """
    queue: list[tuple[Any, Slot, float]] = []

    def offer(slot: Slot) -> None:
        step = following(slot)
        if step is not None:
            heapq.heappush(queue, (step[0], slot, step[1]))

    for slot in slots:
        offer(slot)
    while queue:
        _, slot, price = heapq.heappop(queue)
        if price <= left:
            left -= price
            take(slot)
            offer(slot)


def take_known_steps(
    keys: Mapping[Slot, Tensor], prices: Mapping[Slot, Tensor], left: float
) -> dict[Slot, int]:
    """How many steps every slot takes: `take_steps` where all steps are known beforehand, by
    sorting instead of one by one.

    keys, prices: of the slot's steps in their order, [steps] each. Ties go in the order of `keys`.
    """
    slots = list(keys)
    counts = torch.tensor([len(keys[slot]) for slot in slots])
    owners = torch.repeat_interleave(torch.arange(len(slots)), counts)
    # A step cannot come before those before it: it counts by the largest key up to it.
    order = torch.cat([torch.cummax(keys[slot], 0).values for slot in slots]).argsort(stable=True)
    owner, price = owners[order], torch.cat([prices[slot].double() for slot in slots])[order]
    taken = torch.zeros(len(slots), dtype=torch.int64)
    while len(price) and price.min() <= left:
        paid = price.cumsum(0)
        fitting = int(torch.searchsorted(paid, left, right=True))
        taken += torch.bincount(owner[:fitting], minlength=len(slots))
        if fitting == len(price):
            break
        left -= float(paid[fitting - 1]) if fitting else 0.0
        others = owner[fitting:] != owner[fitting]  # the slot whose step does not fit is skipped
        owner, price = owner[fitting:][others], price[fitting:][others]
    return dict(zip(slots, taken.tolist(), strict=True))
