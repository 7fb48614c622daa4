"""MoDeGPT's allocation (eq. 11): layers that change the residual stream least lose most."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..budget import Budget
from ..evidence import Evidence
from ..options import option
from .policy import Policy, Targets

# largest sparsity a layer may get; MoDeGPT keeps a few columns everywhere, since a block at rank 0
# breaks the model
CAP = 0.95
RULE_OF_THUMB = 0.8  # largest sparsity at the suggested temperature


@dataclass(frozen=True)
class SoftmaxOptions:
    """temperature eps > 0: small is uneven, large is even; None: the rule of thumb. It is set by
    the recipe's field `temperature`, not as an option.
    """

    cap: float = option(
        CAP,
        "largest share that one layer may lose; the excess is shared by the others",
        low=0.05,
        high=1.0,
    )
    temperature: float | None = None


def softmax(evidence: Evidence, budget: Budget, options: SoftmaxOptions) -> Targets:
    """MoDeGPT eq. 11: layer sparsity `phi = L phi_avg softmax(-s / eps)`, s the Block Influence;
    clipped and redistributed to the mean.

    All slots of a layer share its sparsity; no layer loses more than the share cap.
    """
    scores, prices, layers = layer_scores(evidence, budget)
    temperature = options.temperature or suggest(evidence, budget)
    lost = softmax_sparsity(scores, 1 - budget.keep, temperature, options.cap, prices)
    by_layer = dict(zip(layers, lost, strict=True))
    return {slot: 1 - by_layer[slot[0]] for slot in evidence.spectra}


def layer_scores(evidence: Evidence, budget: Budget) -> tuple[list[float], list[float], list[int]]:
    """Block Influence, dense price and index of every layer that has a slot."""
    prices = layer_prices(evidence, budget)
    return [evidence.influence["block"][layer] for layer in prices], [*prices.values()], [*prices]


def layer_prices(evidence: Evidence, budget: Budget) -> dict[int, float]:
    """The dense price of every layer that has a slot, in their order."""
    prices: dict[int, float] = {}
    for slot, s in sorted(evidence.spectra.items()):
        prices[slot[0]] = prices.get(slot[0], 0.0) + budget.price(s.cost, s.cost.full)
    return prices


def suggest(evidence: Evidence, budget: Budget) -> float:
    """The temperature by the rule of thumb."""
    scores, prices, _ = layer_scores(evidence, budget)
    return suggested_temperature(scores, 1 - budget.keep, prices)


def softmax_sparsity(
    scores: Sequence[float],
    mean: float,
    temperature: float,
    cap: float = CAP,
    prices: Sequence[float] | None = None,
) -> list[float]:
    """Sparsities in [0, cap] proportional to exp(-score / temperature) with the given mean, see
    `in_proportion`.
    """
    powers = -np.asarray(scores, dtype=np.float64) / temperature
    return in_proportion(np.exp(powers - powers.max()), mean, cap, prices)


def in_proportion(
    weights: Sequence[float] | Tensor | np.ndarray,
    mean: float,
    cap: float = CAP,
    prices: Sequence[float] | None = None,
) -> list[float]:
    """Sparsities in [0, cap] proportional to weights (>= 0) with the given mean (in [0, 1)),
    weighted by prices (None: equally).

    Entries over the cap are clipped and their excess is shared by the others, in proportion, until
    none is over it: the mean is exact to rounding. A cap below the mean, which no sparsities could
    keep, counts as the mean.
    """
    cap, count = max(cap, mean), len(weights)
    price = np.ones(count) if prices is None else np.asarray(prices, dtype=np.float64)
    weights = np.asarray(weights, dtype=np.float64)
    free, phi = np.ones(count, dtype=bool), np.zeros(count)
    for _ in range(count):
        left = mean * price.sum() - cap * price[~free].sum()
        share = weights[free]
        # a tiny temperature can underflow every remaining weight: the rest is then shared evenly
        if share.sum() == 0:
            share = np.ones_like(share)
        phi[free] = left * share / (share * price[free]).sum()
        phi[~free] = cap
        over = free & (phi > cap + 1e-12)
        if not over.any():
            break
        free &= ~over
    lost: list[float] = phi.clip(0, cap).tolist()
    return lost


def suggested_temperature(
    scores: Sequence[float], mean: float, prices: Sequence[float] | None = None
) -> float:
    """The temperature at which the most compressed layer loses RULE_OF_THUMB (or the mean, if
    larger); by bisection on a log scale.
    """
    goal = max(RULE_OF_THUMB, mean)
    low, high = 1e-4, 1e3
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (
            (middle, high)
            if max(softmax_sparsity(scores, mean, middle, 1.0, prices)) > goal
            else (low, middle)
        )
    return high


POLICY = Policy(
    "softmax",
    "Layers that change the residual stream least lose most (MoDeGPT eq. 11).",
    softmax,
    needs="influence",
    options=SoftmaxOptions,
    suggest=suggest,
)
