"""MoDeGPT's allocation: layers with little influence on the residual stream lose most.

`softmax` (eq. 11) has a score per layer, `softmax_dual` (B.11, eq. 42-43) separate scores for
attention and MLP.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...layers.spectra import Slot
from ...system.settings import option
from ..budget import Budget
from ..evidence import Evidence
from .policy import Policy, Targets
from .shares import CAP, in_proportion, layer_prices

HIGHEST_SUGGESTED = 1e3  # suggested if no temperature gives the share by the rule
RULE_OF_THUMB = 0.8  # largest sparsity of a layer at the suggested temperature
MLP_SLOTS = ("mlp", "gate", "up", "down")
Half = tuple[int, str]  # (layer, "attention" | "mlp")


@dataclass(frozen=True)
class SoftmaxOptions:
    """temperature eps > 0: small is uneven, large is even; None: the rule of thumb. The recipe's
    field `temperature` sets it; it is not an option.
    """

    cap: float = option(
        CAP,
        "largest share that one layer may lose; the excess is shared by the others",
        low=0.05,
        high=1.0,
    )
    temperature: float | None = None


def softmax(evidence: Evidence, budget: Budget, options: SoftmaxOptions) -> Targets:
    """Set the sparsity of a layer to `phi = L phi_avg softmax(-s / eps)` (MoDeGPT eq. 11).

    s is the Block Influence. All slots of a layer share its sparsity. No layer loses more than the
    share cap; the excess is redistributed.
    """
    scores, prices, layers = layer_scores(evidence, budget)
    temperature = options.temperature or suggest(evidence, budget)
    lost = softmax_sparsity(scores, 1 - budget.keep, temperature, options.cap, prices)
    by_layer = dict(zip(layers, lost, strict=True))
    return {slot: 1 - by_layer[slot[0]] for slot in evidence.spectra}


def layer_scores(evidence: Evidence, budget: Budget) -> tuple[list[float], list[float], list[int]]:
    """Return Block Influence, dense price and index of each layer that has a slot."""
    prices = layer_prices(evidence, budget)
    return [evidence.influence["block"][layer] for layer in prices], [*prices.values()], [*prices]


def suggest(evidence: Evidence, budget: Budget) -> float:
    """Return the temperature by the rule of thumb."""
    scores, prices, _ = layer_scores(evidence, budget)
    return suggested_temperature(scores, 1 - budget.keep, prices)


def softmax_sparsity(
    scores: Sequence[float],
    mean: float,
    temperature: float,
    cap: float = CAP,
    prices: Sequence[float] | None = None,
) -> list[float]:
    """Return sparsities in [0, cap] in proportion to exp(-score / temperature), with the given
    mean.

    See `in_proportion`.
    """
    powers = -np.asarray(scores, dtype=np.float64) / temperature
    return in_proportion(np.exp(powers - powers.max()), mean, cap, prices)


def suggested_temperature(
    scores: Sequence[float], mean: float, prices: Sequence[float] | None = None
) -> float:
    """Return the temperature at which the most compressed layer loses RULE_OF_THUMB.

    Found by bisection on a log scale; the mean replaces RULE_OF_THUMB if it is larger.
    """
    goal = max(RULE_OF_THUMB, mean)
    low, high = 1e-4, HIGHEST_SUGGESTED
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (
            (middle, high)
            if max(softmax_sparsity(scores, mean, middle, 1.0, prices)) > goal
            else (low, middle)
        )
    return high


def softmax_dual(evidence: Evidence, budget: Budget, options: SoftmaxOptions) -> Targets:
    """Set the sparsity of each half of a layer in proportion to `exp(-w_j s_ij / eps)`.

    s is the influence of the half, w_j its weight by parameters. The mean weighted by parameters is
    the requested share (eq. 42). Eq. 43 prints a normalizer that keeps the unweighted sum, which
    contradicts eq. 42 for weights other than 1; here eq. 42 holds. Weights are relative to the
    smaller half: about 1 and 2 in Llama, as in the paper.
    """
    scores, prices, halves = half_scores(evidence, budget)
    temperature = options.temperature or suggest_dual(evidence, budget)
    lost = softmax_sparsity(scores, 1 - budget.keep, temperature, options.cap, prices)
    by_half = dict(zip(halves, lost, strict=True))
    return {slot: 1 - by_half[half_of(slot)] for slot in evidence.spectra}


def suggest_dual(evidence: Evidence, budget: Budget) -> float:
    """Return the temperature by MoDeGPT's rule of thumb, on the weighted scores."""
    scores, prices, _ = half_scores(evidence, budget)
    return suggested_temperature(scores, 1 - budget.keep, prices)


def half_scores(evidence: Evidence, budget: Budget) -> tuple[list[float], list[float], list[Half]]:
    """Return weighted score `w_j s_ij`, dense price and name of each half of a layer that has a
    slot.
    """
    price: dict[Half, float] = {}
    for slot, s in evidence.spectra.items():
        price[half_of(slot)] = price.get(half_of(slot), 0.0) + budget.price(s.cost, s.cost.full)
    total = {
        part: sum(p for half, p in price.items() if half[1] == part)
        for part in {half[1] for half in price}
    }
    scores = [
        evidence.influence[part][layer] * total[part] / min(total.values()) for layer, part in price
    ]
    return scores, list(price.values()), list(price)


def half_of(slot: Slot) -> Half:
    """Return the half of the layer that a component or a matrix belongs to."""
    return slot[0], "mlp" if slot[1] in MLP_SLOTS else "attention"


SOFTMAX = Policy(
    "softmax",
    "Layers with little Block Influence lose most (MoDeGPT eq. 11).",
    softmax,
    needs="influence",
    options=SoftmaxOptions,
    suggest=suggest,
)

SOFTMAX_DUAL = Policy(
    "softmax_dual",
    "As softmax, with separate scores for attention and MLP (MoDeGPT eq. 42-43).",
    softmax_dual,
    needs="influence",
    options=SoftmaxOptions,
    suggest=suggest_dual,
)
