"""Low rank plus sparse: `W ~ B A + D` (LatentLLM appendix I, eq. 231-237), alternating in the
preconditioned metric.

Given D, B A is the SVD of `(W - D) P`. Given B A, D takes steps of gradient descent on
`|(D + B A - W) P|^2`, each of which retains its largest entries (hard shrinkage, the best in the
paper). Both steps never increase the loss.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...layers.forms import Sparse, cast
from ...layers.layer import Layer, LowRank
from ...layers.linalg import whitened_svd
from ...layers.spectra import Cost
from ...system.threads import threads_for
from ..factors import moved_bias
from .junction import join
from .local import StackedMatrices

ROUNDS = 4
STEPS = 10  # of the descent in each round


@dataclass(frozen=True, eq=False)
class LowRankPlusSparse:
    """A matrix as `B A + D` with `entries` non-zero entries in D; `truncate` runs the rounds.

    values: the loss curve of B A without D, an upper bound. metric = P^2 [in, in] or None; mean
    [in] if means move into the bias, else None. An entry of D costs two numbers, its value and its
    index.
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    name: str
    entries: int
    metric: Tensor | None
    mean: Tensor | None
    junction: str

    def truncate(self, layer: Layer, rank: int) -> Layer:
        if rank >= self.cost.full:
            return layer
        old = layer.matrices()[self.name]
        weight, dtype = old.weight.double(), old.weight.dtype
        raw_up, values, raw_down, dense = alternate(weight, self.metric, rank, self.entries)
        up, down = join(
            raw_up.unsqueeze(0), raw_down.unsqueeze(0), values.unsqueeze(0), self.junction
        )
        bias = old.bias
        if self.mean is not None:
            bias = moved_bias(old, (weight - dense) @ self.mean - raw_up @ (raw_down @ self.mean))
        index = dense.flatten().abs().topk(self.entries).indices.sort().values
        sparse = Sparse(
            dense.flatten()[index].to(dtype), index.int(), (dense.shape[0], dense.shape[1])
        )
        return layer.with_matrices(
            **{self.name: LowRank(cast(down, dtype), cast(up, dtype), bias, sparse)}
        )


def alternate(
    weight: Tensor, metric: Tensor | None, rank: int, entries: int, rounds: int = ROUNDS
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return U [out, rank], S [rank], `U^T (W - D)` [rank, in], and D [out, in] with at most
    `entries` entries, after some rounds.

    A round ends with D, so another SVD follows the last round. weight W [out, in]; metric = P^2
    [in, in] or None.
    """
    sparse = torch.zeros_like(weight)
    for _ in range(rounds):
        up, _, down = whitened_svd(weight - sparse, metric)
        sparse = shrink(sparse, weight - up[:, :rank] @ down[:rank], metric, entries)
    up, values, down = whitened_svd(weight - sparse, metric)
    return up[:, :rank], values[:rank], down[:rank], sparse


def shrink(sparse: Tensor, target: Tensor, metric: Tensor | None, entries: int) -> Tensor:
    """Return D [out, in] after steps of gradient descent on `|(D - target) P|^2` from D = sparse
    [out, in], each retaining the largest entries.

    Columns are scaled so that the metric has ones on its diagonal. The largest entries then have
    the largest effect on the loss, and longer steps are stable.
    """
    if metric is None:
        return _largest(target, entries)
    scale = metric.diagonal().clamp_min(0).sqrt()
    inverse = torch.where(scale > 0, 1 / scale.clamp_min(torch.finfo(scale.dtype).tiny), 0)
    unit = metric * inverse * inverse.unsqueeze(1)
    with threads_for(unit):
        largest = torch.linalg.eigvalsh(unit)[-1]
    length = 1 / largest.clamp_min(torch.finfo(scale.dtype).tiny)
    scaled, goal = sparse * scale, target * scale
    for _ in range(STEPS):
        scaled = _largest(scaled - length * (scaled - goal) @ unit, entries)
    return scaled * inverse


def _largest(m: Tensor, entries: int) -> Tensor:
    """Return the matrix with all but its `entries` largest entries set to zero."""
    flat = m.flatten()
    largest = flat.abs().topk(entries).indices
    return torch.zeros_like(flat).index_copy(0, largest, flat[largest]).view_as(m)


def plus_sparse(
    layer: Layer, low_rank: StackedMatrices, metric: Tensor | None, share: float
) -> LowRankPlusSparse:
    """Return the factor of a separate matrix with an additional sparse term of `share` of its
    entries.

    metric = P^2 [in, in] or None.
    """
    name = low_rank.names[0]
    entries = max(1, round(share * layer.matrices()[name].weight.numel()))
    cost = replace(
        low_rank.cost,
        fixed=low_rank.cost.fixed + 2 * entries,
        idle_fixed=low_rank.cost.idle_fixed + entries,
    )
    mean, junction = low_rank.mean, low_rank.product.junction
    return LowRankPlusSparse(low_rank.values, cost, None, name, entries, metric, mean, junction)
