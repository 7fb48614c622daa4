"""Decompositions of ill-conditioned inputs, compared with fifty digits of mpmath."""

import mpmath
import pytest
import torch

from lrcore.layers.linalg import leverage_complement, singular_values, whitened_svd

OUT, IN, TOKENS = 4, 5, 12


def inputs(kind: str) -> torch.Tensor:
    """Return activations [TOKENS, IN] for which float32 products are not accurate enough."""
    x = torch.randn(TOKENS, IN, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    if kind == "near duplicates":
        x[:, 1] = x[:, 0] + 1e-7 * x[:, 1]
    if kind == "scales":
        x = x * torch.tensor([1e4, 1e2, 1.0, 1e-2, 1e-4], dtype=torch.float64)
    if kind == "massive":
        x[0, 2] = 1e5  # a massive activation
    if kind == "few tokens":
        x = x[:3]
    return x


def exact(matrix: torch.Tensor) -> mpmath.matrix:
    """Return the same numbers in arbitrary precision."""
    return mpmath.matrix([[mpmath.mpf(value) for value in row] for row in matrix.tolist()])


KINDS = ("near duplicates", "scales", "massive", "few tokens")


@pytest.mark.parametrize("kind", KINDS)
def test_error_of_every_rank_is_the_minimum(kind) -> None:
    x = inputs(kind)
    weight = torch.randn(OUT, IN, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    up, values, down = whitened_svd(weight, x.T @ x)
    with mpmath.workdps(50):
        outputs = exact(weight) * exact(x).T
        best = sorted(mpmath.svd_r(outputs, compute_uv=False), reverse=True)
        total = mpmath.fsum(s**2 for s in best)
        for rank in range(OUT + 1):
            small = exact(up[:, :rank]) * exact(down[:rank]) if rank else outputs * 0
            gap = outputs - small * exact(x).T if rank else outputs
            error = mpmath.fsum(entry**2 for entry in gap)
            optimum = mpmath.fsum(s**2 for s in best[rank:])
            assert -1e-30 * total <= error - optimum <= 1e-12 * total, rank
        for value, value_only, s in zip(
            values, singular_values(weight, x.T @ x), best, strict=False
        ):
            assert abs(float(value) - s) <= 1e-7 * best[0]
            assert abs(float(value_only) - s) <= 1e-7 * best[0]


def test_small_singular_values_are_accurate() -> None:
    weight = torch.randn(6, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    weight[:, 3] = weight[:, 2] * (1 + 1e-9)
    with mpmath.workdps(50):
        best = sorted(mpmath.svd_r(exact(weight), compute_uv=False), reverse=True)
        for value, s in zip(singular_values(weight), best, strict=True):
            assert abs(float(value) - s) <= 1e-14 * best[0]


@pytest.mark.parametrize("kind", KINDS[:3])
def test_leverages_near_one_keep_their_digits(kind) -> None:
    gram = inputs(kind).T @ inputs(kind)
    ridge = 1e-9 * float(gram.diagonal().mean())
    with mpmath.workdps(50):
        damped = exact(gram) + ridge * mpmath.eye(IN)
        inverse = damped**-1
        for j, leverage in enumerate(leverage_complement(gram, ridge)):
            assert abs(float(leverage) / float(ridge * inverse[j, j]) - 1) <= 1e-6
