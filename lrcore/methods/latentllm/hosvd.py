"""The joint factorisation of two stacks of heads by alternating SVD (LatentLLM algorithm 1, eq.
57-77, 116-142, 176-186).

Two projections meet in every head: `G_i = P W_l,i^T W_r,i P` (scores), `G_i = W_o,i W_v,i P`
(attention output). Shared orthonormal A_l and A_r keep `sum_i |A_l G_i A_r^T|^2`. Everything is
done in the row spaces of the two stacks: `W P = L Z` with Z orthonormal, from the Gram matrix
`W P^2 W^T = L L^T`, so no P is formed or inverted and `G_i = Z_l^T L_l,i^T L_r,i Z_r`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...layer import heads
from ...linalg import EPS, eigh_descending
from .subspace import SMALL, towards_leading

ROUNDS = 8  # section 5
# Of what the left side drops: a round that gains less is the last. On trained models each gains at
# most a thirtieth of the one before, and two or three rounds do.
ENOUGH = 1e-6


@dataclass(frozen=True, eq=False)
class Side:
    """One stack of heads, in `k = min(heads * s, d)` directions.

    coordinates L [heads, s, k], zero in directions that no token has; lift `L^+ W` [k, d]; mean of
    the head states [heads, s], zero where means are not counted.
    """

    coordinates: Tensor
    lift: Tensor
    mean: Tensor

    @property
    def full(self) -> int:
        """k, the number of directions."""
        return self.lift.shape[0]

    def factors(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        """B = W P A^T by head and `A P^+` for orthonormal A = basis^T Z: [heads, s, r], [r, d]
        (end of algorithm 1).
        """
        return self.coordinates @ basis, basis.mT @ self.lift

    def rotated(self, vectors: Tensor) -> "Side":
        """The same stack with the columns of the orthogonal vectors [k, k] as directions."""
        return Side(*self.factors(vectors), self.mean)


def side(weight: Tensor, count: int, metric: Tensor | None, mean: Tensor | None) -> Side:
    """The stack W [heads * s, d] under metric = P^2; mean [heads * s] or None."""
    weight = weight.double()
    values, vectors = eigh_descending(
        weight @ (weight.mT if metric is None else metric @ weight.mT)
    )
    full = min(weight.shape)
    values, vectors = values[:full], vectors[:, :full]
    seen = values > EPS * values[:1]
    root = torch.where(seen, values, 0).sqrt()
    inverse = torch.where(seen, values.clamp_min(torch.finfo(torch.float64).tiny).rsqrt(), 0)
    mean = weight.new_zeros(weight.shape[0]) if mean is None else mean
    return Side(heads(vectors * root, count), (vectors * inverse).mT @ weight, heads(mean, count))


@dataclass(frozen=True, eq=False)
class Pair:
    """The rank-free part of a joint factorisation. The directions of each side are the eigenvectors
    of `sum_i G_i G_i^T` and of `sum_i G_i^T G_i`, largest first, so that for every rank the rounds
    start from the first ones.

    left has group heads for each head of right. rotations [offsets, s, s], or [offsets, heads of
    right, s, s], or None: the objective sums over `left_i^T R right_i` (eq. 181). left_values
    [k_l], right_values [k_r]: the eigenvalues.
    """

    left: Side
    right: Side
    rotations: Tensor | None
    left_values: Tensor
    right_values: Tensor


def pair(left: Side, right: Side, rotations: Tensor | None) -> Pair:
    """The rank-free part of two sides. rotations [offsets, s, s] or [offsets, heads of right, s, s]
    or None.
    """
    left_values, left_vectors = eigh_descending(_left_gram(left, right, rotations, None))
    right_values, right_vectors = eigh_descending(_right_gram(left, right, rotations, None))
    return Pair(
        left.rotated(left_vectors),
        right.rotated(right_vectors),
        rotations,
        left_values,
        right_values,
    )


def _rotated(m: Tensor, rotations: Tensor | None) -> Tensor:
    """`sum_delta R M R^T` of m [n, s, s]; m itself without rotations. [n, s, s]"""
    if rotations is None:
        return m
    if rotations.dim() == 3:
        return torch.einsum("dab,nbc,dec->nae", rotations, m, rotations)
    own = rotations.repeat_interleave(len(m) // rotations.shape[1], 1)
    return torch.einsum("dnab,nbc,dnec->nae", own, m, own)


def _spread(coordinates: Tensor, mean: Tensor, basis: Tensor | None) -> Tensor:
    """`L A^T A L^T + m m^T` per head: what the other side sees of this one, [heads, s, s]."""
    kept = coordinates if basis is None else coordinates @ basis
    return kept @ kept.mT + mean.unsqueeze(2) * mean.unsqueeze(1)


def _gram(side_: Side, inner: Tensor) -> Tensor:
    """`sum_i L_i^T M_i L_i`, [k, k]."""
    return (inner @ side_.coordinates).flatten(0, 1).mT @ side_.coordinates.flatten(0, 1)


def _left_gram(left: Side, right: Side, rotations: Tensor | None, basis: Tensor | None) -> Tensor:
    """The matrix [k_l, k_l] whose leading eigenvectors A_l takes, given A_r = basis^T Z_r (None:
    all of Z_r): eq. 75, with means eq. 140.
    """
    group = len(left.coordinates) // len(right.coordinates)
    inner = _rotated(_spread(right.coordinates, right.mean, basis), rotations)
    return _gram(left, inner.repeat_interleave(group, 0))


def _right_gram(left: Side, right: Side, rotations: Tensor | None, basis: Tensor | None) -> Tensor:
    """The matrix [k_r, k_r] whose leading eigenvectors A_r takes, given A_l: eq. 77, with means eq.
    142; the heads of a group add up (eq. 148).
    """
    backwards = None if rotations is None else rotations.mT
    inner = _rotated(_spread(left.coordinates, left.mean, basis), backwards)
    return _gram(right, inner.unflatten(0, (len(right.coordinates), -1)).sum(1))


def alternate(
    p: Pair, left_rank: int, right_rank: int, rounds: int | None = None, enough: float = ENOUGH
) -> tuple[Tensor, Tensor]:
    """Orthonormal bases of A_l [k_l, left_rank] and A_r [k_r, right_rank] after at most `rounds`
    rounds; fewer where one gains no more than the share `enough` of what the left side drops.

    `lost` does not increase from round to round. Unless rounds says otherwise, there are `ROUNDS`
    where they are exact, and twice as many where a side is wider than that (`subspace.py`).
    """
    if rounds is None:
        rounds = ROUNDS if max(p.left.full, p.right.full) <= SMALL else 2 * ROUNDS
    left, right = (
        torch.eye(side_.full, rank, dtype=side_.lift.dtype, device=side_.lift.device)
        for side_, rank in ((p.left, left_rank), (p.right, right_rank))
    )
    best, kept, means = (left, right), 0.0, _means_gram(p)
    for _ in range(rounds):
        right = towards_leading(_right_gram(p.left, p.right, p.rotations, left), right)
        gram = _left_gram(p.left, p.right, p.rotations, right)
        left = towards_leading(gram, left)
        own = (left * (gram @ left)).sum()
        before, dropped = kept, float((gram.trace() - own).clamp_min(EPS * own))
        kept = float(own + (right * (means @ right)).sum())
        if kept >= before:
            best = left, right
        if kept - before <= enough * dropped:
            break
    return best


def lost(p: Pair, left: Tensor, right: Tensor) -> float:
    """The loss of two bases left [k_l, r_l] and right [k_r, r_r]: `sum |G_i - A_l^T A_l G_i A_r^T
    A_r|^2`, and that of the means (eq. 129-136).
    """
    return _kept(p, None, None) - _kept(p, left, right)


def _kept(p: Pair, left: Tensor | None, right: Tensor | None) -> float:
    """The part of `sum |G_i|^2` and of the means that two bases keep; None keeps all."""
    gram = _left_gram(p.left, p.right, p.rotations, right)
    kept, kept_means = (
        m.trace() if basis is None else (basis.mT @ m @ basis).trace()
        for m, basis in ((gram, left), (_means_gram(p), right))
    )
    return float(kept + kept_means)


def _means_gram(p: Pair) -> Tensor:
    """The left means against the right directions, [k_r, k_r]."""
    means = Side(p.left.coordinates * 0, p.left.lift, p.left.mean)
    return _right_gram(means, p.right, p.rotations, None)
