"""Matrices in arithmetic of sixty digits; a test works in it inside `mpmath.workdps(DIGITS)`."""

import mpmath
import torch

DIGITS = 60


def exact(m: torch.Tensor) -> mpmath.matrix:
    return mpmath.matrix(m.double().tolist())


def squares(m: mpmath.matrix) -> mpmath.mpf:
    return mpmath.fsum(value**2 for value in m)


def tails(m: mpmath.matrix) -> list[mpmath.mpf]:
    """The squared singular values after each rank, summed; the first is the whole."""
    values = sorted(mpmath.svd_r(m if m.rows <= m.cols else m.T, compute_uv=False), reverse=True)
    own = [value**2 for value in values]
    return [mpmath.fsum(own[rank:]) for rank in range(len(own) + 1)]
