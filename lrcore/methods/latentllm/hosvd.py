"""The joint factorization of two stacks of heads by alternating SVD (LatentLLM algorithm 1, eq.
57-77, 116-142, 176-186).

Two projections are multiplied in each head: `G_i = P W_l,i^T W_r,i P` (scores),
`G_i = W_o,i W_v,i P` (attention output). Shared orthonormal A_l and A_r maximize
`sum_i |A_l G_i A_r^T|^2`. All computations use the row spaces of the two stacks: `W P = L Z` with Z
orthonormal, from the Gram matrix `W P^2 W^T = L L^T`. So P is neither formed nor inverted, and
`G_i = Z_l^T L_l,i^T L_r,i Z_r`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...layers.layer import heads
from ...layers.linalg import EPS, eigh_descending
from .subspace import SMALL, refine_basis

ROUNDS = 8  # section 5
# A round that gains less than this fraction of the dropped part is the last. On trained models each
# round gains at most a thirtieth of the previous gain, so two or three rounds suffice.
ENOUGH = 1e-6


@dataclass(frozen=True, eq=False)
class Side:
    """A stack of heads, in `k = min(heads * s, d)` directions.

    coordinates L [heads, s, k], zero in directions without tokens; lift `L^+ W` [k, d]; mean of the
    head states [heads, s], zero if means are not counted.
    """

    coordinates: Tensor
    lift: Tensor
    mean: Tensor

    @property
    def full(self) -> int:
        """Return k, the number of directions."""
        return self.lift.shape[0]

    def factors(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        """Return B = W P A^T by head, [heads, s, r], and `A P^+`, [r, d], for orthonormal A =
        basis^T Z (end of algorithm 1).
        """
        return self.coordinates @ basis, basis.mT @ self.lift

    def rotated(self, vectors: Tensor) -> "Side":
        """Return the same stack with the columns of the orthogonal vectors [k, k] as directions."""
        return Side(*self.factors(vectors), self.mean)


def side(weight: Tensor, count: int, metric: Tensor | None, mean: Tensor | None) -> Side:
    """Return the stack W [heads * s, d] under metric = P^2; mean [heads * s] or None."""
    weight = weight.double()
    values, vectors = eigh_descending(
        weight @ (weight.mT if metric is None else metric @ weight.mT)
    )
    full = min(weight.shape)
    values, vectors = values[:full], vectors[:, :full]
    has_tokens = values > EPS * values[:1]
    root = torch.where(has_tokens, values, 0).sqrt()
    inverse = torch.where(has_tokens, values.clamp_min(torch.finfo(torch.float64).tiny).rsqrt(), 0)
    mean = weight.new_zeros(weight.shape[0]) if mean is None else mean
    return Side(heads(vectors * root, count), (vectors * inverse).mT @ weight, heads(mean, count))


@dataclass(frozen=True, eq=False)
class Pair:
    """The rank-free part of a joint factorization.

    The directions of each side are the eigenvectors of `sum_i G_i G_i^T` and of `sum_i G_i^T G_i`,
    largest first, so the rounds for every rank start from the first ones.

    left_side has `group` heads for each head of right_side. rotations [offsets, s, s], or [offsets,
    heads of right_side, s, s], or None: the objective sums over `left_i^T R right_i` (eq. 181).
    left_values [k_l], right_values [k_r]: the eigenvalues.
    """

    left_side: Side
    right_side: Side
    rotations: Tensor | None
    left_values: Tensor
    right_values: Tensor


def pair(left_side: Side, right_side: Side, rotations: Tensor | None) -> Pair:
    """Return the rank-free part of two sides.

    rotations [offsets, s, s] or [offsets, heads of right_side, s, s] or None.
    """
    left_values, left_vectors = eigh_descending(_left_gram(left_side, right_side, rotations, None))
    right_values, right_vectors = eigh_descending(
        _right_gram(left_side, right_side, rotations, None)
    )
    return Pair(
        left_side.rotated(left_vectors),
        right_side.rotated(right_vectors),
        rotations,
        left_values,
        right_values,
    )


def _rotated(m: Tensor, rotations: Tensor | None) -> Tensor:
    """Return `sum_delta R M R^T` of m [n, s, s], [n, s, s]; m itself without rotations."""
    if rotations is None:
        return m
    if rotations.dim() == 3:
        return torch.einsum("dab,nbc,dec->nae", rotations, m, rotations)
    by_head = rotations.repeat_interleave(len(m) // rotations.shape[1], 1)  # [offsets, n, s, s]
    return torch.einsum("dnab,nbc,dnec->nae", by_head, m, by_head)


def _spread(coordinates: Tensor, mean: Tensor, basis: Tensor | None) -> Tensor:
    """Return `L A^T A L^T + m m^T` per head, the metric that a side defines for the opposite side,
    [heads, s, s].
    """
    projected = coordinates if basis is None else coordinates @ basis
    return projected @ projected.mT + mean.unsqueeze(2) * mean.unsqueeze(1)


def _gram(side_: Side, inner: Tensor) -> Tensor:
    """Return `sum_i L_i^T M_i L_i`, [k, k]."""
    return (inner @ side_.coordinates).flatten(0, 1).mT @ side_.coordinates.flatten(0, 1)


def _left_gram(
    left_side: Side, right_side: Side, rotations: Tensor | None, basis: Tensor | None
) -> Tensor:
    """Return the matrix [k_l, k_l] whose leading eigenvectors form A_l, given A_r = basis^T Z_r
    (None: all of Z_r): eq. 75, with means eq. 140.
    """
    group = len(left_side.coordinates) // len(right_side.coordinates)
    inner = _rotated(_spread(right_side.coordinates, right_side.mean, basis), rotations)
    return _gram(left_side, inner.repeat_interleave(group, 0))


def _right_gram(
    left_side: Side, right_side: Side, rotations: Tensor | None, basis: Tensor | None
) -> Tensor:
    """Return the matrix [k_r, k_r] whose leading eigenvectors form A_r, given A_l: eq. 77, with
    means eq. 142; the heads of a group are summed (eq. 148).
    """
    backwards = None if rotations is None else rotations.mT
    inner = _rotated(_spread(left_side.coordinates, left_side.mean, basis), backwards)
    return _gram(right_side, inner.unflatten(0, (len(right_side.coordinates), -1)).sum(1))


def alternate(
    p: Pair, left_rank: int, right_rank: int, rounds: int | None = None, enough: float = ENOUGH
) -> tuple[Tensor, Tensor]:
    """Return orthonormal bases of A_l [k_l, left_rank] and A_r [k_r, right_rank] after at most
    `rounds` rounds.

    The iteration ends when a round gains at most the fraction `enough` of the dropped part of the
    left side. `loss` does not increase from round to round. By default there are `ROUNDS` if all
    rounds are exact, and twice as many if a side has more than `SMALL` directions (`subspace.py`).
    """
    if rounds is None:
        rounds = ROUNDS if max(p.left_side.full, p.right_side.full) <= SMALL else 2 * ROUNDS
    left_basis, right_basis = (
        torch.eye(side_.full, rank, dtype=side_.lift.dtype, device=side_.lift.device)
        for side_, rank in ((p.left_side, left_rank), (p.right_side, right_rank))
    )
    best, retained, means = (left_basis, right_basis), 0.0, _means_gram(p)
    for _ in range(rounds):
        gram = _right_gram(p.left_side, p.right_side, p.rotations, left_basis)
        right_basis = refine_basis(gram, right_basis)
        gram = _left_gram(p.left_side, p.right_side, p.rotations, right_basis)
        left_basis = refine_basis(gram, left_basis)
        energy = (left_basis * (gram @ left_basis)).sum()
        previous, dropped = retained, float((gram.trace() - energy).clamp_min(EPS * energy))
        retained = float(energy + (right_basis * (means @ right_basis)).sum())
        if retained >= previous:
            best = left_basis, right_basis
        if retained - previous <= enough * dropped:
            break
    return best


def loss(p: Pair, left_basis: Tensor, right_basis: Tensor) -> float:
    """Return the loss of two bases left_basis [k_l, r_l] and right_basis [k_r, r_r]:
    `sum |G_i - A_l^T A_l G_i A_r^T A_r|^2`, and that of the means (eq. 129-136).
    """
    return _retained(p, None, None) - _retained(p, left_basis, right_basis)


def _retained(p: Pair, left_basis: Tensor | None, right_basis: Tensor | None) -> float:
    """Return the part of `sum |G_i|^2` and of the means that two bases retain; None for the
    complete space.
    """
    gram = _left_gram(p.left_side, p.right_side, p.rotations, right_basis)
    energy, energy_of_means = (
        m.trace() if basis is None else (basis.mT @ m @ basis).trace()
        for m, basis in ((gram, left_basis), (_means_gram(p), right_basis))
    )
    return float(energy + energy_of_means)


def _means_gram(p: Pair) -> Tensor:
    """Return the left means in the right directions, [k_r, k_r]."""
    means = Side(p.left_side.coordinates * 0, p.left_side.lift, p.left_side.mean)
    return _right_gram(means, p.right_side, p.rotations, None)
