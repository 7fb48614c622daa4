"""Probed marginal loss: least predicted increase in loss. Ours; in no paper."""

import math
from dataclasses import dataclass

import torch

from ..alternatives import by_part
from ..budget import Budget, Spectra, take_steps
from ..evidence import Evidence, LossCurve
from ..options import NoOptions
from ..spectra import Slot
from .policy import Policy, Targets

CLOSE = 1e-9  # relative width of the interval of the multiplier that is left


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

    One multiplier, by bisection: every slot takes the rank of least `loss + multiplier * price`,
    and every part the form whose slots have the least sum of that; those of other forms get no
    target. What the budget leaves goes, step by step, to the slot that gains most per price.
    """
    prices, curves = {}, {}
    for slot, s in spectra.items():
        offer = budget.offer(s.cost)
        prices[slot] = offer.prices.double()
        curves[slot] = LossCurve(s.cost.ranks(), losses[slot]).at(offer.ranks)

    groups = grouped(curves, prices)
    slots = [slot for group in groups for slot in group.slots]
    rivals = Rivals.of(spectra, slots)

    def taken(choice: list[torch.Tensor], multiplier: float) -> torch.Tensor:
        if rivals.none:
            return torch.ones(len(slots), dtype=torch.bool)
        pairs = list(zip(groups, choice, strict=True))
        return rivals.least(torch.cat([group.whole(own, multiplier) for group, own in pairs]))

    def spent(choice: list[torch.Tensor], multiplier: float) -> float:
        paid = torch.cat([group.paid(own) for group, own in zip(groups, choice, strict=True)])
        return float(paid.sum() if rivals.none else paid[taken(choice, multiplier)].sum())

    low, high = 1e-15, 1e6
    most, least = ([group.ends(m) for group in groups] for m in (low, high))
    while high > low * (1 + CLOSE):
        middle = math.sqrt(low * high)
        choice = [g.least(middle, *ends) for g, *ends in zip(groups, least, most, strict=True)]
        if spent(choice, middle) > budget.limit:
            low, most = middle, choice
        else:
            high, least = middle, choice
    places = torch.cat([own.flatten() for own in least]).tolist()
    kept = taken(least, high).tolist()
    found = {slot: i for slot, i, own in zip(slots, places, kept, strict=True) if own}
    chosen = {slot: found[slot] for slot in curves if slot in found}  # in the order of the slots
    spend_rest(chosen, curves, prices, budget.limit - spent(least, high))
    return {slot: float(prices[slot][i] / prices[slot][-1]) for slot, i in chosen.items()}


@dataclass(frozen=True, eq=False)
class Rivals:
    """Which slots are forms of one part. form [slots]: the form of every slot; rows [parts, most
    forms]: the forms of every part, in the method's order, `count` where it has fewer.
    """

    form: torch.Tensor
    rows: torch.Tensor
    count: int

    @classmethod
    def of(cls, spectra: Spectra, slots: list[Slot]) -> "Rivals":
        place: dict[Slot, int] = {}
        rows: list[list[int]] = []
        count = 0
        for forms in by_part(spectra).values():
            rows.append([*range(count, count + len(forms))])
            for number, own in enumerate(forms.values(), count):
                place |= dict.fromkeys(own, number)
            count += len(forms)
        most = max(map(len, rows))
        padded = [row + [count] * (most - len(row)) for row in rows]
        form = torch.tensor([place[slot] for slot in slots])
        return cls(form, torch.tensor(padded), count)

    @property
    def none(self) -> bool:
        """Whether every part has a single form."""
        return self.count == len(self.rows)

    def least(self, whole: torch.Tensor) -> torch.Tensor:
        """Whether each slot belongs to the form of least sum of its part, the first of equal ones;
        [slots] -> [slots], bool.
        """
        sums = torch.zeros(self.count + 1, dtype=whole.dtype).index_add(0, self.form, whole)
        sums[-1] = torch.inf
        best = self.rows.gather(1, sums[self.rows].argmin(1, keepdim=True)).flatten()
        return torch.isin(self.form, best)


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

    def paid(self, choice: torch.Tensor) -> torch.Tensor:
        """What the ranks at these places, [slots, 1], cost, [slots]."""
        return self.price.gather(1, choice).flatten()

    def whole(self, choice: torch.Tensor, multiplier: float) -> torch.Tensor:
        """`loss + multiplier * price` of the ranks at these places, [slots, 1] -> [slots]."""
        return self.loss.gather(1, choice).flatten() + multiplier * self.paid(choice)


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

    take_steps(choice, left, following, take)


POLICY = Policy(
    "probed",
    "Least predicted increase in loss, from a few measured probes per slot (ours).",
    probed,
    needs="probes",
    checked=True,
    forms=True,
)
