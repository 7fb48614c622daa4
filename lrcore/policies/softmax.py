"""MoDeGPT's allocation (eq. 11): layers that change the residual stream least lose most."""

import math

import torch

from ..budget import Budget, Spectra
from ..spectra import Slot

CAP = 0.95  # largest sparsity a layer may get; MoDeGPT keeps a few columns everywhere, since a block at rank 0 breaks the model
RULE_OF_THUMB = 0.8  # largest sparsity at the suggested temperature


def softmax(spectra: Spectra, budget: Budget, temperature: float, influence: list[float]) -> dict[Slot, float]:
    """MoDeGPT eq. 11: layer sparsity `phi = L phi_avg softmax(-s / eps)`, s the Block Influence; clipped and redistributed to the mean.

    temperature eps > 0: small is uneven, large is even. All slots of a layer share its sparsity.
    """
    layers = sorted({layer for layer, _ in spectra})
    sparsity = softmax_sparsity([influence[layer] for layer in layers], 1 - budget.keep, temperature)
    by_layer = dict(zip(layers, sparsity, strict=True))
    return {slot: 1 - by_layer[slot[0]] for slot in spectra}


def softmax_sparsity(influence: list[float], mean: float, temperature: float, cap: float = CAP) -> list[float]:
    """Sparsities in [0, cap] with the given mean (in [0, 1)); entries over the cap are clipped and their excess shared by the others."""
    cap = max(cap, mean)
    weights = torch.softmax(-torch.tensor(influence, dtype=torch.float64) / temperature, 0)
    free = torch.ones(len(influence), dtype=torch.bool)
    phi = torch.zeros(len(influence), dtype=torch.float64)
    for _ in influence:
        left = mean * len(influence) - cap * int((~free).sum())
        share = weights[free]
        # a tiny temperature can underflow every remaining weight to zero: then what is left is shared evenly
        phi[free] = left * (share / share.sum() if float(share.sum()) > 0 else torch.full_like(share, 1 / len(share)))
        phi[~free] = cap
        over = free & (phi > cap + 1e-12)
        if not bool(over.any()):
            break
        free &= ~over
    return phi.clamp(0, cap).tolist()


def suggested_temperature(influence: list[float], mean: float) -> float:
    """The temperature at which the most compressed layer loses RULE_OF_THUMB (or the mean, if larger); by bisection on a log scale."""
    goal = max(RULE_OF_THUMB, mean)
    low, high = 1e-4, 1e3
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if max(softmax_sparsity(influence, mean, middle, cap=1.0)) > goal else (low, middle)
    return high
