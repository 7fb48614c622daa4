"""The dense algebra behind every method. Float64 inside; callers choose the dtype that leaves.

Second moments are positive semi-definite in exact arithmetic; rounding, few tokens or dead neurons
leave eigenvalues at or below zero. `EPS` draws the line below which a direction counts as never
seen: it is then projected out, as a pseudo-inverse would.
"""

from collections.abc import Callable

import torch
from torch import Tensor

# Eigenvalues below EPS * max are rounding of a float64 eigh on moments accumulated from float32
# products: inverting one of them puts noise of size 1 / sqrt(EPS) into the factors, and on models
# with fewer tokens than dimensions the perplexity explodes.
EPS = 1e-13


def symmetric(m: Tensor) -> Tensor:
    """The symmetric part, float64. [..., n, n]."""
    m = m.double()
    return (m + m.mT) / 2


def column_squares(m: Tensor) -> Tensor:
    """Squared norms of the columns, float64; rows are taken in blocks, so that no second matrix
    is made. [m, n] -> [n].
    """
    return torch.stack([(rows.double() ** 2).sum(0) for rows in m.split(256)]).sum(0)


def eigh_descending(m: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (clamped at 0) and vectors of a PSD matrix, largest first.

    [..., n, n] -> [..., n], [..., n, n].
    """
    values, vectors = torch.linalg.eigh(symmetric(m))
    return values.flip(-1).clamp_min(0), vectors.flip(-1)


def roots(m: Tensor) -> tuple[Tensor, Tensor]:
    """`m^{1/2}` and its pseudo-inverse `m^{-1/2}` for PSD m. [..., n, n] -> two of [..., n, n].

    The product of the two is the projector on the directions with eigenvalue above EPS * max; the
    identity where m is regular.
    """
    values, vectors = eigh_descending(m)
    seen = values > EPS * values[..., :1]
    root = torch.where(seen, values, 0).sqrt()
    inverse = torch.where(seen, values.clamp_min(torch.finfo(torch.float64).tiny).rsqrt(), 0)
    return (vectors * root.unsqueeze(-2)) @ vectors.mT, (
        vectors * inverse.unsqueeze(-2)
    ) @ vectors.mT


def state_gram(weight: Tensor, bias: Tensor | None, second: Tensor, mean: Tensor) -> Tensor:
    """`E[y y^T]` of `y = W x + b` per head, from the moments of x: no pass over the data.

    weight [heads, size, d]; bias [heads, size] or None; second = E[x x^T] [d, d]; mean = E[x] [d].
    Returns [heads, size, size].
    """
    weight = weight.double()
    gram = weight @ second.double() @ weight.mT
    if bias is not None:
        bias = bias.double()
        cross = (weight @ mean.double()).unsqueeze(-1) * bias.unsqueeze(-2)  # [heads, size, size]
        gram = gram + cross + cross.mT + bias.unsqueeze(-1) * bias.unsqueeze(-2)
    return symmetric(gram)


def whitened_svd(weight: Tensor, second: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """All truncations that minimise `E |W x - W^ x|^2` at once: `W^_r = up[:, :r] @ down[:r]`.

    Returns up, values, down.

    weight [out, in]; second = E[x x^T] [in, in], None for the identity. up [out, k], values [k]
    descending, down [k, in], k = min(out, in). The optimum is the projection `U_r U_r^T W` on the
    top eigenvectors of `W S W^T`, so S is never inverted and may be singular. Equal in error to
    whitening by any root of S, Cholesky (SVD-LLM) included: the values are the singular values of
    `W S^{1/2}`.
    """
    weight = weight.double()
    if second is None:
        left, values, right = torch.linalg.svd(weight, full_matrices=False)
        return left, values, values.unsqueeze(-1) * right
    basis = None
    if (
        weight.shape[0] > weight.shape[1]
    ):  # the Gram matrix of the smaller side: W = basis @ R, and basis is orthonormal
        basis, weight = torch.linalg.qr(weight)
    values, vectors = eigh_descending(weight @ second.double() @ weight.mT)
    return (vectors if basis is None else basis @ vectors), values.sqrt(), vectors.mT @ weight


def balanced(up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """Share the scale of each rank-one term evenly between `up[:, j]` and `down[j]`: keeps both
    in range in half precision.
    """
    left, right = up.norm(dim=0), down.norm(dim=1)
    scale = torch.where(
        (left > 0) & (right > 0), (right / left.clamp_min(1e-300)).sqrt(), torch.ones_like(left)
    )
    return up * scale, down / scale.unsqueeze(-1)


def damped(m: Tensor, strength: float) -> Tensor:
    """`m + strength * mean(diag m) * I`, float64. [n, n]. An all-zero m becomes the identity."""
    m = symmetric(m)
    level = float(m.diagonal().mean())
    return m + (strength * level if level > 0 else 1.0) * torch.eye(
        m.shape[-1], dtype=m.dtype, device=m.device
    )


def cholesky(m: Tensor, strength: float = 1e-8) -> Tensor:
    """Lower Cholesky factor of the damped m; the damping grows tenfold until the factorisation
    exists. [n, n].
    """
    for attempt in range(12):
        factor, failed = torch.linalg.cholesky_ex(damped(m, strength * 10**attempt))
        if not int(failed):
            return factor
    raise torch.linalg.LinAlgError("matrix is far from positive semi-definite or not finite")


def ridge_leverage(gram: Tensor, ridge: float) -> Tensor:
    """`1 - ridge * [(C + ridge I)^{-1}]_jj`, each in [0, 1]. gram [n, n] PSD -> [n].

    Computed as the tail that is left over, `ridge * inverse diagonal`, and only then subtracted:
    with many tokens every leverage is close to 1. Use `leverage_complement` where only the order
    matters.
    """
    return 1.0 - leverage_complement(gram, ridge)


def leverage_complement(gram: Tensor, ridge: float) -> Tensor:
    """`ridge * [(C + ridge I)^{-1}]_jj`: one minus the ridge leverage, without the cancellation.

    [n, n] -> [n].
    """
    gram = symmetric(gram)
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram + ridge * eye))
    return ridge * inverse.diagonal()


def elimination_order(weight: Tensor, gram: Tensor, strength: float = 1e-8) -> Tensor:
    """Columns of `weight` by importance in the metric of `weight @ z`, most important first: the
    reverse of greedy elimination.

    weight [d, n]; gram = E[z z^T] [n, n]. Each step removes the columns j of least
    `|w_j|^2 / [C^{-1}]_jj` among those left and lets the others make up for them (optimal brain
    surgeon); both C^{-1} and the weight are downdated, so a step costs n (n + d). From 1024 columns
    on several are removed per step: their scores are those before the step.
    """
    count = weight.shape[1]
    inverse, weight = torch.cholesky_inverse(cholesky(gram, strength)), weight.double().clone()
    alive = torch.ones(count, dtype=torch.bool, device=weight.device)
    removed, block = [], 1 + count // 1024
    while len(removed) * block < count:
        scores = (weight**2).sum(0) / inverse.diagonal().clamp_min(torch.finfo(torch.float64).tiny)
        scores[~alive] = torch.inf
        gone = scores.topk(min(block, int(alive.sum())), largest=False).indices
        pivot = inverse[gone]  # [block, n]
        solved = torch.linalg.solve(pivot[:, gone], pivot)
        weight -= weight[:, gone] @ solved
        inverse -= pivot.mT @ solved
        alive[gone] = False
        removed.append(gone)
    return torch.cat(removed).flip(0)


def conjugate_gradients(
    operator: Callable[[Tensor], Tensor],
    target: Tensor,
    precondition: Callable[[Tensor], Tensor],
    steps: int,
    tolerance: float,
) -> Tensor:
    """X with `operator(X) = target` for a symmetric positive semi-definite operator on tensors of
    target's shape, from X = 0.

    Every step lowers `<X, operator(X)> / 2 - <X, target>`, so that X may be taken after any of
    them: at most `steps`, or once the squared residual in the metric of `precondition` (symmetric,
    positive definite) is below tolerance times the first.
    """
    found, residual = torch.zeros_like(target), target
    towards = direction = precondition(residual)
    size = first = float((residual * towards).sum())
    for _ in range(steps):
        if not size > tolerance * first:
            break
        turned = operator(direction)
        curvature = float((direction * turned).sum())
        if curvature <= 0:
            break
        found = found + size / curvature * direction
        residual = residual - size / curvature * turned
        towards = precondition(residual)
        size, before = float((residual * towards).sum()), size
        direction = towards + size / before * direction
    return found
