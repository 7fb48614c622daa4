"""Probed marginal loss: least predicted increase in loss. Ours; in no paper."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

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


def least_sum(losses: dict[Slot, Tensor], spectra: Spectra, budget: Budget) -> Targets:
    """Targets of least summed loss within the budget; losses hold each slot's loss at every rank of
    `cost.ranks()`, [ranks] each.

    One multiplier, by bisection: every slot takes the rank of least `loss + multiplier * price`,
    and every part the form whose slots have the least sum of that; those of other forms get no
    target. What the budget leaves goes, step by step, to the slot that gains most per price.
    """
    prices, curves = {}, {}
    for slot, s in spectra.items():
        offer = budget.offer(s.cost)
        prices[slot] = offer.as_numbers
        curves[slot] = LossCurve(s.cost.ranks(), losses[slot]).at(offer.ranks).cpu().numpy()

    groups = grouped(curves, prices)
    slots = [slot for group in groups for slot in group.slots]
    rivals = Rivals.of(spectra, slots)

    def taken(choice: list[np.ndarray], multiplier: float) -> np.ndarray:
        if rivals.none:
            return np.ones(len(slots), dtype=bool)
        pairs = list(zip(groups, choice, strict=True))
        return rivals.least(np.concatenate([group.whole(own, multiplier) for group, own in pairs]))

    def spent(choice: list[np.ndarray], multiplier: float) -> float:
        paid = np.concatenate([group.paid(own) for group, own in zip(groups, choice, strict=True)])
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
    places = np.concatenate(least).tolist()
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

    form: np.ndarray
    rows: np.ndarray
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
        return cls(np.array([place[slot] for slot in slots]), np.array(padded), count)

    @property
    def none(self) -> bool:
        """Whether every part has a single form."""
        return self.count == len(self.rows)

    def least(self, whole: np.ndarray) -> np.ndarray:
        """Whether each slot belongs to the form of least sum of its part, the first of equal ones;
        [slots] -> [slots], bool.
        """
        sums = np.bincount(self.form, whole, self.count + 1)
        sums[-1] = np.inf
        chosen = np.zeros(self.count + 1, dtype=bool)
        chosen[self.rows[np.arange(len(self.rows)), sums[self.rows].argmin(1)]] = True
        kept: np.ndarray = chosen[self.form]
        return kept


@dataclass(frozen=True, eq=False)
class Group:
    """Slots with equally many ranks on offer: loss and price at each, [slots, ranks]."""

    slots: tuple[Slot, ...]
    loss: np.ndarray
    price: np.ndarray

    @cached_property
    def _row(self) -> np.ndarray:
        return np.arange(len(self.slots))

    def ends(self, multiplier: float) -> np.ndarray:
        """`least` over all ranks, [slots]."""
        first = np.zeros_like(self._row)
        return self.least(multiplier, first, first + self.loss.shape[1] - 1)

    def least(self, multiplier: float, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """The place of the rank of least `loss + multiplier * price` of every slot, [slots]: from
        first to last, where smaller and larger multipliers have it; the first of equal ones.
        """
        width = int((last - first).max()) + 1
        places = np.minimum(first[:, None] + np.arange(width), last[:, None])
        rows = self._row[:, None]
        whole = self.loss[rows, places] + multiplier * self.price[rows, places]
        least: np.ndarray = places[self._row, whole.argmin(1)]
        return least

    def paid(self, choice: np.ndarray) -> np.ndarray:
        """What the ranks at these places, [slots], cost, [slots]."""
        paid: np.ndarray = self.price[self._row, choice]
        return paid

    def whole(self, choice: np.ndarray, multiplier: float) -> np.ndarray:
        """`loss + multiplier * price` of the ranks at these places, [slots] -> [slots]."""
        whole: np.ndarray = self.loss[self._row, choice] + multiplier * self.paid(choice)
        return whole


def grouped(curves: dict[Slot, np.ndarray], prices: dict[Slot, np.ndarray]) -> list[Group]:
    """The slots by the number of their ranks on offer, which an MLP has hundreds of times more of
    than a head. curves, prices: [ranks] each.
    """
    by_length: dict[int, list[Slot]] = {}
    for slot, curve in curves.items():
        by_length.setdefault(len(curve), []).append(slot)
    return [
        Group(
            tuple(slots),
            np.stack([curves[slot] for slot in slots]),
            np.stack([prices[slot] for slot in slots]),
        )
        for slots in by_length.values()
    ]


def spend_rest(
    choice: dict[Slot, int],
    curves: dict[Slot, np.ndarray],
    prices: dict[Slot, np.ndarray],
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
