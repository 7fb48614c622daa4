"""One expert merged into another: M-SMoE (Li et al., ICLR 2024), by usage, neurons matched.

The other is that of most similar outputs, as in HC-SMoE (Chen et al. 2024).
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear, normalize

from ...experts import neurons
from ...layer import MLP


def outputs(mlp: MLP, x: Tensor) -> Tensor:
    """What an expert makes of inputs x [n, d]: [n, d]."""
    return linear(neurons(mlp, x), mlp.down.weight, mlp.down.bias)


def nearest(mlps: Sequence[MLP], kept: Sequence[int], number: int, x: Tensor) -> int:
    """The expert among those kept whose mean output on x [n, d] is nearest to that of another."""
    own = outputs(mlps[number], x).mean(0)
    others = [other for other in kept if other != number]
    return min(others, key=lambda other: float((outputs(mlps[other], x).mean(0) - own).norm()))


def merged(one: MLP, other: MLP, share: float) -> dict[str, tuple[Tensor, Tensor | None]]:
    """The mean of two experts, by projection its weight [out, in] and bias [out] or None.

    share: of the first, whose neurons are put into the order of those of the other that they are
    most like.
    """
    order = matched(_neuron_rows(one), _neuron_rows(other))
    means: dict[str, tuple[Tensor, Tensor | None]] = {}
    for name, p in other.matrices().items():
        mine = one.matrices()[name]
        weight = mine.weight[:, order] if name == "down" else mine.weight[order]
        bias = mine.bias
        if bias is not None and name != "down":
            bias = bias[order]
        both = None if bias is None or p.bias is None else torch.lerp(p.bias, bias, share)
        means[name] = torch.lerp(p.weight, weight, share), both
    return means


def _neuron_rows(mlp: MLP) -> Tensor:
    """All weights of every neuron, of length one: [d_f, 2 d or 3 d]."""
    own = mlp.matrices()
    rows = [own[name].weight for name in ("gate", "up") if name in own] + [own["down"].weight.mT]
    return normalize(torch.cat(rows, dim=1).float(), dim=1)


def matched(rows: Tensor, others: Tensor) -> Tensor:
    """For every one of others [n, k] the row [n, k] that is its own: the pair of the largest
    product first, then that of the largest among the rest. Returns indices [n].
    """
    products = rows @ others.mT
    order = products.new_full((len(rows),), -1, dtype=torch.long)
    least = float("-inf")
    while bool((order < 0).any()):
        best_other, best_row = (
            products.argmax(1),
            products.argmax(0),
        )  # of every row; of every other
        mine = torch.arange(len(rows), device=rows.device)
        # the largest product of all that are left is always mutual
        mutual = (best_row[best_other] == mine) & (products.amax(1) > least)
        order[best_other[mutual]] = mine[mutual]
        products[mutual] = least
        products[:, best_other[mutual]] = least
    return order
