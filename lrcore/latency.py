"""What decoder layers take, measured: the price of ranks under a budget of latency."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .repricing import Prices, ranks_below, repriced
from .spectra import Cost, Slot, Spectrum

NANO = 1e9  # prices are whole nanoseconds


@dataclass(frozen=True)
class SlotTimes:
    """Seconds of a decoder layer in which one slot alone is truncated.

    ranks: ascending, those below full that were measured. seconds [ranks]: ascending. full: of the
    dense layer.
    """

    ranks: tuple[int, ...]
    seconds: tuple[float, ...]
    full: float

    def at(self, rank: int) -> float:
        """Seconds of the layer at a rank below full: linear between those that were measured,
        constant beyond them.
        """
        right = bisect_left(self.ranks, rank)
        if right in (0, len(self.ranks)):
            return self.seconds[min(right, len(self.ranks) - 1)]
        low, high = self.ranks[right - 1], self.ranks[right]
        share = (rank - low) / (high - low)
        return self.seconds[right - 1] + share * (self.seconds[right] - self.seconds[right - 1])

    def saved(self, rank: int, cost: Cost) -> float:
        """Seconds that the layer saves at a rank; below 0 where it becomes slower."""
        return 0.0 if rank >= cost.full or not self.ranks else self.full - self.at(rank)


@dataclass(frozen=True)
class Latency:
    """Seconds of decoder layers in a forward pass over one window, one sequence at a time.

    tokens: of the window. device: what it was measured on. layers: of every dense decoder layer.
    slots: what truncating each alone changes. Embeddings and the output head are left out.
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
        """Seconds of all decoder layers with these ranks: what slots save adds up."""
        return self.dense - sum(
            self.slots[slot].saved(rank, spectra[slot].cost) for slot, rank in ranks.items()
        )

    def priced(self, spectra: Mapping[Slot, Spectrum]) -> dict[Slot, Spectrum]:
        """The spectra with nanoseconds in the place of parameters: what a slot takes of its layer
        at full rank, less what each rank saves. All forms of a part take the same at full rank.
        """
        return repriced(spectra, self._prices)

    def _prices(self, spectrum: Spectrum) -> Prices:
        """Ranks whose parameters save nothing are not on offer."""
        cost, times = spectrum.cost, self.slots[spectrum.slot]
        whole = _own(cost, times)
        ranks = ranks_below(cost)
        saved = [times.saved(rank, cost) if rank <= cost.cap else 0.0 for rank in ranks]
        return [round(NANO * (whole - one)) for one in saved], round(NANO * whole)


def _own(cost: Cost, times: SlotTimes) -> float:
    """Seconds of the layer that are the slot's: what its lowest rank saves, continued to a slot
    without parameters.
    """
    if not times.ranks:
        return 0.0
    lowest = times.ranks[0]
    return max(0.0, times.saved(lowest, cost)) * cost.dense / (cost.dense - cost.parameters(lowest))


def rising(values: Sequence[float]) -> list[float]:
    """The nearest sequence that does not fall, by least squares (pool adjacent violators)."""
    blocks: list[tuple[float, int]] = []  # mean, count
    for value in values:
        block = (float(value), 1)
        while blocks and blocks[-1][0] > block[0]:
            mean, count = blocks.pop()
            both = count + block[1]
            block = ((mean * count + block[0] * block[1]) / both, both)
        blocks.append(block)
    return [mean for mean, count in blocks for _ in range(count)]
