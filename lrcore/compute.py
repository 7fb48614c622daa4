"""What ranks take in multiply-adds: the price of ranks under a budget of FLOPs."""

from collections.abc import Mapping

from .repricing import Prices, ranks_below, repriced
from .spectra import Cost, Slot, Spectrum


def multiply_adds(cost: Cost, rank: int, context: int) -> int:
    """Of a slot at a rank, for one token with `context` tokens in the cache; half as many as FLOPs,
    as `account.flops_per_token` counts them.
    """
    return cost.products(rank) + context * cost.cached_products(rank)


def priced(spectra: Mapping[Slot, Spectrum], context: int) -> dict[Slot, Spectrum]:
    """The spectra with multiply-adds in the place of parameters. A rank whose parameters save
    nothing is not on offer.
    """

    def prices(spectrum: Spectrum) -> Prices:
        cost = spectrum.cost
        whole = multiply_adds(cost, cost.full, context)
        below = [multiply_adds(cost, rank, context) for rank in ranks_below(cost)]
        saving = [
            one if rank <= cost.cap else max(one, whole)
            for rank, one in zip(ranks_below(cost), below, strict=True)
        ]
        return saving, whole

    return repriced(spectra, prices)
