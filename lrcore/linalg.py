"""Linear algebra behind every method. Float64 inside; callers choose the dtype of the result.

Second moments are positive semi-definite in exact arithmetic; rounding, few tokens or dead neurons
leave eigenvalues at or below zero. A direction whose eigenvalue is below `EPS` times the largest is
projected out, as a pseudo-inverse does.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .lower import Lower
from .precise import exact
from .threads import threads_for

# Eigenvalues below EPS * max are rounding of a float64 eigh on moments accumulated from float32
# products: inverting one of them puts noise of size 1 / sqrt(EPS) into the factors, and on models
# with fewer tokens than dimensions the perplexity explodes.
EPS = 1e-13
ATTEMPTS = 12  # dampings that are tried, each ten times the one before
INVERTED = 256  # rows that are taken at once: of a triangular matrix that is inverted, or reordered
SPANS = 8  # of columns that a product with a triangular matrix is made of


def symmetric(m: Tensor, out: Tensor | None = None) -> Tensor:
    """The symmetric part, float64. [..., n, n]; into `out` where it is given."""
    m = m.double()
    out = torch.empty_like(m, memory_format=torch.contiguous_format) if out is None else out
    # copied first: torch adds a transpose at a third of that speed. In place: it may take gigabytes
    return out.copy_(m.mT).add_(m).div_(2)


def column_squares(m: Tensor) -> Tensor:
    """Squared norms of the columns, float64; in blocks of rows, to save memory. [m, n] -> [n]."""
    return torch.stack([(exact(rows) ** 2).sum(0) for rows in m.split(256)]).sum(0)


def eigh_descending(m: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (clamped at 0) and vectors of a PSD matrix, largest first.

    [..., n, n] -> [..., n], [..., n, n].
    """
    with threads_for(m):
        values, vectors = torch.linalg.eigh(symmetric(m))
    return values.flip(-1).clamp_min(0), vectors.flip(-1)


def eigenvalues_descending(m: Tensor) -> Tensor:
    """The values of `eigh_descending` alone. [..., n, n] -> [..., n]."""
    with threads_for(m):
        values: Tensor = torch.linalg.eigvalsh(symmetric(m))
    return values.flip(-1).clamp_min(0)


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
    """Activation-aware SVD: up, values, down, where `up[:, :r] @ down[:r]` is optimal at every r.

    weight [out, in]; second S = E[x x^T] [in, in], None for the identity. Returns up [out, k],
    values [k] descending and down [k, in] with k = min(out, in). Rank r minimises
    `E |W x - W^_r x|^2`. The optimum is the projection `U_r U_r^T W` on the top eigenvectors of
    `W S W^T`, so S is never inverted and may be singular. The error equals that of whitening by any
    root of S, such as Cholesky (SVD-LLM): the values are the singular values of `W S^{1/2}`.
    """
    weight = weight.double()
    if second is None:
        return _svd(weight)
    second = second.double()
    if weight.shape[0] <= weight.shape[1]:
        values, vectors = eigh_descending(weight @ second @ weight.mT)
        return vectors, values.sqrt(), vectors.mT @ weight
    # W = basis @ R with an orthonormal basis: the Gram matrix of the smaller side is enough
    basis, own = _orthonormal(weight)
    values, vectors = eigh_descending(own @ second @ own.mT)
    return basis(vectors), values.sqrt(), vectors.mT @ own


