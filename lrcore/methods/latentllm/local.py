"""Matrices factored on their own output: one by one, stacked over a shared input, or head by
head (LatentLLM sections 3.2-3.3, C, D).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...forms import Matrix, cast
from ...layer import Layer, LowRank, heads
from ...linalg import whitened_svd
from ...spectra import Cost
from ..costs import matrix_cost
from ..factors import moved_bias, pooled
from .junction import NestedProduct, applied, nested, saves_square


def factored_size(rank: int, size_in: int, size_out: int, junction: str) -> int:
    """Numbers of a factored matrix: r (d + d'), r^2 fewer with a block identity."""
    return rank * (size_in + size_out) - (rank * rank if saves_square(junction) else 0)


def stacked_cost(layer: Layer, names: tuple[str, ...], junction: str, add_bias: bool) -> Cost:
    """The cost of matrices that share one `down`: r (d + sum d') numbers, r^2 fewer with a block
    identity. Biases cost the same at every rank.
    """
    own = [matrix_cost(layer, name) for name in names]
    shapes = [layer.matrices()[name].weight.shape for name in names]
    size_in, size_out = shapes[0][1], sum(shape[0] for shape in shapes)
    full = min(size_in, size_out)
    if len(names) == 1:
        full = own[0].full
    fixed = size_out if add_bias else sum(cost.fixed for cost in own)
    kv = sum(cost.kv_fixed for cost in own)
    curve = tuple(factored_size(rank, size_in, size_out, junction) for rank in range(1, full))
    return Cost(
        full,
        size_in + size_out,
        sum(cost.dense for cost in own),
        fixed,
        kv_fixed=kv,
        kv_dense=kv,
        curve=curve,
        cached_dense=sum(cost.cached_dense for cost in own if cost.recomputed),
        recomputed=any(cost.recomputed for cost in own),
        idle_fixed=fixed,
        idle_dense=sum(cost.idle_dense for cost in own),
    )


@dataclass(frozen=True, eq=False)
class StackedMatrices:
    """One or more matrices that read one input through one shared `down`.

    product: U [sum out, k] times U^T W [k, in] as one head; the scale, the singular values of
    `W P`, goes where the junction puts it. mean [in]: where means go into the biases,
    `b^ = b + (W - B A) mu` (eq. 45); None where the biases stay as they are.
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
            kept = applied(up, down, self.mean).split(sizes)
            biases = [
                moved_bias(old, old.weight.double() @ self.mean - own)
                for old, own in zip(matrices.values(), kept, strict=True)
            ]
        dtype = next(iter(matrices.values())).weight.dtype
        down = cast(down, dtype)  # one object for all: a shared matrix is stored once
        changed = {
            name: LowRank(down, cast(part, dtype), bias)
            for name, part, bias in zip(matrices, parts, biases, strict=True)
        }
        return layer.with_matrices(**changed)


def stacked(
    layer: Layer, names: tuple[str, ...], metric: Tensor | None, mean: Tensor | None, junction: str
) -> StackedMatrices:
    """`U S V = svd(W P)` of the stacked W for all ranks (eq. 6; eq. 50 for q, k and v).

    metric = P^2 [in, in] or None; mean [in] or None. The block identity of stacked matrices lies in
    the `down` that they share, whichever side the junction names.
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
    """One matrix, each head factored on its own (eq. 53-54): `up` is block-diagonal, ranks are per
    head.

    product: of [heads, s, k] and [heads, k, in]; heads [heads, k]: the singular values of every
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
            kept = applied(up, down, self.mean)
            bias = moved_bias(old, old.weight.double() @ self.mean - kept)
        dtype = old.weight.dtype
        stored: tuple[Matrix, Matrix] = (cast(down, dtype), cast(up, dtype))
        return layer.with_matrices(**{self.name: LowRank(*stored, bias)})


def split_heads(
    layer: Layer, name: str, count: int, metric: Tensor | None, mean: Tensor | None, junction: str
) -> SplitHeads:
    """`svd(W_i P)` of every head for all ranks; metric = P^2 [in, in] and mean [in], or None."""
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
