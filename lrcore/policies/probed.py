"""Probed marginal loss: least predicted increase in loss. Ours; in no paper."""

import math

import torch
from torch.nn.utils.rnn import pad_sequence

from ..budget import Budget, Spectra, take_steps
from ..evidence import Evidence, LossCurve
from ..options import NoOptions
from ..spectra import Slot
from .policy import Policy, Targets


def probed(evidence: Evidence, budget: Budget, options: NoOptions) -> Targets:
    """Probed marginal loss (ours): the ranks whose predicted increases in loss, evidence "probes",
    have the least sum within the budget. The increases are divergences from the dense model.

    Raises InputError where the slots were not probed.
    """
    spectra, curves = evidence.spectra, evidence.get("probes").curves
    losses = {slot: curves[slot].at(s.cost.ranks()) for slot, s in spectra.items()}
    return least_sum(losses, spectra, budget)


def least_sum(losses: dict[Slot, torch.Tensor], spectra: Spectra, budget: Budget) -> Targets:
    """Targets of least summed loss within the budget; losses hold each slot's loss at every rank of
    `cost.ranks()`, [ranks] each.

    One multiplier, by bisection: every slot takes the rank of least `loss + multiplier * price`.
    What the budget leaves goes, step by step, to the slot that gains most per price.
    """
    prices, curves = {}, {}
    for slot, s in spectra.items():
        offer = budget.offer(s.cost)
        prices[slot] = offer.prices.double()
        curves[slot] = LossCurve(s.cost.ranks(), losses[slot]).at(offer.ranks)

    # All slots at once, [slots, ranks]; what a slot does not offer is never the least.
    loss = pad_sequence(list(curves.values()), batch_first=True, padding_value=math.inf)
    price = pad_sequence(list(prices.values()), batch_first=True)

    def choose(multiplier: float) -> torch.Tensor:
        return torch.add(loss, price, alpha=multiplier).argmin(1, keepdim=True)

    def spent(choice: torch.Tensor) -> float:
        return float(price.gather(1, choice).sum())

    low, high = 1e-15, 1e6
    for _ in range(80):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if spent(choose(middle)) > budget.limit else (low, middle)
    best = choose(high)
    choice = dict(zip(curves, best.flatten().tolist(), strict=True))
    spend_rest(choice, curves, prices, budget.limit - spent(best))
    return {slot: float(prices[slot][i] / prices[slot][-1]) for slot, i in choice.items()}


def spend_rest(
    choice: dict[Slot, int],
    curves: dict[Slot, torch.Tensor],
    prices: dict[Slot, torch.Tensor],
    left: float,
) -> None:
    """Raise slots by one step, the one that gains most per price first, while any step fits.

    choice: the place of every slot's rank in its curve, the loss at every rank on offer, and in its
    prices, [ranks] each; it is changed. left: what may still be spent.
    """

    def following(slot: Slot) -> tuple[float, float] | None:
        i, curve = choice[slot], curves[slot]
        if i + 1 == len(curve):
            return None
        price = float(prices[slot][i + 1] - prices[slot][i])
        return -float(curve[i] - curve[i + 1]) / price, price

    def take(slot: Slot) -> None:
        choice[slot] += 1

    take_steps(curves, left, following, take)


POLICY = Policy(
    "probed",
    "Least predicted increase in loss, from a few measured probes per slot (ours).",
    probed,
    needs="probes",
    checked=True,
)