def _orthonormal(tall: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """`W = basis @ R` for W [m, n], m > n: what multiplies the basis by [n, k], and R [n, n].

    By Cholesky, `basis = W R^{-1}`, in less time than QR, where the condition number of R says that
    the columns of the basis are orthonormal to 1e-7.
    """
    own, info = torch.linalg.cholesky_ex(tall.mT @ tall, upper=True)
    one = torch.eye(len(own), dtype=own.dtype, device=own.device)
    inverse = torch.linalg.solve_triangular(own, one, upper=True)
    if bool((info == 0) & (own.norm() * inverse.norm() < CONDITION)):  # not, where it is no number
        return (lambda x: tall @ (inverse @ x)), own
    with threads_for(tall):
        basis, own = torch.linalg.qr(tall)
    return (lambda x: basis @ x), own


def _svd(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`whitened_svd` of a float64 weight without the second moment: by the Gram matrix of its
    smaller side, in less than half the time, where that holds the smallest singular value.
    """
    tall = weight.shape[0] > weight.shape[1]
    squares, vectors = eigh_descending(weight.mT @ weight if tall else weight @ weight.mT)
    if bool(squares[-1] <= GRAM_IS_ENOUGH * squares[0]):
        with threads_for(weight):
            left, values, right = torch.linalg.svd(weight, full_matrices=False)
        return left, values, values.unsqueeze(-1) * right
    values = squares.sqrt()
    if tall:
        return weight @ (vectors / values), values, (vectors * values).mT
    return vectors, values, vectors.mT @ weight


# Where the smallest eigenvalue of a Gram matrix is above this share of the largest, the roots of
# the eigenvalues are the singular values to a relative error of 1e-6.
GRAM_IS_ENOUGH = 1e-10
# Below this condition number of R, `W R^{-1}` is orthonormal to 1e-7: to its square in roundings.
CONDITION = 3e4


def singular_values(weight: Tensor, second: Tensor | None = None) -> Tensor:
    """The values of `whitened_svd` alone, [k] descending, float64: a third of its time.

    Without `second`, small values come from the matrix itself where its Gram matrix would lose
    them; with it, they are known to 1e-8 of the largest.
    """
    weight = weight.double()
    tall = weight if weight.shape[0] > weight.shape[1] else weight.mT
    if second is None:
        squares = eigenvalues_descending(tall.mT @ tall)
        if bool(squares[-1] > GRAM_IS_ENOUGH * squares[0]):
            return squares.sqrt()
        with threads_for(tall):
            values: Tensor = torch.linalg.svdvals(torch.linalg.qr(tall, mode="r")[1])
        return values
    if tall is weight:
        weight = triangle(weight)
    return eigenvalues_descending(weight @ second.double() @ weight.mT).sqrt()


def triangle(tall: Tensor) -> Tensor:
    """R [n, n] with `R^T R = W^T W` for a tall W [m, n] float64, to rounding of its products.

    By Cholesky, which takes a small part of the time; by QR where the products are singular.
    """
    own: Tensor
    own, info = torch.linalg.cholesky_ex(tall.mT @ tall, upper=True)
    if int(info) != 0:
        with threads_for(tall):
            own = torch.linalg.qr(tall, mode="r")[1]
    return own


def pseudo_inverse(m: Tensor, least: float | None = None) -> Tensor:
    """The pseudo-inverse of m [..., m, n], float64, [..., n, m]. least: singular values below this
    share of the largest count as zero; None: those that are rounding.
    """
    with threads_for(m):
        inverse: Tensor = torch.linalg.pinv(m.double(), rtol=least)
    return inverse


def balanced(up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """Balance the norms of `up[:, j]` and `down[j]`, so that half precision holds both.

    up [out, r], down [r, in]; returns the same shapes.
    """
    left, right = up.norm(dim=0), down.norm(dim=1)
    scale = torch.where(
        (left > 0) & (right > 0), (right / left.clamp_min(1e-300)).sqrt(), torch.ones_like(left)
    )
    return up * scale, down / scale.unsqueeze(-1)


def damped(m: Tensor, strength: float) -> Tensor:
    """`m + strength * mean(diag m) * I`, float64, [n, n]; an all-zero m becomes the identity."""
    m = symmetric(m)
    level = float(m.diagonal().mean())
    m.diagonal().add_(strength * level if level > 0 else 1.0)
    return m


def dampings(m: Tensor, strength: float, attempt: int = 0) -> Tensor:
    """What is added to the diagonal of a second moment m [n, n] before it is inverted, [n] float64:
    `strength` of every entry, and of the mean what float64 does not resolve; ones where m is zero.

    Of every entry its own share: one of the mean would drown all channels beside a massive one,
    whose square is 1e8 times theirs. attempt: how many were too little.
    """
    diagonal = m.diagonal().double().clamp_min(0)
    level = diagonal.mean()
    seen = min(EPS, 1e-5 * strength)
    grown = 10**attempt * strength * diagonal + 100**attempt * seen * level
    return torch.where(level > 0, grown, 1.0)


def cholesky(m: Tensor, strength: float = 1e-8, out: Tensor | None = None) -> Tensor:
    """Lower Cholesky factor of m [n, n] with `dampings` on its diagonal, grown until it is one.

    out [n, n] float64: where the factor goes. Raises torch.linalg.LinAlgError where m is far from
    positive semi-definite, or not finite.
    """
    return _damped_factor(lambda: symmetric(m, out), strength)


def reordered_cholesky(m: Tensor, order: Tensor, strength: float) -> Tensor:
    """`cholesky` of the rows and columns of a symmetric m [n, n] in an order [k], [k, k].

    Raises torch.linalg.LinAlgError as it does.
    """
    return _damped_factor(lambda: _reordered(m, order), strength)


def _reordered(m: Tensor, order: Tensor) -> Tensor:
    """Rows and columns of m [n, n] in an order [k], float64, [k, k]: some rows at a time, and their
    columns then, in half the time of both indices at once and without another copy.
    """
    found = m.new_empty(len(order), len(order), dtype=torch.float64)
    for own, rows in zip(order.split(INVERTED), found.split(INVERTED), strict=True):
        torch.gather(m.index_select(0, own).double(), 1, order.expand(len(own), -1), out=rows)
    return found


def _damped_factor(fresh: Callable[[], Tensor], strength: float) -> Tensor:
    """The lower factor of what `fresh` makes, damped; in its place, as it may take gigabytes."""
    for attempt in range(ATTEMPTS):
        m = fresh()
        m.diagonal().add_(dampings(m, strength, attempt))
        if cholesky_(m):
            return m
    raise _not_positive()


def _not_positive() -> Exception:
    """A new error each time: a kept one holds the frames that raised it, and their matrices."""
    # PyTorch documents the class, but its stubs do not export it.
    error: Exception = torch.linalg.LinAlgError(  # type: ignore[attr-defined]
        "matrix is far from positive semi-definite or not finite"
    )
    return error


def cholesky_(m: Tensor) -> bool:
    """Replace a symmetric matrix [n, n], contiguous, by its lower factor; whether there is one. Of
    one that has none nothing is left.
    """
    # LAPACK counts along columns: the upper factor of the transpose is the lower one of the rows
    across, failed = m.mT, torch.zeros((), dtype=torch.int32, device=m.device)
    torch.linalg.cholesky_ex(across, upper=True, out=(across, failed))
    return not int(failed)


def invert_lower_(lower: Tensor) -> Tensor:
    """The inverse of a lower triangular matrix [n, n], in its place, by blocks of rows: matrix
    products, which run at several times the rate of LAPACK's inverse of a Cholesky factor.
    """
    for start in range(0, len(lower), INVERTED):
        end = min(start + INVERTED, len(lower))
        own = lower[start:end, start:end]
        eye = torch.eye(end - start, dtype=lower.dtype, device=lower.device)
        own.copy_(torch.linalg.solve_triangular(own, eye, upper=False))
        if start:
            left = times_lower(lower[start:end, :start], lower[:start, :start])
            torch.mm(own.neg(), left, out=lower[start:end, :start])
    return lower


def inverse_of(lower: Tensor) -> Tensor:
    """The inverse of C = L L^T, [n, n]; L, the lower factor [n, n], is overwritten."""
    root = invert_lower_(lower)
    return root.mT @ root


def times_lower(m: Tensor, lower: Tensor) -> Tensor:
    """`m @ lower` for m [d, n] and a lower triangular matrix [n, n], in blocks of columns without
    the zeros above: about half of the multiply-adds.
    """
    count = len(lower)
    width = max(1, math.ceil(count / SPANS))
    return torch.cat([m[:, i:] @ lower[i:, i : i + width] for i in range(0, count, width)], dim=-1)


def leading_refit(lower: Lower, product: Tensor, count: int) -> Tensor:
    """The least-squares refit of a matrix on the first `count` of its inputs, [d, count].

    With C = L L^T the second moments of the inputs: `(W L)[:, :m] L[:m, :m]^{-1}`, so that one
    Cholesky factor serves every count. lower: L [n, n]; product: W L [d, n].
    """
    refit: Tensor = torch.linalg.solve_triangular(
        lower.leading(count), product[:, :count], upper=False, left=False
    )
    return refit


def leverage_complement(gram: Tensor, ridge: float) -> Tensor:
    """`ridge * [(C + ridge I)^{-1}]_jj`: one minus the ridge leverage, without the cancellation.

    A ridge that is lost in the rounding of C, as beside massive activations, grows until there is
    an inverse. [n, n] -> [n]. Raises torch.linalg.LinAlgError as `cholesky` does.
    """
    least = max(ridge, EPS * float(gram.diagonal().mean()))
    for tried in (ridge, *(least * 10**attempt for attempt in range(ATTEMPTS))):
        m = symmetric(gram)
        m.diagonal().add_(tried)
        if cholesky_(m):
            rest: Tensor = tried * column_squares(invert_lower_(m))
            return rest
    raise _not_positive()


def conjugate_gradients(
    operator: Callable[[Tensor], Tensor],
    target: Tensor,
    precondition: Callable[[Tensor], Tensor],
    steps: int,
    tolerance: float,
) -> Tensor:
    """X [...] with `operator(X) = target` [...], by preconditioned conjugate gradients from X = 0.

    operator: symmetric positive semi-definite on tensors of target's shape; precondition:
    symmetric positive definite. Every step lowers `<X, operator(X)> / 2 - <X, target>`, so X is
    usable after any of them. Stops after `steps`, or once the squared residual in the metric of
    `precondition` is at most tolerance times the first.
    """
    solution, residual = torch.zeros_like(target), target
    towards = direction = precondition(residual)
    size = first = float((residual * towards).sum())
    for _ in range(steps):
        if not size > tolerance * first:
            break
        image = operator(direction)
        curvature = float((direction * image).sum())
        if curvature <= 0:
            break
        solution = solution + size / curvature * direction
        residual = residual - size / curvature * image
        towards = precondition(residual)
        size, before = float((residual * towards).sum()), size
        direction = towards + size / before * direction
    return solution
