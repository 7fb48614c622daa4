"""ZS-SVD's allocation (Zero-Sum SVD, ICML 2026): what is dropped changes the loss least, and up as
much as down.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..budget import Budget
from ..evidence import Evidence
from ..options import option
from ..spectra import Slot, Spectrum
from .policy import Policy, Targets


@dataclass(frozen=True)
class ZsSvdOptions:
    """The default is that of the published code, which takes 0.3 to remove 60 %."""

    floor: float = option(
        0.1,
        "share of the largest rank that saves something that every slot keeps",
        low=0.0,
        high=1.0,
    )


def zs_svd(evidence: Evidence, budget: Budget, options: ZsSvdOptions) -> Targets:
    """Terms of all slots are dropped one by one, of every slot the last first, until the budget
    holds: the one that changes the loss least, among those that raise it while the sum of all
    changes so far is not above 0, else among those that lower it.

    A change is that to first order of the loss, `-s_i u_i^T G L^-T v_i` for whitened matrices,
    evidence "slopes". Where the slots of a method are no sums of such terms, it is the share of
    the slot's own loss, which is never below 0. Raises InputError where slopes were not measured.
    """
    slopes = evidence.get("slopes")
    changes = {
        slot: changes_of(s, slopes.get(slot)).tolist() for slot, s in evidence.spectra.items()
    }
    prices = {slot: prices_of_terms(s, budget) for slot, s in evidence.spectra.items()}
    least = {
        slot: math.ceil(max(budget.least(s.cost), options.floor * budget.cap(s.cost)) / s.grain)
        for slot, s in evidence.spectra.items()
    }
    kept = dropped(changes, prices, least, budget.limit)
    return {slot: own[kept[slot]] / own[-1] for slot, own in prices.items()}


def changes_of(s: Spectrum, slope: Tensor | None) -> Tensor:
    """What the loss changes by without each term of a slot, [len(values)]."""
    if slope is not None:
        return slope[: len(s.values)]
    total = s.tail(0)
    return s.values**2 / total if total > 0 else torch.zeros_like(s.values)


def prices_of_terms(s: Spectrum, budget: Budget) -> list[int]:
    """What a slot costs with its first 0, 1, ... terms, at the least rank on offer that has them;
    [terms + 1]. Terms beyond the largest rank that saves something cost nothing more.
    """
    offer = budget.offer(s.cost)
    ranks = torch.arange(len(s.values) + 1) * s.grain
    places = torch.searchsorted(torch.tensor(offer.ranks), ranks.clamp_max(s.cost.full))
    prices: list[int] = offer.prices[places].tolist()
    return prices


def dropped(
    changes: Mapping[Slot, Sequence[float]],
    prices: Mapping[Slot, Sequence[int]],
    least: Mapping[Slot, int],
    limit: float,
) -> dict[Slot, int]:
    """How many terms every slot keeps, at least so many as `least` says. changes [terms], prices
    [terms + 1] of every slot.
    """
    kept = {slot: len(own) for slot, own in changes.items()}
    heaps: dict[bool, list[tuple[float, Slot]]] = {True: [], False: []}  # by whether it raises

    def offer(slot: Slot) -> None:
        if kept[slot] > least[slot]:
            change = changes[slot][kept[slot] - 1]
            heapq.heappush(heaps[change >= 0], (abs(change), slot))

    for slot in changes:
        offer(slot)
    spent, change = sum(own[-1] for own in prices.values()), 0.0
    while spent > limit and any(heaps.values()):
        raising = change <= 0 if all(heaps.values()) else bool(heaps[True])
        size, slot = heapq.heappop(heaps[raising])
        change += size if raising else -size
        spent -= prices[slot][kept[slot]] - prices[slot][kept[slot] - 1]
        kept[slot] -= 1
        offer(slot)
    return kept


POLICY = Policy(
    "zs_svd",
    "Terms that change the loss least are dropped, so that the changes sum to zero (ZS-SVD).",
    zs_svd,
    needs="slopes",
    options=ZsSvdOptions,
)
