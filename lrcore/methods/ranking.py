"""Importance scores of columns, heads and neurons: products of moments, and the baselines of the
papers' tables.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ..layers.layer import ACROSS, Attention, Layer, Projection, heads
from ..layers.statistics import TAPS, Moments
from .grams import by_group


def column_products(q: Tensor, k: Tensor, a: Attention) -> Tensor:
    """Return `q_j k_j` summed over each group: [n_q, d_h], [n_kv, d_h] -> [n_kv, d_h]."""
    return (by_group(q, a) * k.unsqueeze(1)).sum(1)


def magnitudes(projection: Projection, count: int) -> Tensor:
    """Return the sum of the magnitudes of the weights, and of the bias, for each entry of a head
    state, [count, d_h], float64.
    """
    sums = heads(projection.weight.double(), count).abs().sum(-1)  # [heads, d_h]
    return sums if projection.bias is None else sums + heads(projection.bias.double(), count).abs()


def neuron_scores(layer: Layer, moments: Moments, kind: str) -> Tensor:
    """Return the importance of each neuron, [d_f], float64.

    It is the sum over the rows of the neuron in gate and up and its column in down, see
    `vector_scores`.
    """
    return _summed(vector_scores(layer, moments, kind), ("gate", "up", "down"))


def group_scores(layer: Layer, moments: Moments, kind: str) -> Tensor:
    """Return the importance of each group of heads, [n_kv], float64.

    It is the sum over the rows of the queries, keys and values of the group and over the columns
    that read its outputs, see `vector_scores`.
    """
    scores, groups = vector_scores(layer, moments, kind), layer.attention.n_kv
    by_matrix = {
        name: score.reshape(groups, -1).sum(1)  # [heads * size] -> [n_kv]
        for name, score in scores.items()
        if name in "qkvo"
    }
    return _summed(by_matrix, "qkvo")


def value_scores(layer: Layer, moments: Moments, kind: str) -> Tensor:
    """Return the importance of each column of a value head, [n_kv, v_size], float64.

    It is the sum over the row of the column in v and the columns of the output projection that read
    it, see `vector_scores`.
    """
    a, scores = layer.attention, vector_scores(layer, moments, kind)
    reading = by_group(scores["o"].unflatten(0, (a.n_q, -1)), a).sum(1)  # [n_kv, v_size]
    return reading + heads(scores["v"], a.n_kv) if "v" in scores else reading


def _summed(scores: Mapping[str, Tensor], names: Iterable[str]) -> Tensor:
    terms = [scores[name] for name in names if name in scores]
    return sum(terms[1:], terms[0])


def vector_scores(layer: Layer, moments: Moments, kind: str) -> dict[str, Tensor]:
    """Return the importance of each row of q, k, v, gate and up, and of each column of o and down,
    float64, by matrix name.

    kind "abs": the sum of the magnitudes. "wanda": `E[x_j^2]^{1/2} sum_i |w_ij|`, of o and down
    only (Sun et al. 2024, per column). "taylor": `|sum w g|`, g the gradient of the loss;
    "param_first", "param_second" and "param_mix": the sums over entries of `|w g|`, of `w^2 g^2`
    and of both terms (LLM-Pruner, Ma et al. 2023, by vectors and by entries, see
    lrcore/compression/calibration/gradients.py). Biases are excluded, as are the matrices of
    multi-head latent attention whose rows or columns are latents.
    """
    named = {name: p for name, p in layer.matrices().items() if name in ACROSS}
    if kind == "wanda":
        return {
            name: moments.square(TAPS[name]).sqrt() * _magnitudes(named[name], 0)
            for name in ("o", "down")
            if name in named
        }
    if kind == "abs":
        return {name: _magnitudes(p, ACROSS[name]) for name, p in named.items()}
    return {name: moments.values[name, kind].abs() for name in named}


def _magnitudes(projection: Projection, dim: int) -> Tensor:
    return projection.weight.abs().sum(dim, dtype=torch.float64)
