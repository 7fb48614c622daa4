"""Shares of a budget: slots by component, prices by layer, shares in proportion to weights."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from ...layers.spectra import Slot, Spectrum
from ..budget import Budget, Spectra
from ..evidence import Evidence

# Largest sparsity of a layer. MoDeGPT keeps a few columns in each layer, since a block of rank 0
# breaks the model.
CAP = 0.95


def by_component(spectra: Spectra) -> dict[str, dict[Slot, Spectrum]]:
    """Return the slots of each component or matrix, by name."""
    pools: dict[str, dict[Slot, Spectrum]] = {}
    for slot, s in spectra.items():
        pools.setdefault(slot[1], {})[slot] = s
    return pools


def layer_prices(evidence: Evidence, budget: Budget) -> dict[int, float]:
    """Return the dense price of each layer that has a slot, in layer order."""
    prices: dict[int, float] = {}
    for slot, s in sorted(evidence.spectra.items()):
        prices[slot[0]] = prices.get(slot[0], 0.0) + budget.price(s.cost, s.cost.full)
    return prices


def in_proportion(
    weights: Sequence[float] | Tensor | np.ndarray,
    mean: float,
    cap: float = CAP,
    prices: Sequence[float] | None = None,
) -> list[float]:
    """Return shares in [0, cap] in proportion to weights (>= 0), with the given mean in [0, 1).

    They are targets if the mean is `budget.keep`, and sparsities if it is the share removed.
    prices: weights of the mean (None: equal). Entries over the cap are clipped, and their excess is
    shared by the remaining entries, in proportion, until no entry is over the cap; the mean is
    exact to rounding. A cap below the mean counts as the mean.
    """
    cap, count = max(cap, mean), len(weights)
    price = np.ones(count) if prices is None else np.asarray(prices, dtype=np.float64)
    weights = np.asarray(weights, dtype=np.float64)
    free, phi = np.ones(count, dtype=bool), np.zeros(count)
    for _ in range(count):
        remaining = mean * price.sum() - cap * price[~free].sum()
        share = weights[free]
        # a tiny temperature can underflow all weights: the remainder is then shared evenly
        if share.sum() == 0:
            share = np.ones_like(share)
        phi[free] = remaining * share / (share * price[free]).sum()
        phi[~free] = cap
        over = free & (phi > cap + 1e-12)
        if not over.any():
            break
        free &= ~over
    lost: list[float] = phi.clip(0, cap).tolist()
    return lost
