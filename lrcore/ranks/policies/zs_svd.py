"""ZS-SVD's allocation (Zero-Sum SVD, ICML 2026).

Terms with the smallest effect on the loss are dropped, so that the effects sum to zero.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...layers.spectra import Slot, Spectrum
from ...system.settings import option
from ..budget import Budget
from ..evidence import Evidence
from .policy import Policy, Targets


@dataclass(frozen=True)
class ZsSvdOptions:
    """The default is that of the published code, which uses 0.3 to remove 60 %."""

    floor: float = option(
        0.1,
        "minimum share of the largest useful rank that each slot keeps",
        low=0.0,
        high=1.0,
    )


def zs_svd(evidence: Evidence, budget: Budget, options: ZsSvdOptions) -> Targets:
    """Drop terms of all slots one by one, the last term of each slot first, until the budget holds.

    The next term has the smallest effect on the loss: among the terms that raise it if the sum of
    all changes so far is at most 0, else among those that lower it. A change is the first-order
    change of the loss, `-s_i u_i^T G L^-T v_i` for whitened matrices, evidence "slopes". For
    methods whose slots are not sums of such terms, it is the share of the slot's loss, which is
    never negative. Raises InputError if slopes were not measured.
    """
    slopes = evidence.get("slopes")
    changes = {
        slot: changes_of(s, slopes.get(slot)).tolist() for slot, s in evidence.spectra.items()
    }
    prices = {slot: prices_of_terms(s, budget) for slot, s in evidence.spectra.items()}
    fewest_terms = {
        slot: math.ceil(
            max(budget.smallest_rank(s.cost), options.floor * budget.cap(s.cost)) / s.grain
        )
        for slot, s in evidence.spectra.items()
    }
    terms = dropped(changes, prices, fewest_terms, budget.limit)
    return {
        slot: slot_prices[terms[slot]] / slot_prices[-1] for slot, slot_prices in prices.items()
    }


def changes_of(s: Spectrum, slope: Tensor | None) -> Tensor:
    """Return the change of the loss without each term of a slot, [len(values)]."""
    if slope is not None:
        return slope[: len(s.values)]
    total = s.tail(0)
    return s.values**2 / total if total > 0 else torch.zeros_like(s.values)


def prices_of_terms(s: Spectrum, budget: Budget) -> list[int]:
    """Return the price of a slot with its first 0, 1, ... terms, [terms + 1].

    The price is that of the smallest rank on offer with these terms. Terms beyond the largest rank
    that saves something cost no more.
    """
    offer = budget.offer(s.cost)
    ranks = torch.arange(len(s.values) + 1) * s.grain
    positions = torch.searchsorted(torch.tensor(offer.ranks), ranks.clamp_max(s.cost.full))
    prices: list[int] = offer.prices[positions].tolist()
    return prices


def dropped(
    changes: Mapping[Slot, Sequence[float]],
    prices: Mapping[Slot, Sequence[int]],
    fewest: Mapping[Slot, int],
    limit: float,
) -> dict[Slot, int]:
    """Return the number of terms that each slot keeps, at least `fewest`.

    changes [terms], prices [terms + 1] of each slot.
    """
    terms = {slot: len(values) for slot, values in changes.items()}
    heaps: dict[bool, list[tuple[float, Slot]]] = {
        True: [],
        False: [],
    }  # terms that raise the loss, and terms that lower it

    def offer(slot: Slot) -> None:
        if terms[slot] > fewest[slot]:
            change = changes[slot][terms[slot] - 1]
            heapq.heappush(heaps[change >= 0], (abs(change), slot))

    for slot in changes:
        offer(slot)
    spent, change = sum(values[-1] for values in prices.values()), 0.0
    while spent > limit and any(heaps.values()):
        raising = change <= 0 if all(heaps.values()) else bool(heaps[True])
        size, slot = heapq.heappop(heaps[raising])
        change += size if raising else -size
        spent -= prices[slot][terms[slot]] - prices[slot][terms[slot] - 1]
        terms[slot] -= 1
        offer(slot)
    return terms


POLICY = Policy(
    "zs_svd",
    "Terms that change the loss least are dropped, so that the changes sum to zero (ZS-SVD).",
    zs_svd,
    needs="slopes",
    options=ZsSvdOptions,
)
