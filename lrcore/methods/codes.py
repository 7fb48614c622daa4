"""Matrices as a dictionary and sparse codes: `W ~ C D^T L^{-1}`, `S = L L^T` the second moment of
the input.

The dictionary D [in, k] has orthonormal columns, the atoms. Each row of the codes C [out, k] has s
nonzero numbers, so each output combines s atoms of its choice. In a low-rank factorization all
outputs combine the same s directions. Matrices that read the same input can share a dictionary.

For a given D the best codes are the s largest entries of each row of `W L D`. For given codes the
best D is the orthogonal factor of `(W L)^T C` (Procrustes). The two steps alternate and never
increase the loss. They start with the singular vectors of `W L`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..layers.forms import sparse_codes
from ..layers.layer import Layer, LowRank
from ..layers.linalg import EPS, balanced, cholesky, inverse_root, whitened_svd
from ..layers.spectra import Cost
from .costs import matrix_cost
from .factors import moved_bias


@dataclass(frozen=True)
class Coding:
    """How a dictionary and codes are fitted.

    atoms: of the dictionary, per nonzero number of a row (k / s); at most as many as inputs.
    rounds: updates of dictionary and codes after the first codes. is_orthogonal: whether the last
    dictionary has orthonormal atoms; else it is the least-squares fit to the last codes.
    """

    atoms: int
    rounds: int
    is_orthogonal: bool


@dataclass(frozen=True, eq=False)
class CodedMatrices:
    """One or more matrices with the same input as a dictionary and sparse codes; a rank is a
    nonzero number of each row of the codes.

    values: the singular values of the stacked `W L`. The loss of the truncated SVD is an upper
    bound, because its codes are `s` of the atoms for all rows. left: the left singular vectors
    [out, q]. mean [in]: if means move into the biases, `b^ = b + (W - W^) mean`; None if the biases
    are unchanged.
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    names: tuple[str, ...]
    left: Tensor
    coding: Coding
    mean: Tensor | None

    def truncate(self, layer: Layer, rank: int) -> Layer:
        if rank >= self.cost.full:
            return layer
        old = {name: layer.matrices()[name] for name in self.names}
        weight = torch.cat([matrix.weight for matrix in old.values()]).double()
        product = self.left * self.values
        start = self.left[:, : min(self.coding.atoms * rank, product.shape[1])]
        fit = alternate if self.coding.is_orthogonal else fitted
        codes, mask, down = fit(product, start, weight, rank, self.coding.rounds)
        codes, down = balanced(codes, down)
        sizes = [matrix.weight.shape[0] for matrix in old.values()]
        biases = [matrix.bias for matrix in old.values()]
        if self.mean is not None:
            means = (codes @ (down @ self.mean)).split(sizes)
            biases = [
                moved_bias(matrix, matrix.weight.double() @ self.mean - mean)
                for matrix, mean in zip(old.values(), means, strict=True)
            ]
        dtype = next(iter(old.values())).weight.dtype
        down = down.to(dtype)  # the same object for all matrices, so it is stored once
        parts = zip(codes.to(dtype).split(sizes), mask.split(sizes), biases, strict=True)
        return layer.with_matrices(
            **{
                name: LowRank(down, sparse_codes(*part), bias)
                for name, (*part, bias) in zip(old, parts, strict=True)
            }
        )


def fitted(
    product: Tensor, start: Tensor, weight: Tensor, entries: int, rounds: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes [out, k], mask and dictionary [k, in] as `alternate` does, but with the
    least-squares dictionary of the last codes, `(C^T C)^{-1} C^T W`, whose atoms are not
    orthonormal.
    """
    codes, mask, _ = alternate(product, start, weight, entries, rounds)
    triangle = cholesky(codes.mT @ codes, EPS)
    return codes, mask, torch.cholesky_solve(codes.mT @ weight, triangle)


def alternate(
    product: Tensor, codes: Tensor, weight: Tensor, entries: int, rounds: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes C [out, k] with `entries` nonzero numbers in each row, their bool mask, and the
    dictionary `D^T L^{-1}` [k, in].

    product: `W L` [out, q], times an orthogonal matrix. codes [out, k]: C before the first step.
    weight: W [out, in].

    With `B = C^T W S W^T C` the dictionary is `D = L^T W^T C B^{-1/2}`, and
    `D^T L^{-1} = B^{-1/2} C^T W`, so L is not inverted.
    """
    mask = torch.ones_like(codes, dtype=torch.bool)
    before, inverse = codes, codes.new_empty(0)
    for _ in range(rounds + 1):
        before, reached = codes, product.mT @ codes  # [q, k]
        inverse = inverse_root(reached.mT @ reached)
        codes, mask = largest_in_rows(product @ (reached @ inverse), entries)
    return codes, mask, inverse @ (before.mT @ weight)


def largest_in_rows(m: Tensor, entries: int) -> tuple[Tensor, Tensor]:
    """Return the matrix [n, k] with zeros except for the `entries` largest numbers of each row, and
    a bool mask of these.
    """
    positions = m.abs().topk(entries, 1).indices
    mask = torch.zeros_like(m, dtype=torch.bool).scatter_(1, positions, True)
    return torch.where(mask, m, 0.0), mask


def coded_cost(layer: Layer, names: Sequence[str], atoms: int) -> Cost:
    """Return the cost of a dictionary and the codes of matrices that share it; sixteen bits of
    positions count as a number.

    A rank is a nonzero number in each row of the codes, and `atoms` atoms with the positions of
    their numbers. Further ranks have no further atoms once there are as many as singular values.
    """
    costs = [matrix_cost(layer, name) for name in names]
    shapes = [layer.matrices()[name].weight.shape for name in names]
    outputs, inputs = sum(shape[0] for shape in shapes), shapes[0][1]
    words = sum(-(-shape[0] // 16) for shape in shapes)  # per atom
    full = costs[0].full if len(names) == 1 else min(outputs, inputs)
    counts = [min(atoms * rank, full) for rank in range(1, full)]
    return replace(
        costs[0],
        full=full,
        per_rank=outputs + atoms * (inputs + words),
        dense=sum(cost.dense for cost in costs),
        fixed=sum(cost.fixed for cost in costs),
        curve=tuple(
            rank * outputs + count * (inputs + words) for rank, count in enumerate(counts, 1)
        ),
        idle_fixed=sum(cost.idle_fixed for cost in costs),
        idle_dense=sum(cost.idle_dense for cost in costs),
        positions=tuple(count * words for count in counts),
    )


def coded_matrices(
    layer: Layer, names: tuple[str, ...], metric: Tensor, mean: Tensor | None, coding: Coding
) -> CodedMatrices:
    """Return the factor of matrices that read the same input.

    metric: S [in, in], the second moment of the input, or its covariance if mean [in] is given.
    The alternation depends on the rank, so it runs in `truncate`.
    """
    projections = [layer.matrices()[name] for name in names]
    weight = torch.cat([projection.weight for projection in projections])
    left, values, _ = whitened_svd(weight, metric)
    cost = coded_cost(layer, names, coding.atoms)
    if mean is not None and any(projection.bias is None for projection in projections):
        cost = cost.with_biases(len(weight))
    return CodedMatrices(values[: cost.full], cost, None, names, left[:, : cost.full], coding, mean)
