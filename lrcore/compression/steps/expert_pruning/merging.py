"""Merging of an expert into another: M-SMoE (Li et al., ICLR 2024), by usage, with matched neurons.

The target is the expert with the most similar outputs, as in HC-SMoE (Chen et al. 2024).
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear, normalize

from ....layers.experts import mlp_hidden_states
from ....layers.layer import MLP


def outputs(mlp: MLP, x: Tensor) -> Tensor:
    """Return the outputs of an expert for inputs x [n, d]: [n, d]."""
    return linear(mlp_hidden_states(mlp, x), mlp.down.weight, mlp.down.bias)


def nearest_expert(mlps: Sequence[MLP], candidates: Sequence[int], number: int, x: Tensor) -> int:
    """Return the candidate with the mean output on x [n, d] nearest to that of an expert."""
    mean = outputs(mlps[number], x).mean(0)

    def distance(candidate: int) -> float:
        return float((outputs(mlps[candidate], x).mean(0) - mean).norm())

    return min((candidate for candidate in candidates if candidate != number), key=distance)


def merge_experts(
    source: MLP, target: MLP, share: float
) -> dict[str, tuple[Tensor, Tensor | None]]:
    """Return the mean of two experts: by projection, the weight [out, in] and bias [out] or None.

    share: weight of the source in the mean. The neurons are permuted to match the target.
    """
    order = match_neurons(_neuron_rows(source), _neuron_rows(target))
    means: dict[str, tuple[Tensor, Tensor | None]] = {}
    for name, p in target.matrices().items():
        projection = source.matrices()[name]
        weight = projection.weight[:, order] if name == "down" else projection.weight[order]
        bias = projection.bias
        if bias is not None and name != "down":
            bias = bias[order]
        mean_bias = None if bias is None or p.bias is None else torch.lerp(p.bias, bias, share)
        means[name] = torch.lerp(p.weight, weight, share), mean_bias
    return means


def _neuron_rows(mlp: MLP) -> Tensor:
    """Return all weights of each neuron, normalized to length 1: [d_f, 2 d or 3 d]."""
    matrices = mlp.matrices()
    rows = [matrices[name].weight for name in ("gate", "up") if name in matrices]
    rows.append(matrices["down"].weight.mT)
    return normalize(torch.cat(rows, dim=1).float(), dim=1)


def match_neurons(rows: Tensor, targets: Tensor) -> Tensor:
    """Return the index of the matching row [n, k] for each of the targets [n, k]: [n].

    Greedy: the pair of the largest product first, then the largest among the remaining rows.
    """
    products = rows @ targets.mT
    order = products.new_full((len(rows),), -1, dtype=torch.long)
    matched = float("-inf")
    while bool((order < 0).any()):
        best_target, best_row = products.argmax(1), products.argmax(0)
        indices = torch.arange(len(rows), device=rows.device)
        # the largest remaining product is always mutual
        is_mutual = (best_row[best_target] == indices) & (products.amax(1) > matched)
        order[best_target[is_mutual]] = indices[is_mutual]
        products[is_mutual] = matched
        products[:, best_target[is_mutual]] = matched
    return order
