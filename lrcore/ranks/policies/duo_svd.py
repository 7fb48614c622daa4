"""Duo-SVD's allocation (the code of CPSVD): a dynamic program over measured losses of slots."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...system.settings import NoOptions
from ..budget import Budget
from ..evidence import Evidence
from .multiplier import spend_rest
from .policy import Policy, Targets

STATES = 4000  # units of the budget in the program
CHOICES = 24  # candidate ranks of a slot


def duo_svd(evidence: Evidence, budget: Budget, options: NoOptions) -> Targets:
    """Minimize the summed loss within the budget by a dynamic program.

    The result is exact among CHOICES ranks of each slot and for prices in integer units of the
    budget. The losses are the predicted increases of evidence "probes". Unlike a single multiplier
    for all slots (`probed`), the program also finds choices inside a curve that is not convex. The
    remainder from rounding prices up goes, step by step, to the slot that gains most per price.

    Raises InputError if the slots were not probed.
    """
    curves = evidence.get("probes").curves
    losses, prices, positions = {}, {}, []
    for slot, s in evidence.spectra.items():
        offer = budget.offer(s.cost)
        losses[slot] = curves[slot].at(offer.ranks)
        prices[slot] = offer.prices.double()
        count = min(CHOICES, len(offer.ranks))
        ends = (0, len(offer.ranks) - 1)
        # explicit dtype: a network created in another thread may change the default
        positions.append(torch.linspace(*ends, count, dtype=torch.float64).round().long())
    remaining = budget.limit - sum(float(values[0]) for values in prices.values())
    unit = max(remaining / STATES, 1.0)
    unit_prices = [
        ((values[indices] - values[0]) / unit).ceil().long()
        for values, indices in zip(prices.values(), positions, strict=True)
    ]
    candidate_losses = [
        values[indices] for values, indices in zip(losses.values(), positions, strict=True)
    ]
    selected = least_loss(candidate_losses, unit_prices, int(remaining / unit))
    choice = {
        slot: int(indices[i])
        for slot, indices, i in zip(evidence.spectra, positions, selected, strict=True)
    }
    spent = sum(float(prices[slot][i]) for slot, i in choice.items())
    curve_of, price_of = (
        {slot: tensor.numpy() for slot, tensor in values.items()} for values in (losses, prices)
    )
    spend_rest(choice, curve_of, price_of, budget.limit - spent)
    return {slot: float(prices[slot][i] / prices[slot][-1]) for slot, i in choice.items()}


def least_loss(losses: Sequence[Tensor], prices: Sequence[Tensor], limit: int) -> list[int]:
    """Return one choice per slot, of least summed loss, whose prices sum to at most limit.

    losses, prices: of the choices of each slot, [choices] each; prices are integers >= 0, and the
    first price of each slot is 0, so a solution exists.
    """
    best = torch.zeros(limit + 1, dtype=torch.float64)  # least loss so far, by highest total price
    chosen = []
    for loss, price in zip(losses, prices, strict=True):
        candidates = torch.full((len(price), limit + 1), torch.inf, dtype=torch.float64)
        for row, slot_loss, spent in zip(candidates, loss, price.tolist(), strict=True):
            if spent <= limit:
                row[spent:] = best[: limit + 1 - spent] + slot_loss
        best, choice = candidates.min(0)
        chosen.append(choice)
    choices: list[int] = []
    for choice, price in zip(reversed(chosen), reversed(prices), strict=True):
        choices.append(int(choice[limit]))
        limit -= int(price[choices[-1]])
    return choices[::-1]


POLICY = Policy(
    "duo_svd",
    "Least sum of the predicted increases in loss, by a dynamic program (Duo-SVD).",
    duo_svd,
    needs="probes",
)
