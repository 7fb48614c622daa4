"""Matrices with 60 digits, to be used inside `mpmath.workdps(DIGITS)`."""

from collections.abc import Iterable, Sequence

import mpmath
import torch

DIGITS = 60
NOTHING = mpmath.mpf(10) ** -45  # relative to the square of a variable: zero up to rounding


def exact(m: torch.Tensor) -> mpmath.matrix:
    """Return m [a, b] or [a] exactly; a vector becomes a column."""
    return mpmath.matrix(m.double().tolist())


def squares(m: mpmath.matrix) -> mpmath.mpf:
    return mpmath.fsum(value**2 for value in m)


def tails(m: mpmath.matrix) -> list[mpmath.mpf]:
    """Return the sums of the squared singular values after each rank; the first is the total."""
    values = mpmath.svd_r(m if m.rows <= m.cols else m.T, compute_uv=False)
    return sums_after(value**2 for value in values)


def sums_after(values: Iterable[mpmath.mpf]) -> list[mpmath.mpf]:
    """Return the sums of all but the 0, 1, 2, ... largest values."""
    largest_first = sorted(values, reverse=True)
    return [mpmath.fsum(largest_first[count:]) for count in range(len(largest_first) + 1)]


def symmetric_tails(m: mpmath.matrix) -> list[mpmath.mpf]:
    """Return `sums_after` of the eigenvalues of a positive semi-definite matrix."""
    return sums_after(mpmath.eigsy(m, eigvals_only=True))


def leading(m: mpmath.matrix, count: int) -> mpmath.matrix:
    """Return the eigenvectors of the largest eigenvalues of a symmetric matrix, as columns."""
    values, vectors = mpmath.eigsy(m)
    order = sorted(range(len(values)), key=lambda i: values[i], reverse=True)
    return columns(vectors, order[:count])


def root(m: mpmath.matrix) -> mpmath.matrix:
    """Return the symmetric root of a positive semi-definite matrix."""
    values, vectors = mpmath.eigsy(m)
    return vectors * mpmath.diag([mpmath.sqrt(max(v, 0)) for v in values]) * vectors.T


def trace(m: mpmath.matrix) -> mpmath.mpf:
    return mpmath.fsum(m[i, i] for i in range(min(m.rows, m.cols)))


def inner(a: mpmath.matrix, b: mpmath.matrix) -> mpmath.mpf:
    """Return `tr(A^T B)`."""
    return mpmath.fsum(x * y for x, y in zip(a, b, strict=True))


def lost(gap: mpmath.matrix, gram: mpmath.matrix) -> mpmath.mpf:
    """Return `tr(D G D^T)`, the mean squared output of D if G is the second moment of its input."""
    return inner(gap * gram, gap)


def rows(m: mpmath.matrix, indices: Sequence[int]) -> mpmath.matrix:
    return mpmath.matrix([[m[i, j] for j in range(m.cols)] for i in indices])


def columns(m: mpmath.matrix, indices: Sequence[int]) -> mpmath.matrix:
    return mpmath.matrix([[m[i, j] for j in indices] for i in range(m.rows)])


def stacked(parts: Sequence[mpmath.matrix]) -> mpmath.matrix:
    """Stack matrices vertically."""
    return mpmath.matrix([row for part in parts for row in part.tolist()])


def moment(x: mpmath.matrix) -> mpmath.matrix:
    """Return `E[x x^T]` over the rows of x."""
    return x.T * x / x.rows


def left_after(gram: mpmath.matrix, regressors: Sequence[int]) -> mpmath.matrix:
    """Return the second moments of the residuals of all variables after least squares on the
    regressors, without those spanned by previous ones.
    """
    residual = gram * 1
    for j in regressors:
        if residual[j, j] > NOTHING * gram[j, j]:
            residual = residual - residual[:, j] * residual[j, :] / residual[j, j]
    return residual
