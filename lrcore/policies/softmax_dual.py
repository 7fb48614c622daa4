"""MoDeGPT's refined allocation (B.11, eq. 42-43): separate scores for attention and MLP."""

from ..budget import Budget
from ..evidence import Evidence
from ..spectra import Slot
from .policy import Policy, Targets
from .softmax import SoftmaxOptions, softmax_sparsity, suggested_temperature

MLP_SLOTS = ("mlp", "gate", "up", "down")
Half = tuple[int, str]  # (layer, "attention" | "mlp")


def softmax_dual(evidence: Evidence, budget: Budget, options: SoftmaxOptions) -> Targets:
    """Sparsity of each half of a layer proportional to `exp(-w_j s_ij / eps)`, s the influence of
    that half, w_j its weight by parameters.

    The mean weighted by parameters is the requested one (eq. 42). Eq. 43 prints a normaliser that
    keeps the plain sum, which contradicts eq. 42 for weights other than 1; here eq. 42 holds.
    Weights are relative to the smaller half: about 1 and 2 in Llama, as in the paper.
    """
    scores, prices, halves = half_scores(evidence, budget)
    temperature = options.temperature or suggest(evidence, budget)
    lost = softmax_sparsity(scores, 1 - budget.keep, temperature, options.cap, prices)
    by_half = dict(zip(halves, lost, strict=True))
    return {slot: 1 - by_half[half_of(slot)] for slot in evidence.spectra}


def suggest(evidence: Evidence, budget: Budget) -> float:
    """The temperature by MoDeGPT's rule of thumb, on the weighted scores."""
    scores, prices, _ = half_scores(evidence, budget)
    return suggested_temperature(scores, 1 - budget.keep, prices)


def half_scores(evidence: Evidence, budget: Budget) -> tuple[list[float], list[float], list[Half]]:
    """Weighted score `w_j s_ij`, dense price and name of every half of a layer that has a slot."""
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
    """The half of the layer that a component or a matrix belongs to."""
    return slot[0], "mlp" if slot[1] in MLP_SLOTS else "attention"


POLICY = Policy(
    "softmax_dual",
    "As softmax, with separate scores for attention and MLP (MoDeGPT eq. 42-43).",
    softmax_dual,
    needs="influence",
    options=SoftmaxOptions,
    suggest=suggest,
)
