"""Separately factorized matrices: single matrices, matrices stacked over a shared input, or single
heads (LatentLLM sections 3.2-3.3, C, D).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...layers.forms import Matrix, cast
from ...layers.layer import Layer, LowRank, heads
from ...layers.linalg import whitened_svd
from ...layers.spectra import Cost
from ..costs import matrix_cost
from ..factors import moved_bias, pooled
from .junction import NestedProduct, applied, nested, saves_square


def factored_size(rank: int, size_in: int, size_out: int, junction: str) -> int:
    """Return the numbers of a factorized matrix: r (d + d'), and r^2 fewer with a block
    identity.
    """
    return rank * (size_in + size_out) - (rank * rank if saves_square(junction) else 0)


def stacked_cost(layer: Layer, names: tuple[str, ...], junction: str, add_bias: bool) -> Cost:
    """Return the cost of matrices that share a `down`: r (d + sum d') numbers, and r^2 fewer with a
    block identity.

    Biases have the same cost at all ranks.
    """
    costs = [matrix_cost(layer, name) for name in names]
    shapes = [layer.matrices()[name].weight.shape for name in names]
    size_in, size_out = shapes[0][1], sum(shape[0] for shape in shapes)
    full = min(size_in, size_out)
    if len(names) == 1:
        full = costs[0].full
    fixed = size_out if add_bias else sum(cost.fixed for cost in costs)
    kv = sum(cost.kv_fixed for cost in costs)
    curve = tuple(factored_size(rank, size_in, size_out, junction) for rank in range(1, full))
    return Cost(
        full,
        size_in + size_out,
        sum(cost.dense for cost in costs),
        fixed,
        kv_fixed=kv,
        kv_dense=kv,
        curve=curve,
        cached_dense=sum(cost.cached_dense for cost in costs if cost.recomputed),
        recomputed=any(cost.recomputed for cost in costs),
        idle_fixed=fixed,
        idle_dense=sum(cost.idle_dense for cost in costs),
    )


@dataclass(frozen=True, eq=False)
class StackedMatrices:
    """One or more matrices that read the same input through a shared `down`.

    product: U [sum out, k] times U^T W [k, in] as a single head. The scale, the singular values of
    `W P`, belongs to the side that the junction determines. mean [in]: if means move into the
    biases, `b^ = b + (W - B A) mu` (eq. 45); None if the biases are unchanged.
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    names: tuple[str, ...]
    product: NestedProduct
    mean: Tensor | None

    def truncate(self, layer: Layer, rank: int) -> Layer:
        if rank >= self.cost.full:
            return layer
        up, down = self.product.at(rank)
        matrices = {name: layer.matrices()[name] for name in self.names}
        sizes = [matrix.weight.shape[0] for matrix in matrices.values()]
        parts: Sequence[Matrix] = up.split(sizes) if isinstance(up, Tensor) else [up]
        biases = [matrix.bias for matrix in matrices.values()]
        if self.mean is not None:
            means = applied(up, down, self.mean).split(sizes)  # B A mu by matrix
            biases = [
                moved_bias(old, old.weight.double() @ self.mean - mean)
                for old, mean in zip(matrices.values(), means, strict=True)
            ]
        dtype = next(iter(matrices.values())).weight.dtype
        down = cast(down, dtype)  # the same object for all projections, so it is stored once
        changed = {
            name: LowRank(down, cast(part, dtype), bias)
            for name, part, bias in zip(matrices, parts, biases, strict=True)
        }
        return layer.with_matrices(**changed)


def stacked(
    layer: Layer, names: tuple[str, ...], metric: Tensor | None, mean: Tensor | None, junction: str
) -> StackedMatrices:
    """Return `U S V = svd(W P)` of the stacked W for all ranks (eq. 6; eq. 50 for q, k and v).

    metric = P^2 [in, in] or None; mean [in] or None. The block identity of stacked matrices lies in
    the `down` that they share, for both identity junctions.
    """
    if junction == "left_identity" and len(names) > 1:
        junction = "right_identity"
    weight = torch.cat([layer.matrices()[name].weight for name in names])
    up, values, down = whitened_svd(weight, metric)
    add_bias = mean is not None and any(layer.matrices()[name].bias is None for name in names)
    cost = stacked_cost(layer, names, junction, add_bias)
    return StackedMatrices(
        values[: cost.full],
        cost,
        None,
        names,
        nested(up.unsqueeze(0), down.unsqueeze(0), values.unsqueeze(0), junction),
        mean,
    )


@dataclass(frozen=True, eq=False)
class SplitHeads:
    """A matrix with separately factorized heads (eq. 53-54): `up` is block-diagonal, ranks are per
    head.

    product: of [heads, s, k] and [heads, k, in]; heads [heads, k]: the singular values of each
    head; mean [in] or None as in StackedMatrices.
    """

    values: Tensor
    cost: Cost
    heads: Tensor
    name: str
    product: NestedProduct
    mean: Tensor | None

    def truncate(self, layer: Layer, rank: int) -> Layer:
        if rank >= self.cost.full:
            return layer
        old = layer.matrices()[self.name]
        up, down = self.product.at(rank)
        bias = old.bias
        if self.mean is not None:
            mean = applied(up, down, self.mean)  # B A mu
            bias = moved_bias(old, old.weight.double() @ self.mean - mean)
        dtype = old.weight.dtype
        stored: tuple[Matrix, Matrix] = (cast(down, dtype), cast(up, dtype))
        return layer.with_matrices(**{self.name: LowRank(*stored, bias)})


def split_heads(
    layer: Layer, name: str, count: int, metric: Tensor | None, mean: Tensor | None, junction: str
) -> SplitHeads:
    """Return `svd(W_i P)` of each head for all ranks; metric = P^2 [in, in] and mean [in],
    or None.
    """
    projection = layer.matrices()[name]
    solved = [whitened_svd(weight, metric) for weight in heads(projection.weight, count)]
    up, values, down = (torch.stack(parts) for parts in zip(*solved, strict=True))
    size_in, size = projection.weight.shape[1], projection.weight.shape[0] // count
    curve = tuple(
        count * factored_size(rank, size_in, size, junction)
        for rank in range(1, min(size_in, size))
    )
    cost = replace(
        matrix_cost(layer, name),
        full=min(size_in, size),
        per_rank=count * (size_in + size),
        curve=curve,
    )
    if mean is not None and projection.bias is None:
        cost = cost.with_biases(projection.weight.shape[0])
    product = nested(up, down, values, junction)
    return SplitHeads(pooled(values), cost, values, name, product, mean)
