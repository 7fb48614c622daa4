"""Refit of matrices as a dictionary and sparse codes (lrcore/methods/codes.py).

As in `refit_pairs`, W* is the ridge solution for the dense weights, and M the metric of an error of
W*. Dictionary and codes are fitted to W* in M, starting at the codes before the refit. Matrices
that share a dictionary are refit together.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...layers.forms import SparseCodes, dense, memory_of, sparse_codes
from ...layers.layer import Layer, Linear, LowRank, Projection
from ...layers.linalg import balanced, roots
from ...methods.codes import fitted
from .refit_pairs import INDEPENDENT, MAX_SIDE, refit_target
from .regression import Regression

ROUNDS = 30  # raise the REVISION of refit.py when it changes


def sharing_dictionary(layer: Layer, names: Sequence[str]) -> list[dict[str, LowRank]]:
    """Return the projections, of these names, that are sparse codes, grouped by their dictionary.

    Without those whose dictionary cannot be solved again: with more than MAX_SIDE inputs.
    """
    matrices, groups = layer.matrices(), dict[Hashable, dict[str, LowRank]]()
    for name in names:
        pair = matrices.get(name)
        if name not in INDEPENDENT or not isinstance(pair, LowRank) or pair.sparse is not None:
            continue
        if isinstance(pair.up, SparseCodes) and pair.down.shape[1] <= MAX_SIDE:
            groups.setdefault(memory_of(pair.down), {})[name] = pair
    return list(groups.values())


def stacked(projections: Sequence[Projection]) -> Linear:
    """Return the outputs of projections with the same input as one projection."""
    biases = [p.bias for p in projections if p.bias is not None]
    bias = torch.cat(biases) if len(biases) == len(projections) else None
    return Linear(torch.cat([projection.weight for projection in projections]), bias)


def refit_codes(
    pairs: Mapping[str, LowRank], fit: Regression, weight: Tensor
) -> dict[str, Projection]:
    """Return pairs with a common dictionary solved again on the sums, of the same sizes.

    pairs: a group of `sharing_dictionary`. weight [out, in]: the dense weights, stacked as the
    outputs of the sums.
    """
    ups = [pair.up for pair in pairs.values() if isinstance(pair.up, SparseCodes)]  # all of them
    sizes, dtype = [up.rows for up in ups], weight.dtype
    entries = sum(up.values.numel() for up in ups) // sum(sizes)
    biases = [pair.bias for pair in pairs.values()]
    has_bias = all(bias is not None for bias in biases)
    solution = refit_target(fit, weight, has_bias)
    target, (root, _) = solution.weight / solution.scale, roots(solution.second)
    start = torch.cat([dense(up) for up in ups]).double()
    codes, mask, down = fitted(target @ root, start, target, entries, ROUNDS)
    codes, down = balanced(codes, down * solution.scale)
    if has_bias:
        best = (fit.y - codes @ (down @ fit.x)) / fit.count
        biases = [*best.to(dtype).split(sizes)]
    down = down.to(dtype)  # the same object for all pairs, so it is stored once
    parts = zip(codes.to(dtype).split(sizes), mask.split(sizes), strict=True)
    return {
        name: replace(pair, down=down, up=sparse_codes(*part), bias=bias)
        for (name, pair), part, bias in zip(pairs.items(), parts, biases, strict=True)
    }
