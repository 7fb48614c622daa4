"""Probed marginal loss: least predicted increase in loss. Ours; in no paper."""

import math
from dataclasses import dataclass

import torch

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

    groups = grouped(curves, prices)

    def spent(choice: list[torch.Tensor]) -> float:
        return sum(group.spent(own) for group, own in zip(groups, choice, strict=True))

    low, high = 1e-15, 1e6
    most, least = ([group.ends(m) for group in groups] for m in (low, high))
    for _ in range(80):
        middle = math.sqrt(low * high)
        choice = [g.least(middle, *ends) for g, *ends in zip(groups, least, most, strict=True)]
        if spent(choice) > budget.limit:
            low, most = middle, choice
        else:
            high, least = middle, choice
    chosen = dict.fromkeys(curves, 0)  # in the order of the slots
    for group, own in zip(groups, least, strict=True):
        chosen |= dict(zip(group.slots, own.flatten().tolist(), strict=True))
    spend_rest(chosen, curves, prices, budget.limit - spent(least))
    return {slot: float(prices[slot][i] / prices[slot][-1]) for slot, i in chosen.items()}


@dataclass(frozen=True, eq=False)
class Group:
    """Slots with equally many ranks on offer: loss and price at each, [slots, ranks]."""

    slots: tuple[Slot, ...]
    loss: torch.Tensor
    price: torch.Tensor

    def ends(self, multiplier: float) -> torch.Tensor:
        """`least` over all ranks, [slots, 1]."""
        first = torch.zeros(len(self.slots), 1, dtype=torch.long)
        return self.least(multiplier, first, first + self.loss.shape[1] - 1)

    def least(self, multiplier: float, first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """The place of the rank of least `loss + multiplier * price` of every slot, [slots, 1]:
        from first to last, where smaller and larger multipliers have it.
        """
        width = int((last - first).max()) + 1
        places = torch.minimum(first + torch.arange(width), last)
        whole = torch.add(
            self.loss.gather(1, places), self.price.gather(1, places), alpha=multiplier
        )
        return places.gather(1, whole.argmin(1, keepdim=True))

    def spent(self, choice: torch.Tensor) -> float:
        """What the ranks at these places, [slots, 1], cost together."""
        return float(self.price.gather(1, choice).sum())


def grouped(curves: dict[Slot, torch.Tensor], prices: dict[Slot, torch.Tensor]) -> list[Group]:
    """The slots by the number of their ranks on offer, which an MLP has hundreds of times more of
    than a head. curves, prices: [ranks] each.
    """
    by_length: dict[int, list[Slot]] = {}
    for slot, curve in curves.items():
        by_length.setdefault(len(curve), []).append(slot)
    return [
        Group(
            tuple(slots),
            torch.stack([curves[slot] for slot in slots]),
            torch.stack([prices[slot] for slot in slots]),
        )
        for slots in by_length.values()
    ]


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
