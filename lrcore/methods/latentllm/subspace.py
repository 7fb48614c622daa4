"""The leading eigenspace of a large symmetric matrix from a nearby subspace, by matrix products and
decompositions of matrices of at most `SMALL` rows.

An eigendecomposition of a `k x k` matrix costs about ten products and runs at a fraction of their
speed. An alternation changes its subspaces little from round to round, so two cheap steps suffice:
the directions at the boundary, which small changes can exchange, are solved exactly among
themselves, and all remaining directions take a step of Davidson's correction. On the heads of
trained models a round of these steps gains as much as a round of eigendecompositions
(`docs/methods.md`).
"""

import torch
from torch import Tensor

from ...layers.linalg import EPS, eigh_descending, symmetric

SMALL = 64  # rows of the largest matrix that is decomposed
# The smallest divisor of Davidson's correction, as a fraction of the eigenvalue.
MIN_GAP = 0.1
# Directions with less than this fraction (squared) outside the subspace are ignored.
OUTSIDE = 0.1
LONGEST = 0.7  # norm of a step, less than that of the directions of the subspace, 1


def refine_basis(m: Tensor, basis: Tensor) -> Tensor:
    """Return an orthonormal basis [k, r] that is closer to the leading eigenvectors of m than the
    orthonormal `basis` [k, r]; exactly their span if m has at most `SMALL` rows.

    m [k, k]: symmetric, positive semi-definite, with eigenvectors close to the unit vectors; from a
    distant basis, a step gains less.
    """
    count, rank = basis.shape
    if rank in (0, count):
        return basis
    if count <= SMALL:
        return eigh_descending(m)[1][:, :rank]
    return _corrected(m, _exchanged(m, basis))


def _exchanged(m: Tensor, basis: Tensor) -> Tensor:
    """Return the basis with its directions of least value solved jointly with the unit vectors
    outside it that have the largest value.

    These are at most `SMALL` directions, solved by an eigendecomposition among them.
    """
    size = SMALL // 2
    energies = (basis * (m @ basis)).sum(0)
    inner = energies.topk(min(size, len(energies)), largest=False).indices
    outside = 1 - basis.square().sum(1)
    outer = (m.diagonal() * outside).topk(min(size, len(m) - len(energies))).indices
    candidates = -basis @ basis[outer].mT
    candidates[outer, torch.arange(len(outer), device=m.device)] += 1
    # orthonormal; directions almost inside the subspace become zero and are never selected below
    values, vectors = eigh_descending(candidates.mT @ candidates)
    is_outside = values > OUTSIDE
    candidates = candidates @ (
        vectors * torch.where(is_outside, values.clamp_min(OUTSIDE).rsqrt(), 0)
    )
    window = torch.cat((basis[:, inner], candidates), 1)
    projected = symmetric(window.mT @ m @ window)
    last = projected.diagonal()[len(inner) :]
    last -= torch.where(is_outside, 0, m.diagonal().sum().clamp_min(1e-100))
    chosen = eigh_descending(projected)[1][:, : len(inner)]
    return basis.index_copy(1, inner, window @ chosen)


def _corrected(m: Tensor, basis: Tensor) -> Tensor:
    """Return the basis after Davidson's correction of each direction, orthonormal again.

    The correction is the residual outside the subspace divided by the difference of eigenvalues,
    which the diagonal of m estimates.
    """
    image = m @ basis
    inner = basis.mT @ image
    energies = inner.diagonal()
    gap = torch.maximum(energies - m.diagonal().unsqueeze(1), MIN_GAP * energies)
    min_gap = (EPS * energies.max()).clamp_min(torch.finfo(m.dtype).tiny)
    step = (image - basis @ inner) / gap.clamp_min(min_gap)
    step = step - basis @ (basis.mT @ step)
    bound = float((step.mT @ step).norm().sqrt())  # at least the largest singular value
    if bound > LONGEST:
        step, bound = step * (LONGEST / bound), LONGEST
    return _orthonormal(basis + step, bound * bound)


def _orthonormal(basis: Tensor, error: float) -> Tensor:
    """Return the nearest orthonormal basis, by the Newton-Schulz iteration `Q (3 I - Q^T Q) / 2`.

    error < 1: a bound of `|Q^T Q - I|`, which becomes `(3 error^2 + error^3) / 4` in each step.
    """
    while True:
        basis = 1.5 * basis - 0.5 * basis @ (basis.mT @ basis)
        if error < 1e-8:
            return basis
        error = (3 * error**2 + error**3) / 4
