"""Half-quadratic quantization, compared with a loop over single numbers."""

import math

import pytest
import torch

from lrcore.layers import hqq
from lrcore.layers.forms import Quantized, dense, quantize
from lrcore.layers.hqq import BETA, GROWTH, STEPS, P, half_quadratic


def slow(numbers: list[float], bits: int) -> tuple[float, float]:
    """Return low and step of a group, number by number."""
    top = 2**bits - 1
    step = (max(numbers) - min(numbers)) / top
    if step == 0:
        return numbers[0], 0.0
    low, best, smallest = min(numbers), None, math.inf
    for number in range(STEPS + 1):
        total, mean = 0.0, 0.0
        for w in numbers:
            code = min(max(round((w - low) / step), 0), top)
            residual = w - low - step * code
            total += residual**2
            shrunk = max(
                abs(residual) - max(abs(residual), 1e-12) ** (P - 1) / (BETA * GROWTH**number), 0.0
            )
            mean += w - math.copysign(shrunk, residual) - step * code
        if total < smallest:
            best, smallest = low, total
        low = mean / len(numbers)
    return best, step


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_grids_equal_those_of_the_loop(bits):
    groups = torch.randn(40, 24, dtype=torch.float64) ** 3  # with outliers
    groups[3], groups[4, 1:] = 0.25, 0.0  # a constant group; a single nonzero number
    low, step = half_quadratic(groups, bits)
    for i, numbers in enumerate(groups.tolist()):
        assert (float(low[i]), float(step[i])) == pytest.approx(
            slow(numbers, bits), rel=1e-9, abs=1e-12
        )


def errors(matrix, form):
    """Return the mean squared residual of each group."""
    return (matrix - dense(form)).square().view(-1, form.chunk).mean(1)


@pytest.mark.parametrize("scale", [0.02, 5.0])
@pytest.mark.parametrize("bits", [4, 8])
def test_no_group_is_worse_than_with_min_max_grids(bits, scale):
    matrix = scale * torch.randn(32, 128, dtype=torch.float64)
    plain, better = quantize(matrix, bits, 64), quantize(matrix, bits, 64, half_quadratic)
    assert torch.equal(plain.step, better.step)
    assert (errors(matrix, better) <= errors(matrix, plain) + 1e-15).all()
    assert errors(matrix, better).mean() < 0.99 * errors(matrix, plain).mean()


def test_outliers_do_not_move_the_grid():
    """A single outlier widens the grid; the other numbers, between two grid points, position it."""
    group = torch.full((1, 64), 0.4, dtype=torch.float64)
    group[0, 0], group[0, 1] = 0.0, 15.0
    low, step = half_quadratic(group, 4)
    assert float(step) == 1.0
    assert abs(float(low) - 0.4) < 0.01


def test_shifted_weights_have_shifted_grids():
    groups = torch.randn(8, 64, dtype=torch.float64)
    low, step = half_quadratic(groups, 4)
    shifted = half_quadratic(groups + 3.0, 4)
    assert torch.allclose(shifted[0], low + 3.0, rtol=1e-9)
    assert torch.allclose(shifted[1], step, rtol=1e-9)


def test_groups_are_independent_of_the_batch_size(monkeypatch):
    groups = torch.randn(50, 16)
    low, step = half_quadratic(groups, 4)
    monkeypatch.setattr(hqq, "AT_ONCE", 7)
    in_parts = half_quadratic(groups, 4)
    assert torch.equal(in_parts[0], low)
    assert torch.equal(in_parts[1], step)
    assert low.dtype == torch.float32
    assert torch.equal(half_quadratic(groups[10:11], 4)[0], low[10:11])


def test_numbers_on_an_even_grid_are_quantized_exactly():
    codes = torch.randint(0, 16, (6, 32), generator=torch.Generator().manual_seed(1))
    codes[:, 0], codes[:, 1] = 0, 15
    matrix = (codes.double() - 5) * 0.25
    form = quantize(matrix, 4, 32, half_quadratic)
    assert isinstance(form, Quantized)
    assert torch.allclose(dense(form), matrix, atol=1e-12)
    assert form.codes.numel() == matrix.numel() // 2
