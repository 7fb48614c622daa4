"""Probed marginal loss: least predicted increase in loss. Ours; in no paper."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from ..alternatives import by_part
from ..budget import Budget, Spectra, take_steps
from ..evidence import Evidence
from ..options import NoOptions
from ..spectra import Slot
from .policy import Policy, Targets

LOWEST, HIGHEST = 1e-15, 1e6  # multipliers
CLOSE = 1e-9  # relative width of the interval of the multiplier that is left
FEW = 512  # ranks of a slot by which the multiplier is guessed
ROUGH, ROUGH_STEP = 1e-3, 1.02  # width of the interval of a guess, and the first step beyond it

Choice = list[np.ndarray]  # the place of every slot's rank, group by group


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
        offer, own = budget.offer(s.cost), losses[slot].cpu().numpy()
        prices[slot] = offer.as_numbers
        curves[slot] = own if offer.places is None else own[offer.places]

    groups = grouped(curves, prices)
    slots = [slot for group in groups for slot in group.slots]
    search = Search(groups, Rivals.of(spectra, slots), budget.limit)
    high, least = search.least()
    places = np.concatenate(least).tolist()
    kept = search.taken(least, high).tolist()
    found = {slot: i for slot, i, own in zip(slots, places, kept, strict=True) if own}
    chosen = {slot: found[slot] for slot in curves if slot in found}  # in the order of the slots
    spend_rest(chosen, curves, prices, budget.limit - search.spent(least, high))
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

    def some(self) -> "Group":
        """Itself, or where there are many ranks, some FEW of them, evenly spaced, full included."""
        stride = self.loss.shape[1] // FEW
        if stride < 2:
            return self
        start = (self.loss.shape[1] - 1) % stride
        return Group(self.slots, self.loss[:, start::stride], self.price[:, start::stride])

    def ends(self, multiplier: float) -> np.ndarray:
        """`least` over all ranks, [slots]."""
        least: np.ndarray = (self.loss + multiplier * self.price).argmin(1)
        return least

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


@dataclass(frozen=True, eq=False)
class Search:
    """For the least multiplier whose ranks fit the budget, `limit` in its unit."""

    groups: Sequence[Group]
    rivals: Rivals
    limit: float

    def least(self) -> tuple[float, Choice]:
        """That multiplier, to CLOSE, and the places of its ranks; where no multiplier fits, the
        highest.
        """
        few = [group.some() for group in self.groups]
        if few == self.groups:
            ends = (self.ends(LOWEST), self.ends(HIGHEST))
            return self._between(LOWEST, HIGHEST, *ends, CLOSE)
        # of many ranks, the whole range would be looked through for every multiplier far off
        rough = Search(few, self.rivals, self.limit)
        ends = (rough.ends(LOWEST), rough.ends(HIGHEST))
        guess = rough._between(LOWEST, HIGHEST, *ends, ROUGH)[0]
        low, most = self._away(guess, 1 / ROUGH_STEP)
        high, least = self._away(guess, ROUGH_STEP)
        return self._between(low, high, most, least, CLOSE)

    def _away(self, guess: float, step: float) -> tuple[float, Choice]:
        """A multiplier beyond the guess that spends too much (step < 1) or fits (step > 1), and the
        places of its ranks: by ever larger steps, up to LOWEST or HIGHEST.
        """
        while True:
            guess = min(max(guess * step, LOWEST), HIGHEST)
            choice = self.ends(guess)
            fits = self.spent(choice, guess) <= self.limit
            if fits == (step > 1) or guess in (LOWEST, HIGHEST):
                return guess, choice
            step *= step

    def _between(
        self, low: float, high: float, most: Choice, least: Choice, close: float
    ) -> tuple[float, Choice]:
        """By bisection. most, least: the places at low, which spends too much, and at high."""
        while high > low * (1 + close):
            middle = math.sqrt(low * high)
            ends = zip(self.groups, least, most, strict=True)
            choice = [group.least(middle, *between) for group, *between in ends]
            if self.spent(choice, middle) > self.limit:
                low, most = middle, choice
            else:
                high, least = middle, choice
        return high, least

    def ends(self, multiplier: float) -> Choice:
        return [group.ends(multiplier) for group in self.groups]

    def taken(self, choice: Choice, multiplier: float) -> np.ndarray:
        """Whether each slot belongs to the form that its part takes, [slots], bool."""
        pairs = list(zip(self.groups, choice, strict=True))
        if self.rivals.none:
            return np.ones(sum(map(len, choice)), dtype=bool)
        wholes = [group.whole(own, multiplier) for group, own in pairs]
        return self.rivals.least(np.concatenate(wholes))

    def spent(self, choice: Choice, multiplier: float) -> float:
        """What the ranks at these places cost, of the forms that are taken."""
        pairs = zip(self.groups, choice, strict=True)
        paid = np.concatenate([group.paid(own) for group, own in pairs])
        return float(paid.sum() if self.rivals.none else paid[self.taken(choice, multiplier)].sum())


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
