"""Least summed loss within a budget, by one Lagrange multiplier for all slots."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from ...layers.spectra import Slot, by_part
from ..budget import Budget, Spectra, take_steps
from .policy import Targets

LOWEST, HIGHEST = 1e-15, 1e6  # multipliers
CLOSE = 1e-9  # relative width of the interval of the multiplier at the end of the bisection
FEW = 512  # ranks of a slot for a first guess of the multiplier
ROUGH, ROUGH_STEP = 1e-3, 1.02  # width of the interval of a guess, and the first step beyond it

Choice = list[np.ndarray]  # the index of each slot's rank on offer, group by group


def least_sum(losses: dict[Slot, Tensor], spectra: Spectra, budget: Budget) -> Targets:
    """Return the targets of least summed loss within the budget.

    losses: the loss of each slot at each rank of `cost.ranks()`, [ranks].

    The multiplier is found by bisection. Each slot takes the rank of least
    `loss + multiplier * price`, and each part takes the form with the least sum of these; slots of
    other forms get no target. The remainder of the budget goes, step by step, to the slot that
    gains most per price.
    """
    prices, curves = {}, {}
    for slot, s in spectra.items():
        offer, curve = budget.offer(s.cost), losses[slot].cpu().numpy()
        prices[slot] = offer.float_prices
        curves[slot] = curve if offer.positions is None else curve[offer.positions]
    _, chosen = nearest_plan(curves, prices, spectra, budget.limit)
    return {slot: float(prices[slot][i] / prices[slot][-1]) for slot, i in chosen.items()}


def nearest_plan(
    curves: dict[Slot, np.ndarray],
    prices: dict[Slot, np.ndarray],
    spectra: Spectra,
    limit: float,
) -> tuple[float, dict[Slot, int]]:
    """Return the multiplier and the index of each slot's rank, see `least_sum`.

    curves, prices: loss and price of each rank on offer, [ranks] float64.
    """
    groups = grouped(curves, prices)
    slots = [slot for group in groups for slot in group.slots]
    search = Search(groups, FormChoice.of(spectra, slots), limit)
    multiplier, choice = search.fitting()
    indices = np.concatenate(choice).tolist()
    is_taken = search.is_taken(choice, multiplier).tolist()
    index_of = {slot: i for slot, i, taken in zip(slots, indices, is_taken, strict=True) if taken}
    chosen = {slot: index_of[slot] for slot in curves if slot in index_of}  # order of the slots
    spend_rest(chosen, curves, prices, limit - search.spent(choice, multiplier))
    return multiplier, chosen


@dataclass(frozen=True, eq=False)
class FormChoice:
    """The forms of each part.

    form [slots]: the form of each slot. forms_of_part [parts, largest number of forms]: in the
    order of the method, padded with `count`, the number of all forms.
    """

    form: np.ndarray
    forms_of_part: np.ndarray
    count: int

    @classmethod
    def of(cls, spectra: Spectra, slots: list[Slot]) -> "FormChoice":
        form_of_slot: dict[Slot, int] = {}
        rows: list[list[int]] = []
        count = 0
        for forms in by_part(spectra).values():
            rows.append([*range(count, count + len(forms))])
            for number, form_slots in enumerate(forms.values(), count):
                form_of_slot |= dict.fromkeys(form_slots, number)
            count += len(forms)
        width = max(map(len, rows))
        padded = [row + [count] * (width - len(row)) for row in rows]
        return cls(np.array([form_of_slot[slot] for slot in slots]), np.array(padded), count)

    @property
    def is_fixed(self) -> bool:
        """True if each part has a single form."""
        return self.count == len(self.forms_of_part)

    def is_taken(self, values: np.ndarray) -> np.ndarray:
        """Mark the slots of the form with the least sum of values [slots] in each part, [slots].

        The first form wins a tie.
        """
        sums = np.bincount(self.form, values, self.count + 1)
        sums[-1] = np.inf
        chosen = np.zeros(self.count + 1, dtype=bool)
        best = sums[self.forms_of_part].argmin(1)
        chosen[self.forms_of_part[np.arange(len(self.forms_of_part)), best]] = True
        mask: np.ndarray = chosen[self.form]
        return mask


@dataclass(frozen=True, eq=False)
class Group:
    """Slots with equally many ranks on offer: loss and price of each rank, [slots, ranks]."""

    slots: tuple[Slot, ...]
    loss: np.ndarray
    price: np.ndarray

    @cached_property
    def _row(self) -> np.ndarray:
        return np.arange(len(self.slots))

    def thinned(self) -> "Group":
        """Return the group with about FEW evenly spaced ranks, including full; itself if small."""
        stride = self.loss.shape[1] // FEW
        if stride < 2:
            return self
        start = (self.loss.shape[1] - 1) % stride
        return Group(self.slots, self.loss[:, start::stride], self.price[:, start::stride])

    def best(self, multiplier: float) -> np.ndarray:
        """Return the index of the rank of least `loss + multiplier * price`, [slots]."""
        indices: np.ndarray = (self.loss + multiplier * self.price).argmin(1)
        return indices

    def best_between(self, multiplier: float, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Return `best`, given the indices [slots] of smaller and larger multipliers.

        The first rank wins a tie.
        """
        width = int((last - first).max()) + 1
        candidates = np.minimum(first[:, None] + np.arange(width), last[:, None])
        rows = self._row[:, None]
        objective = self.loss[rows, candidates] + multiplier * self.price[rows, candidates]
        indices: np.ndarray = candidates[self._row, objective.argmin(1)]
        return indices

    def paid(self, choice: np.ndarray) -> np.ndarray:
        """Return the price of the ranks with these indices, [slots] -> [slots]."""
        prices: np.ndarray = self.price[self._row, choice]
        return prices

    def objective(self, choice: np.ndarray, multiplier: float) -> np.ndarray:
        """Return `loss + multiplier * price` of the ranks with these indices, [slots]."""
        values: np.ndarray = self.loss[self._row, choice] + multiplier * self.paid(choice)
        return values


