"""Grids with the least squared error, compared with a loop over single numbers."""

import pytest
import torch

from lrcore.layers import grids
from lrcore.layers.forms import extremes
from lrcore.layers.grids import RANGES, STEPS, least_squares_grids


def rounded(numbers, low, step, bits):
    """Return the code of each number."""
    unit = step if step > 0 else 1.0
    return [min(max(round((w - low) / unit), 0), 2**bits - 1) for w in numbers]


def error(numbers, weights, low, step, bits):
    """Return the weighted sum of the squared errors of rounding."""
    codes = rounded(numbers, low, step, bits)
    triples = zip(numbers, weights, codes, strict=True)
    return sum(share * (w - low - step * code) ** 2 for w, share, code in triples)


def slow(numbers, weights, bits):
    """Return the least weighted error over all starting ranges and steps."""
    lowest, highest, smallest = min(numbers), max(numbers), float("inf")
    for share in RANGES:
        step = share * (highest - lowest) / (2**bits - 1)
        low = (lowest + highest - step * (2**bits - 1)) / 2
        for _ in range(STEPS + 1):
            smallest = min(smallest, error(numbers, weights, low, step, bits))
            codes, total = rounded(numbers, low, step, bits), sum(weights)
            mean_code = sum(h * c for h, c in zip(weights, codes, strict=True)) / total
            mean = sum(h * w for h, w in zip(weights, numbers, strict=True)) / total
            triples = list(zip(numbers, weights, codes, strict=True))
            if variance := sum(h * (c - mean_code) ** 2 for _, h, c in triples):
                step = sum(h * (c - mean_code) * (w - mean) for w, h, c in triples) / variance
            low = mean - step * mean_code
    return smallest


def random_groups():
    generator = torch.Generator().manual_seed(3)
    groups = torch.randn(12, 16, dtype=torch.float64, generator=generator) ** 3  # with outliers
    groups[3], groups[4, 1:] = 0.25, 0.0  # a constant group; a single nonzero number
    weights = torch.rand(12, 16, dtype=torch.float64, generator=generator) ** 4
    weights[5, 8:] = 0.0
    return groups, weights


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_errors_equal_those_of_the_loop_and_are_below_those_between_the_extremes(bits):
    groups, weights = random_groups()
    low, step = least_squares_grids(groups, bits, weights)
    plain_low, plain_step = extremes(groups, bits)
    for i, (numbers, shares) in enumerate(zip(groups.tolist(), weights.tolist(), strict=True)):
        made = error(numbers, shares, float(low[i]), float(step[i]), bits)
        assert made == pytest.approx(slow(numbers, shares, bits), rel=1e-6, abs=1e-15)
        plain = error(numbers, shares, float(plain_low[i]), float(plain_step[i]), bits)
        assert made <= plain * (1 + 1e-9) + 1e-15


def test_heavy_numbers_have_smaller_errors():
    numbers = torch.linspace(0, 1, 64, dtype=torch.float64)[None]
    weights = torch.where(numbers < 0.25, 1.0, 1e-6)
    low, step = least_squares_grids(numbers, 2, weights)
    codes = ((numbers - low) / step).round().clamp(0, 3)
    errors = (numbers - low - step * codes).abs()
    assert errors[numbers < 0.25].max() < 0.08  # a quarter of the step between the extremes


def test_even_grids_and_zero_weights():
    codes = torch.randint(0, 16, (6, 32), generator=torch.Generator().manual_seed(1))
    codes[:, 0], codes[:, 1] = 0, 15
    groups = (codes.double() - 5) * 0.25
    low, step = least_squares_grids(groups, 4, torch.zeros_like(groups))
    assert torch.allclose(low, groups.amin(1), atol=1e-12)
    assert torch.allclose(step, torch.full_like(step, 0.25), atol=1e-12)
    assert torch.allclose(least_squares_grids(groups, 4)[1], step, atol=1e-12)


def test_groups_are_independent_of_the_batch_size(monkeypatch):
    groups, weights = (tensor.float() for tensor in random_groups())
    low, step = least_squares_grids(groups, 4, weights)
    monkeypatch.setattr(grids, "AT_ONCE", 5)
    in_parts = least_squares_grids(groups, 4, weights)
    assert torch.equal(in_parts[0], low)
    assert torch.equal(in_parts[1], step)
    assert low.dtype == torch.float32
