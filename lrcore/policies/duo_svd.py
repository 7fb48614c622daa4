"""Duo-SVD's allocation (the code of CPSVD): a dynamic programme over the measured loss of every
slot.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..budget import Budget
from ..evidence import Evidence
from ..options import NoOptions
from .policy import Policy, Targets
from .probed import spend_rest

STATES = 4000  # parts of the budget that the programme counts in
CHOICES = 24  # ranks of a slot that it chooses from


def duo_svd(evidence: Evidence, budget: Budget, options: NoOptions) -> Targets:
    """The ranks of least summed loss within the budget, exact among CHOICES ranks of every slot and
    for prices in whole parts of the budget. The losses are the predicted increases of evidence
    "probes".

    Unlike one multiplier for all slots (`probed`), it also finds choices inside a curve that is not
    convex. What rounding the prices up leaves goes, step by step, to the slot that gains most per
    price. Raises InputError where the slots were not probed.
    """
    curves = evidence.get("probes").curves
    losses, prices, places = {}, {}, []
    for slot, s in evidence.spectra.items():
        offer = budget.offer(s.cost)
        losses[slot] = curves[slot].at(offer.ranks)
        prices[slot] = offer.prices.double()
        few = min(CHOICES, len(offer.ranks))
        ends = (0, len(offer.ranks) - 1)
        # named: a network that another thread makes changes the default type meanwhile
        places.append(torch.linspace(*ends, few, dtype=torch.float64).round().long())
    left = budget.limit - sum(float(own[0]) for own in prices.values())
    unit = max(left / STATES, 1.0)
    parts = [
        ((own[at] - own[0]) / unit).ceil().long()
        for own, at in zip(prices.values(), places, strict=True)
    ]
    offered = [own[at] for own, at in zip(losses.values(), places, strict=True)]
    found = least_loss(offered, parts, int(left / unit))
    choice = {slot: int(at[i]) for slot, at, i in zip(evidence.spectra, places, found, strict=True)}
    spent = sum(float(prices[slot][i]) for slot, i in choice.items())
    curve_of, price_of = (
        {slot: one.numpy() for slot, one in own.items()} for own in (losses, prices)
    )
    spend_rest(choice, curve_of, price_of, budget.limit - spent)
    return {slot: float(prices[slot][i] / prices[slot][-1]) for slot, i in choice.items()}


def least_loss(losses: Sequence[Tensor], prices: Sequence[Tensor], limit: int) -> list[int]:
    """One place of every slot, of least summed loss, whose prices sum to at most limit.

    losses, prices: of the slots' choices, [choices] each; prices are whole numbers >= 0, the first
    of every slot 0, so that there always is a choice.
    """
    best = torch.zeros(limit + 1, dtype=torch.float64)  # least loss so far at most at this price
    chosen = []
    for loss, price in zip(losses, prices, strict=True):
        tried = torch.full((len(price), limit + 1), torch.inf, dtype=torch.float64)
        for row, own, paid in zip(tried, loss, price.tolist(), strict=True):
            if paid <= limit:
                row[paid:] = best[: limit + 1 - paid] + own
        best, choice = tried.min(0)
        chosen.append(choice)
    places: list[int] = []
    for choice, price in zip(reversed(chosen), reversed(prices), strict=True):
        places.append(int(choice[limit]))
        limit -= int(price[places[-1]])
    return places[::-1]


POLICY = Policy(
    "duo_svd",
    "Least sum of the predicted increases in loss, by a dynamic programme (Duo-SVD).",
    duo_svd,
    needs="probes",
)
