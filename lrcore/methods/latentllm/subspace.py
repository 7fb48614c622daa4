"""The leading eigenspace of a large symmetric matrix, from one that is near: by products alone,
and decompositions of matrices of at most `SMALL` rows.

An eigendecomposition of a `k x k` matrix costs about ten products and runs at a fraction of their
speed. An alternation moves its subspaces little from round to round, so two cheap steps do: the
directions at the boundary, which any change may exchange, are solved exactly among themselves, and
all others take one step of Davidson's correction. On the heads of trained models a round of these
steps gains what a round of eigendecompositions does (`docs/methods.md`).
"""

import torch
from torch import Tensor

from ...linalg import EPS, eigh_descending, symmetric

SMALL = 64  # rows of the largest matrix that is decomposed
# Of an eigenvalue: the least difference that Davidson's correction divides by.
LEAST_GAP = 0.1
# Directions of which less than this share (squared) is outside the subspace are no news to it.
OUTSIDE = 0.1
LONGEST = 0.7  # norm of a step: shorter than the subspace's own directions, which have norm one


def towards_leading(m: Tensor, basis: Tensor) -> Tensor:
    """An orthonormal basis nearer to the leading eigenvectors of m than the orthonormal `basis`
    [k, r] is; their span itself where m has at most `SMALL` rows.

    m [k, k]: symmetric, positive semi-definite, and so that the unit vectors are not far from
    eigenvectors; of a basis far away, one step gains less. Returns [k, r].
    """
    count, rank = basis.shape
    if rank in (0, count):
        return basis
    if count <= SMALL:
        return eigh_descending(m)[1][:, :rank]
    return _corrected(m, _exchanged(m, basis))


def _exchanged(m: Tensor, basis: Tensor) -> Tensor:
    """The basis with its directions of least value solved together with those unit vectors beside
    it that have the largest: `SMALL` directions at most, by an eigendecomposition among them.
    """
    size = SMALL // 2
    kept = (basis * (m @ basis)).sum(0)
    inner = kept.topk(min(size, len(kept)), largest=False).indices
    outside = 1 - basis.square().sum(1)
    outer = (m.diagonal() * outside).topk(min(size, len(m) - len(kept))).indices
    others = -basis @ basis[outer].mT
    others[outer, torch.arange(len(outer), device=m.device)] += 1
    # orthonormal; what lies almost within the subspace becomes zero, and is never chosen below
    values, vectors = eigh_descending(others.mT @ others)
    seen = values > OUTSIDE
    others = others @ (vectors * torch.where(seen, values.clamp_min(OUTSIDE).rsqrt(), 0))
    window = torch.cat((basis[:, inner], others), 1)
    projected = symmetric(window.mT @ m @ window)
    last = projected.diagonal()[len(inner) :]
    last -= torch.where(seen, 0, m.diagonal().sum().clamp_min(1e-100))
    chosen = eigh_descending(projected)[1][:, : len(inner)]
    return basis.index_copy(1, inner, window @ chosen)


def _corrected(m: Tensor, basis: Tensor) -> Tensor:
    """Davidson's correction of every direction: the residual outside the subspace over the
    difference of eigenvalues, as the diagonal of m estimates them; then made orthonormal again.
    """
    image = m @ basis
    inner = basis.mT @ image
    kept = inner.diagonal()
    gap = torch.maximum(kept - m.diagonal().unsqueeze(1), LEAST_GAP * kept)
    least = (EPS * kept.max()).clamp_min(torch.finfo(m.dtype).tiny)
    step = (image - basis @ inner) / gap.clamp_min(least)
    step = step - basis @ (basis.mT @ step)
    bound = float((step.mT @ step).norm().sqrt())  # at least the largest singular value
    if bound > LONGEST:
        step, bound = step * (LONGEST / bound), LONGEST
    return _orthonormal(basis + step, bound * bound)


def _orthonormal(basis: Tensor, error: float) -> Tensor:
    """The nearest orthonormal basis, by Newton and Schulz's iteration `Q (3 I - Q^T Q) / 2`.

    error < 1: a bound of `|Q^T Q - I|`, which becomes `(3 error^2 + error^3) / 4` in each step.
    """
    while True:
        basis = 1.5 * basis - 0.5 * basis @ (basis.mT @ basis)
        if error < 1e-8:
            return basis
        error = (3 * error**2 + error**3) / 4
