"""Spectra whose ranks have another price than their parameters: what they take of time, or of
multiply-adds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from .alternatives import by_part
from .spectra import Cost, Slot, Spectrum

Prices = tuple[Sequence[int], int]  # of every rank below full that may be set, and at full rank


def ranks_below(cost: Cost) -> range:
    """Every rank below full that may be set by hand, ascending."""
    grain = cost.step // cost.entries
    return range(grain, cost.full, grain)


def repriced(
    spectra: Mapping[Slot, Spectrum], prices: Callable[[Spectrum], Prices]
) -> dict[Slot, Spectrum]:
    """The spectra with other prices in the place of parameters. All forms of a part take the same
    at full rank.

    prices(spectrum): of `ranks_below` and at full rank, in whole numbers of any unit. Where they do
    not ascend, the higher rank costs one more than the lower.
    """
    priced = {slot: _with(s, *prices(s)) for slot, s in spectra.items()}
    for forms in by_part(priced).values():
        whole = {form: sum(s.cost.dense for s in own.values()) for form, own in forms.items()}
        for form, own in forms.items():
            first, s = next(iter(own.items()))
            priced[first] = _dearer(s, max(whole.values()) - whole[form])
    return priced


def _with(spectrum: Spectrum, below: Sequence[int], full: int) -> Spectrum:
    cost = spectrum.cost
    priced = Cost(
        full=cost.full,
        per_rank=0,
        dense=max(1, full),
        step=cost.step,
        curve=tuple(_ascending(below)),
        entries=cost.entries,
        latent=cost.latent,
    )
    return replace(spectrum, cost=priced)


def _dearer(spectrum: Spectrum, price: int) -> Spectrum:
    """The spectrum with so much more to pay at every rank."""
    cost = spectrum.cost
    return replace(spectrum, cost=replace(cost, dense=cost.dense + price, fixed=price))


def _ascending(prices: Sequence[int]) -> list[int]:
    """The least strictly ascending whole numbers from 1 that are no smaller than `prices`."""
    result: list[int] = []
    for price in prices:
        result.append(max(price, result[-1] + 1 if result else 1))
    return result
