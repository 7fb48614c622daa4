"""What rotary pairs and neurons are ranked by: products over a pair, and the baselines of A3's
tables.
"""

import torch
from torch import Tensor

from ..layer import MLP, Attention, Projection, heads
from ..statistics import Moments
from .grams import by_group


def pair_products(q: Tensor, k: Tensor, a: Attention) -> Tensor:
    """`q_j k_j` summed over both columns of a rotary pair and the heads of the group.

    [n_q, d_h], [n_kv, d_h] -> [n_kv, d_h / 2].
    """
    pairs: Tensor = (by_group(q, a) * k.unsqueeze(1)).sum(1).unflatten(-1, (2, -1))
    return pairs.sum(1)


def magnitudes(projection: Projection, count: int) -> Tensor:
    """Sum of the magnitudes of the weights, and of the bias, of every entry of a head's state.

    [count, d_h], float64.
    """
    sums = heads(projection.weight.double(), count).abs().sum(-1)  # [heads, d_h]
    return sums if projection.bias is None else sums + heads(projection.bias.double(), count).abs()


def neuron_scores(m: MLP, moments: Moments, kind: str) -> Tensor:
    """Importance of every neuron by a baseline, [d_f], float64. A neuron's rows in gate and up and
    its column in down are one group of weights.

    kind "abs": the sum of their magnitudes. "wanda": `E[z_j^2]^{1/2} sum_i |w_ij|` in down (Sun et
    al. 2024, per neuron). "taylor": the sum over the matrices of `|sum w g|`, g the gradient of the
    loss (LLM-Pruner, Ma et al. 2023: first order, per vector, without biases).
    """
    down = m.down.weight.abs().sum(0, dtype=torch.float64)
    if kind == "wanda":
        return moments.square("mlp_hidden").sqrt() * down
    rows = {name: p for name, p in {"up": m.up, "gate": m.gate}.items() if p is not None}
    if kind == "abs":
        return down + sum(p.weight.abs().sum(1, dtype=torch.float64) for p in rows.values())
    parts = [moments.values[name, "taylor"].abs() for name in ("down", *rows)]
    return sum(parts[1:], parts[0])
