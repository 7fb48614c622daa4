"""Second moments of head states, `d_h x d_h`, from the four second moments of the calibration.

The state of a head is a linear function of the input of the layer, so `E[q q^T] = W_q S W_q^T`
(with biases) needs no separate tap.
"""

import torch
from torch import Tensor

from ..layers.layer import Attention, heads
from ..layers.linalg import state_gram, symmetric
from ..layers.statistics import Moments


def head_gram(a: Attention, name: str, moments: Moments) -> Tensor:
    """Return E[s s^T] of the states "q", "k" or "v" before rotary, [heads, size, size], float64."""
    projection = getattr(a, name)
    count = a.n_q if name == "q" else a.n_kv
    bias = None if projection.bias is None else heads(projection.bias, count)
    return state_gram(
        heads(projection.weight, count), bias, moments.second("attn_in"), moments.mean("attn_in")
    )


def output_gram(a: Attention, moments: Moments) -> Tensor:
    """Return E[a_i a_i^T] of the output of each head, [n_q, d_h, d_h], float64.

    These are the diagonal blocks of the second moment of the input of the output projection.
    """
    return diagonal_blocks(moments.second("attn_out"), a.n_q)


def diagonal_blocks(second: Tensor, count: int) -> Tensor:
    """Return the diagonal blocks of a second moment, [count * size, count * size] -> [count, size,
    size].
    """
    blocks = second.unflatten(1, (count, -1)).unflatten(0, (count, -1))
    return symmetric(blocks.diagonal(dim1=0, dim2=2).permute(2, 0, 1))


def identity_input(a: Attention) -> Moments:
    """Return the moments of an input that does not depend on the data: E[x x^T] = I, mean zero."""
    weight = a.v.weight
    eye = torch.eye(weight.shape[1], dtype=torch.float64, device=weight.device)
    return Moments({("attn_in", "second"): eye, ("attn_in", "mean"): torch.zeros_like(eye[0])}, 1)


def diagonal_input(moments: Moments) -> Moments:
    """Return the moments of the input of the layer as if its entries were uncorrelated: E[x x^T]
    without its off-diagonal entries, mean zero.
    """
    second = moments.second("attn_in")
    values = {
        ("attn_in", "second"): second.diagonal().diag(),
        ("attn_in", "mean"): torch.zeros_like(second[0]),
    }
    return Moments(values, moments.tokens)


def by_group(per_head: Tensor, a: Attention) -> Tensor:
    """Return the values of query heads by their kv head: [n_q, ...] -> [n_kv, group, ...]."""
    groups: Tensor = per_head.unflatten(0, (a.n_kv, a.group))
    return groups