@dataclass(frozen=True, eq=False)
class Search:
    """Search for the smallest multiplier whose ranks fit the budget, `limit` in its unit."""

    groups: Sequence[Group]
    forms: FormChoice
    limit: float

    def fitting(self) -> tuple[float, Choice]:
        """Return this multiplier, to CLOSE, and its ranks; HIGHEST if no multiplier fits."""
        thinned = [group.thinned() for group in self.groups]
        if thinned == self.groups:
            ends = (self.best(LOWEST), self.best(HIGHEST))
            return self._between(LOWEST, HIGHEST, *ends, CLOSE)
        # with many ranks, a multiplier far from the solution would have to look at all of them
        rough = Search(thinned, self.forms, self.limit)
        ends = (rough.best(LOWEST), rough.best(HIGHEST))
        guess = rough._between(LOWEST, HIGHEST, *ends, ROUGH)[0]
        low, low_choice = self._away(guess, 1 / ROUGH_STEP)
        high, high_choice = self._away(guess, ROUGH_STEP)
        return self._between(low, high, low_choice, high_choice, CLOSE)

    def _away(self, guess: float, step: float) -> tuple[float, Choice]:
        """Return a multiplier beyond the guess, and its ranks, by increasing steps.

        It spends too much (step < 1) or fits (step > 1), or is LOWEST or HIGHEST.
        """
        while True:
            guess = min(max(guess * step, LOWEST), HIGHEST)
            choice = self.best(guess)
            fits = self.spent(choice, guess) <= self.limit
            if fits == (step > 1) or guess in (LOWEST, HIGHEST):
                return guess, choice
            step *= step

    def _between(
        self, low: float, high: float, low_choice: Choice, high_choice: Choice, close: float
    ) -> tuple[float, Choice]:
        """Bisect between a multiplier that spends too much (low) and one that fits (high)."""
        while high > low * (1 + close):
            middle = math.sqrt(low * high)
            ends = zip(self.groups, high_choice, low_choice, strict=True)
            choice = [group.best_between(middle, first, last) for group, first, last in ends]
            if self.spent(choice, middle) > self.limit:
                low, low_choice = middle, choice
            else:
                high, high_choice = middle, choice
        return high, high_choice

    def best(self, multiplier: float) -> Choice:
        return [group.best(multiplier) for group in self.groups]

    def is_taken(self, choice: Choice, multiplier: float) -> np.ndarray:
        """Mark the slots of the forms that the parts take, [slots], bool."""
        if self.forms.is_fixed:
            return np.ones(sum(map(len, choice)), dtype=bool)
        pairs = zip(self.groups, choice, strict=True)
        objectives = [group.objective(indices, multiplier) for group, indices in pairs]
        return self.forms.is_taken(np.concatenate(objectives))

    def spent(self, choice: Choice, multiplier: float) -> float:
        """Return the price of the chosen ranks, of the forms that are taken."""
        pairs = zip(self.groups, choice, strict=True)
        paid = np.concatenate([group.paid(indices) for group, indices in pairs])
        if self.forms.is_fixed:
            return float(paid.sum())
        return float(paid[self.is_taken(choice, multiplier)].sum())


def grouped(curves: dict[Slot, np.ndarray], prices: dict[Slot, np.ndarray]) -> list[Group]:
    """Group the slots by their number of ranks on offer. curves, prices: [ranks] each.

    An MLP has hundreds of times more ranks than a head.
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
    remaining: float,
) -> None:
    """Raise slots by one step, the one that gains most per price first, while any step fits.

    choice: the index of each slot's rank, changed in place. curves, prices: loss and price of each
    rank on offer, [ranks]. remaining: what may still be spent.
    """

    def next_step(slot: Slot) -> tuple[float, float] | None:
        i, curve = choice[slot], curves[slot]
        if i + 1 == len(curve):
            return None
        price = float(prices[slot][i + 1] - prices[slot][i])
        return -float(curve[i] - curve[i + 1]) / price, price

    def advance(slot: Slot) -> None:
        choice[slot] += 1

    take_steps(choice, remaining, next_step, advance)
