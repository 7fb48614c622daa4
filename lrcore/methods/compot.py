"""COMPOT: each matrix as a dictionary and sparse codes.

`W ~ C D^T L^{-1}`, where `S = L L^T` is the second moment of the input. The dictionary D [in, k]
has orthonormal columns, the atoms. Each row of the codes C [out, k] has s nonzero numbers, so each
output combines s atoms of its choice. In a low-rank factorization all outputs combine the same s
directions.

For a given D the best codes are the s largest entries of each row of `W L D`. For given codes the
best D is the orthogonal factor of `(W L)^T C` (Procrustes). The two steps alternate and never
increase the loss. They start with the singular vectors of `W L`.

With dictionary=least_squares, `D^T L^{-1}` is replaced by `(C^T C)^{-1} C^T W` after the last step,
the optimum for these codes without orthonormal columns. With rounds=0 this is the single step of
ROCKET (Ali et al. 2026), with codes selected by their loss.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..layers.forms import sparse_codes
from ..layers.layer import Layer, LowRank
from ..layers.linalg import EPS, balanced, cholesky, roots
from ..layers.spectra import Cost
from ..layers.statistics import COMMON_TAPS, TAPS, Moments
from ..system.settings import option
from .costs import matrix_cost
from .expert_factors import EachExpert
from .factors import LayerFactors
from .method import MATRICES, Method
from .svd import decomposed


@dataclass(frozen=True)
class CompotOptions:
    atoms: int = option(
        2,
        "atoms of the dictionary per nonzero number of a row (k / s)",
        low=2,
        high=8,
    )
    rounds: int = option(
        20,
        "updates of dictionary and codes after the first codes",
        low=0,
        high=1000,
    )
    dictionary: str = option(
        "orthogonal",
        "orthogonal: orthonormal atoms; least_squares: fitted to the last codes",
        choices=("orthogonal", "least_squares"),
    )


DEFAULT = CompotOptions()


@dataclass(frozen=True, eq=False)
class CodedMatrix:
    """A matrix as dictionary and sparse codes; a rank is a nonzero number of each row of the codes.

    values: the singular values of `W L`. The loss of the truncated SVD is an upper bound, because
    its codes are `s` of the atoms for all rows. left: the left singular vectors [out, q].
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    name: str
    left: Tensor
    options: CompotOptions

    def truncate(self, layer: Layer, rank: int) -> Layer:
        if rank >= self.cost.full:
            return layer
        old, o = layer.matrices()[self.name], self.options
        weight = old.weight.double()
        product = self.left * self.values
        count = min(o.atoms * rank, product.shape[1])
        codes, mask, down = alternate(product, self.left[:, :count], weight, rank, o.rounds)
        if o.dictionary == "least_squares":
            triangle = cholesky(codes.mT @ codes, EPS)
            down = torch.cholesky_solve(codes.mT @ weight, triangle)
        codes, down = (t.to(old.weight.dtype) for t in balanced(codes, down))
        pair = LowRank(down, sparse_codes(codes, mask), old.bias)
        return layer.with_matrices(**{self.name: pair})


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
    for _ in range(rounds + 1):
        reached = product.mT @ codes  # [q, k]
        _, inverse_root = roots(reached.mT @ reached)
        down = inverse_root @ (codes.mT @ weight)
        codes, mask = largest_in_rows(product @ (reached @ inverse_root), entries)
    return codes, mask, down


def largest_in_rows(m: Tensor, entries: int) -> tuple[Tensor, Tensor]:
    """Return the matrix [n, k] with zeros except for the `entries` largest numbers of each row, and
    a bool mask of these.
    """
    positions = m.abs().topk(entries, 1).indices
    mask = torch.zeros_like(m, dtype=torch.bool).scatter_(1, positions, True)
    return torch.where(mask, m, 0.0), mask


def coded_cost(layer: Layer, name: str, atoms: int) -> Cost:
    """Return the cost of dictionary and codes; sixteen bits of positions count as a number.

    A rank is a nonzero number in each row of the codes, and `atoms` atoms with the positions of
    their numbers. Ranks with more atoms than columns of `W L` are as large as the dense matrix.
    """
    cost, (d_out, d_in) = matrix_cost(layer, name), layer.matrices()[name].weight.shape
    positions = atoms * -(-d_out // 16)
    per_rank = d_out + atoms * d_in + positions
    ranks = range(1, cost.full)
    curve = (r * per_rank if r * atoms <= cost.full else cost.dense for r in ranks)
    idle = cost.idle_per_rank + positions
    return replace(
        cost,
        per_rank=per_rank,
        curve=tuple(curve),
        idle_per_rank=idle,
        positions_per_rank=positions,
    )


def factor(layer: Layer, moments: Moments, options: CompotOptions = DEFAULT) -> LayerFactors:
    """Return the factors of all matrices. The alternation depends on the rank, so it runs in
    `truncate`.
    """
    solved: LayerFactors = {}
    products = decomposed(layer, lambda name: moments.second(TAPS[name]))
    for name, (left, values, _) in products.items():
        cost = coded_cost(layer, name, options.atoms)
        values, left = values[: cost.full], left[:, : cost.full]
        solved[name] = CodedMatrix(values, cost, None, name, left, options)
    return solved


METHOD = Method(
    name="compot",
    paper="COMPOT: Calibration-Optimized Matrix Procrustes Orthogonalization for Transformers "
    "Compression (Makhov et al. 2026)",
    summary="Replaces each matrix by a dictionary and sparse codes, fitted to its inputs.",
    notes="Each matrix separately, whitened by its input: a dictionary of orthonormal atoms, and "
    "codes with as many nonzero numbers in each row as the rank. The positions of the codes are "
    "stored as bits, and sixteen bits count as a number. The product uses the dense codes, which "
    "exist during the product only. Biases are unchanged. dictionary=least_squares with rounds=0 "
    "is the single step of ROCKET.",
    factor=EachExpert(factor),
    components=MATRICES,
    needs=frozenset((tap, "second") for tap in COMMON_TAPS),
    shrinks_kv=False,
    options=CompotOptions,
)
