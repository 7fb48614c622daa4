"""Probed marginal loss: least predicted increase in loss. Ours; in no paper."""

import math

import torch

from ..budget import Budget, Spectra, take_steps
from ..evidence import Evidence, LossCurve
from ..options import NoOptions
from ..spectra import Slot
from .policy import Policy, Targets


def probed(evidence: Evidence, budget: Budget, options: NoOptions) -> Targets:
    """Probed marginal loss (ours): the ranks whose predicted increases in loss, evidence "probes",
    have the least sum within the budget.

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

    def choose(multiplier: float) -> dict[Slot, int]:
        return {
            slot: int(torch.argmin(curve + multiplier * prices[slot]))
            for slot, curve in curves.items()
        }

    def spent(choice: dict[Slot, int]) -> float:
        return sum(float(prices[slot][i]) for slot, i in choice.items())

    low, high = 1e-15, 1e6
    for _ in range(80):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if spent(choose(middle)) > budget.limit else (low, middle)
    choice = choose(high)
    _spend_rest(choice, curves, prices, budget.limit - spent(choice))
    return {slot: float(prices[slot][i] / prices[slot][-1]) for slot, i in choice.items()}


def _spend_rest(
    choice: dict[Slot, int],
    curves: dict[Slot, torch.Tensor],
    prices: dict[Slot, torch.Tensor],
    left: float,
) -> None:
    """Raise slots by one step, the one that gains most per price first, while any step fits."""

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
)
