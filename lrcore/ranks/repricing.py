"""Prices of ranks in multiply-adds or measured time, in place of parameters."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..layers.spectra import Cost, Slot, Spectrum, by_part

Prices = tuple[Sequence[int], int]  # of each rank in `ranks_below`, and of the full rank
NANO = 1e9  # prices are integer nanoseconds


def ranks_below(cost: Cost) -> range:
    """Return the ranks below full that can be set by hand, ascending."""
    grain = cost.step // cost.entries
    return range(grain, cost.full, grain)


def repriced(
    spectra: Mapping[Slot, Spectrum], prices: Callable[[Spectrum], Prices]
) -> dict[Slot, Spectrum]:
    """Return the spectra with other prices in place of parameters.

    prices(spectrum) returns the prices of `ranks_below` and of the full rank, as integers in any
    unit. If they do not ascend, a higher rank costs one unit more than the lower rank. The full
    price of a part is made equal in all forms.
    """
    priced = {
        slot: replace(spectrum, cost=with_prices(spectrum.cost, *prices(spectrum)))
        for slot, spectrum in spectra.items()
    }
    for forms in by_part(priced).values():
        dense_prices = {
            form: sum(spectrum.cost.dense for spectrum in form_spectra.values())
            for form, form_spectra in forms.items()
        }
        for form, form_spectra in forms.items():
            first_slot, spectrum = next(iter(form_spectra.items()))
            priced[first_slot] = _dearer(spectrum, max(dense_prices.values()) - dense_prices[form])
    return priced


def with_prices(cost: Cost, below: Sequence[int], full: int) -> Cost:
    """Return the cost with these prices in place of parameters; below, full: see `Prices`."""
    return Cost(
        full=cost.full,
        per_rank=0,
        dense=max(1, full),
        step=cost.step,
        curve=tuple(_ascending(below)),
        entries=cost.entries,
        latent=cost.latent,
    )


def _dearer(spectrum: Spectrum, price: int) -> Spectrum:
    """Return the spectrum with an additional price at each rank."""
    cost = spectrum.cost
    return replace(spectrum, cost=replace(cost, dense=cost.dense + price, fixed=price))


def _ascending(prices: Sequence[int]) -> list[int]:
    """Return the smallest strictly ascending integers from 1 that are not below `prices`."""
    result: list[int] = []
    for price in prices:
        result.append(max(price, result[-1] + 1 if result else 1))
    return result


def multiply_adds(cost: Cost, rank: int, context: int) -> int:
    """Return the multiply-adds of a slot at a rank, for one token with `context` tokens in the
    cache.

    Half the FLOPs of `account.flops_per_token`.
    """
    return cost.products(rank) + context * cost.cached_products(rank)


def priced_in_multiply_adds(spectra: Mapping[Slot, Spectrum], context: int) -> dict[Slot, Spectrum]:
    """Return the spectra with multiply-adds in place of parameters.

    Ranks that save no parameters cost at least the full price, so that no policy is offered them.
    """

    def prices(spectrum: Spectrum) -> Prices:
        cost = spectrum.cost
        full_price = multiply_adds(cost, cost.full, context)
        below = [multiply_adds(cost, rank, context) for rank in ranks_below(cost)]
        saving = [
            price if rank <= cost.cap else max(price, full_price)
            for rank, price in zip(ranks_below(cost), below, strict=True)
        ]
        return saving, full_price

    return repriced(spectra, prices)


@dataclass(frozen=True)
class SlotTimes:
    """Seconds of a decoder layer with a single truncated slot.

    ranks: the measured ranks below full, ascending. seconds [ranks]: ascending. full: seconds of
    the dense layer.
    """

    ranks: tuple[int, ...]
    seconds: tuple[float, ...]
    full: float

    def at(self, rank: int) -> float:
        """Return the seconds of the layer at a rank below full.

        Linear between the measured ranks, constant beyond them.
        """
        right = bisect_left(self.ranks, rank)
        if right in (0, len(self.ranks)):
            return self.seconds[min(right, len(self.ranks) - 1)]
        low, high = self.ranks[right - 1], self.ranks[right]
        share = (rank - low) / (high - low)
        return self.seconds[right - 1] + share * (self.seconds[right] - self.seconds[right - 1])

    def saved(self, rank: int, cost: Cost) -> float:
        """Return the seconds that the layer saves at a rank; negative if it becomes slower."""
        return 0.0 if rank >= cost.full or not self.ranks else self.full - self.at(rank)


@dataclass(frozen=True)
class Latency:
    """Seconds of decoder layers in a forward pass over one window, one sequence at a time.

    tokens: of the window. device: used for the measurement. layers: seconds of each dense decoder
    layer. slots: times with single truncated slots. Embeddings and the output head are excluded.
    """

    tokens: int
    device: str
    layers: tuple[float, ...]
    slots: Mapping[Slot, SlotTimes]

    @property
    def dense(self) -> float:
        """Seconds of all dense decoder layers."""
        return sum(self.layers)

    @property
    def nanoseconds(self) -> int:
        """`dense` in the unit of prices."""
        return round(NANO * self.dense)

    def of(self, ranks: Mapping[Slot, int], spectra: Mapping[Slot, Spectrum]) -> float:
        """Return the seconds of all decoder layers with these ranks; the savings of slots are
        added.
        """
        return self.dense - sum(
            self.slots[slot].saved(rank, spectra[slot].cost) for slot, rank in ranks.items()
        )

    def priced(self, spectra: Mapping[Slot, Spectrum]) -> dict[Slot, Spectrum]:
        """Return the spectra with nanoseconds in place of parameters.

        The price of a rank is the slot's part of the layer's time, minus the time that the rank
        saves. The full price of a part is equal in all forms.
        """
        return repriced(spectra, self._prices)

    def _prices(self, spectrum: Spectrum) -> Prices:
        """Return the prices of a slot; ranks that save no parameters have the full price."""
        cost, times = spectrum.cost, self.slots[spectrum.slot]
        full_seconds = _seconds_of_slot(cost, times)
        ranks = ranks_below(cost)
        saved = [times.saved(rank, cost) if rank <= cost.cap else 0.0 for rank in ranks]
        return [round(NANO * (full_seconds - seconds)) for seconds in saved], round(
            NANO * full_seconds
        )


def _seconds_of_slot(cost: Cost, times: SlotTimes) -> float:
    """Return the slot's part of the layer's time: the saving of the lowest rank, extrapolated to
    zero parameters.
    """
    if not times.ranks:
        return 0.0
    lowest = times.ranks[0]
    return max(0.0, times.saved(lowest, cost)) * cost.dense / (cost.dense - cost.parameters(lowest))


def rising(values: Sequence[float]) -> list[float]:
    """Return the nearest non-decreasing sequence by least squares (pool adjacent violators)."""
    blocks: list[tuple[float, int]] = []  # mean, count
    for value in values:
        block = (float(value), 1)
        while blocks and blocks[-1][0] > block[0]:
            mean, count = blocks.pop()
            total = count + block[1]
            block = ((mean * count + block[0] * block[1]) / total, total)
        blocks.append(block)
    return [mean for mean, count in blocks for _ in range(count)]
