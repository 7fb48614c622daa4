"""Matrices in arithmetic of sixty digits; a test works in it inside `mpmath.workdps(DIGITS)`."""

from collections.abc import Iterable, Sequence

import mpmath
import torch

DIGITS = 60
NOTHING = mpmath.mpf(10) ** -45  # of a variable's square: what rounding leaves of zero


def exact(m: torch.Tensor) -> mpmath.matrix:
    """The numbers of m [a, b] or [a] as they are; a vector becomes a column."""
    return mpmath.matrix(m.double().tolist())


def squares(m: mpmath.matrix) -> mpmath.mpf:
    return mpmath.fsum(value**2 for value in m)


def tails(m: mpmath.matrix) -> list[mpmath.mpf]:
    """The squared singular values after each rank, summed; the first is the whole."""
    values = mpmath.svd_r(m if m.rows <= m.cols else m.T, compute_uv=False)
    return sums_after(value**2 for value in values)


def sums_after(values: Iterable[mpmath.mpf]) -> list[mpmath.mpf]:
    """The sums of all but the largest so many values; the first is that of all."""
    largest_first = sorted(values, reverse=True)
    return [mpmath.fsum(largest_first[count:]) for count in range(len(largest_first) + 1)]


def symmetric_tails(m: mpmath.matrix) -> list[mpmath.mpf]:
    """`sums_after` of the eigenvalues of a positive semi-definite matrix."""
    return sums_after(mpmath.eigsy(m, eigvals_only=True))


def leading(m: mpmath.matrix, count: int) -> mpmath.matrix:
    """The eigenvectors of the largest so many eigenvalues of a symmetric matrix, as columns."""
    values, vectors = mpmath.eigsy(m)
    order = sorted(range(len(values)), key=lambda i: values[i], reverse=True)
    return columns(vectors, order[:count])


def root(m: mpmath.matrix) -> mpmath.matrix:
    """The symmetric root of a positive semi-definite matrix."""
    values, vectors = mpmath.eigsy(m)
    return vectors * mpmath.diag([mpmath.sqrt(max(v, 0)) for v in values]) * vectors.T


def trace(m: mpmath.matrix) -> mpmath.mpf:
    return mpmath.fsum(m[i, i] for i in range(min(m.rows, m.cols)))


def inner(a: mpmath.matrix, b: mpmath.matrix) -> mpmath.mpf:
    """`tr(A^T B)`."""
    return mpmath.fsum(x * y for x, y in zip(a, b, strict=True))


def lost(gap: mpmath.matrix, gram: mpmath.matrix) -> mpmath.mpf:
    """`tr(D G D^T)`: the mean squared output of D where G is the second moment of its input."""
    return inner(gap * gram, gap)


def rows(m: mpmath.matrix, indices: Sequence[int]) -> mpmath.matrix:
    return mpmath.matrix([[m[i, j] for j in range(m.cols)] for i in indices])


def columns(m: mpmath.matrix, indices: Sequence[int]) -> mpmath.matrix:
    return mpmath.matrix([[m[i, j] for j in indices] for i in range(m.rows)])


def stacked(parts: Sequence[mpmath.matrix]) -> mpmath.matrix:
    """One above the other."""
    return mpmath.matrix([row for part in parts for row in part.tolist()])


def moment(x: mpmath.matrix) -> mpmath.matrix:
    """`E[x x^T]` of the rows of x."""
    return x.T * x / x.rows


def left_after(gram: mpmath.matrix, regressors: Sequence[int]) -> mpmath.matrix:
    """The second moments of what is left of all variables by least squares on the known ones; of
    those that others span already nothing is left to divide by.
    """
    residual = gram * 1
    for j in regressors:
        if residual[j, j] > NOTHING * gram[j, j]:
            residual = residual - residual[:, j] * residual[j, :] / residual[j, j]
    return residual
