"""Quantized and sparse matrices on hard inputs, compared with definitions in sixty digits.

GPTQ and SparseGPT are optimal brain surgeon, column by column, with the inverses of the remaining
columns (OBS, Hassibi and Stork 1993). The code uses a single Cholesky factor for all columns.
"""

import mpmath
import pytest
import torch
from hard_layers import KINDS, hard_layer
from sixty_digits import DIGITS, exact, lost

from lrcore.layers.forms import dense, groups_of
from lrcore.layers.grids import least_squares_grids
from lrcore.layers.hqq import BETA, GROWTH, STEPS, P, half_quadratic
from lrcore.layers.obs import DAMPING, gptq, sparsegpt, wanda

SHARE = 1e-5


@pytest.fixture(autouse=True)
def digits():
    with mpmath.workdps(DIGITS):
        yield


@pytest.fixture(params=KINDS)
def problem(request) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the up projection of a layer and the second moment of its input."""
    case = hard_layer("mha", request.param)
    return case.layer.mlp.up.weight, case.moments.second("mlp_in")


def damped(moment: torch.Tensor) -> mpmath.matrix:
    """Return H as in the published code: ones for zero inputs, then 1 % of the mean."""
    h = exact(moment)
    for j in range(h.rows):
        if h[j, j] == 0:
            h[j, j] = 1
    level = mpmath.fsum(h[j, j] for j in range(h.rows)) / h.rows
    return h + DAMPING * level * mpmath.eye(h.rows)


def inverses(h: mpmath.matrix) -> list[mpmath.matrix]:
    """Return, for each column, the inverse of H without the columns before it."""
    inverse, results = mpmath.inverse(h), []
    for j in range(h.rows):
        results.append(inverse * 1)
        inverse = inverse - inverse[:, j] * inverse[j, :] / inverse[j, j]
    return results


def surgeon(weight: torch.Tensor, moment: torch.Tensor, value) -> tuple:
    """Return the final weight [out, in] and H; value(j, w, inverses) returns the new column j."""
    h, w = damped(moment), exact(weight)
    for j in range(w.cols):
        if moment[j, j] == 0:
            w[:, j] = w[:, j] * 0
    inverse_list = inverses(h)
    for j in range(w.cols):
        chosen = value(j, w, inverse_list)
        for i in range(w.rows):
            step = (w[i, j] - chosen[i]) / inverse_list[j][j, j]
            for k in range(j + 1, w.cols):
                w[i, k] -= step * inverse_list[j][j, k]
            w[i, j] = chosen[i]
    return w, h


def check_loss(results: torch.Tensor, expected, weight: torch.Tensor, h) -> None:
    assert torch.isfinite(results).all()
    before = exact(weight)
    smallest_loss, full_loss = lost(expected - before, h), lost(before, h)
    assert lost(exact(results) - before, h) <= (1 + SHARE) * smallest_loss + 1e-12 * full_loss


@pytest.mark.parametrize("bits", [2, 4])
def test_gptq_loss_is_at_most_that_of_optimal_brain_surgeon(problem, bits) -> None:
    weight, moment = problem
    order = moment.diagonal().argsort(descending=True, stable=True)  # of the columns
    squares = moment.diagonal().expand_as(weight)
    low, step = (
        exact(t.double().repeat_interleave(8).view_as(weight)[:, order])
        for t in least_squares_grids(groups_of(weight, 8), bits, groups_of(squares, 8))
    )

    def nearest(j, w, _inverses):
        units = [step[i, j] or 1 for i in range(w.rows)]  # if all numbers of a group are equal
        codes = [mpmath.nint((w[i, j] - low[i, j]) / unit) for i, unit in enumerate(units)]
        codes = [min(max(code, 0), 2**bits - 1) for code in codes]
        return [low[i, j] + step[i, j] * code for i, code in enumerate(codes)]

    ordered = weight[:, order]
    expected, h = surgeon(ordered, moment[order][:, order], nearest)
    check_loss(dense(gptq(weight, moment, bits, 8))[:, order], expected, ordered, h)


def test_sparsegpt_loss_is_at_most_that_of_optimal_brain_surgeon(problem) -> None:
    weight, moment = problem
    retained = {}

    def two_of_four(j, w, inverse_list):
        if j % 4 == 0:
            for i in range(w.rows):
                scores = {k: w[i, k] ** 2 / inverse_list[k][k, k] for k in range(j, j + 4)}
                retained[i] = sorted(scores, key=scores.__getitem__)[2:]
        return [w[i, j] if j in retained[i] else mpmath.mpf(0) for i in range(w.rows)]

    expected, h = surgeon(weight, moment, two_of_four)
    check_loss(dense(sparsegpt(weight, moment)), expected, weight, h)


def test_wanda_keeps_the_two_largest_scores_of_four(problem) -> None:
    weight, moment = problem
    made, w = exact(dense(wanda(weight, moment))), exact(weight)
    square = exact(moment)
    for start in range(0, w.cols, 4):
        four = range(start, start + 4)
        for i in range(w.rows):
            scores = [abs(w[i, j]) * mpmath.sqrt(square[j, j]) for j in four]
            retained = mpmath.fsum(abs(made[i, j]) * mpmath.sqrt(square[j, j]) for j in four)
            assert retained >= (1 - SHARE) * mpmath.fsum(sorted(scores)[2:])
            assert all(made[i, j] in (0, w[i, j]) for j in four)


def hard_groups() -> torch.Tensor:
    """Return groups [n, 16]: normal, an outlier, constant, zero, two values, half precision."""
    g = torch.randn(6, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    g[1, 3], g[2], g[3] = 1e4, 0.37, 0.0
    g[4] = torch.where(g[4] > 0, 1.0, 1.0 + 1e-7)
    g[5] = (g[5] + 50).half().double()
    return g


def exact_steps(numbers: list, bits: int):
    """Return the lowest squared error over the steps of HQQ, from the smallest number."""
    top = 2**bits - 1
    low, step = min(numbers), (max(numbers) - min(numbers)) / top
    if step == 0:
        return mpmath.mpf(0)
    best = mpmath.inf
    for number in range(STEPS + 1):
        grid = [step * min(max(mpmath.nint((w - low) / step), 0), top) for w in numbers]
        residuals = [w - low - on for w, on in zip(numbers, grid, strict=True)]
        best = min(best, mpmath.fsum(r**2 for r in residuals))
        beta = BETA * mpmath.mpf(GROWTH) ** number
        shrunk = [
            mpmath.sign(r) * max(abs(r) - max(abs(r), 1e-12) ** (mpmath.mpf(P) - 1) / beta, 0)
            for r in residuals
        ]
        moved = (w - e - on for w, e, on in zip(numbers, shrunk, grid, strict=True))
        low = mpmath.fsum(moved) / len(numbers)
    return best


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_hqq_reaches_the_exact_minimum_of_its_steps(bits) -> None:
    groups = hard_groups()
    low, step = half_quadratic(groups, bits)
    assert torch.isfinite(low).all()
    for i, numbers in enumerate(groups.tolist()):
        numbers = [mpmath.mpf(number_text) for number_text in numbers]
        at, by = mpmath.mpf(float(low[i])), mpmath.mpf(float(step[i]))
        codes = [min(max(mpmath.nint((w - at) / by), 0), 2**bits - 1) if by else 0 for w in numbers]
        squares = [(w - at - by * code) ** 2 for w, code in zip(numbers, codes, strict=True)]
        size = max(abs(w) for w in numbers)
        smallest = (1 + SHARE) * exact_steps(numbers, bits)
        assert mpmath.fsum(squares) <= smallest + (1e-12 * size) ** 2
