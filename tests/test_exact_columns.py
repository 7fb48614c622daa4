"""Quantised and sparse matrices on hard inputs against their definitions in sixty digits.

GPTQ and SparseGPT are optimal brain surgeon, one column after another, by inverses of what is left
(OBS, Hassibi and Stork 1993), where the code has one Cholesky factor for all columns.
"""

import mpmath
import pytest
import torch
from hard_layers import KINDS, hard_layer
from sixty_digits import DIGITS, exact, lost

from lrcore.forms import dense, extremes, groups_of
from lrcore.hqq import BETA, GROWTH, STEPS, P, half_quadratic
from lrcore.obs import DAMPING, gptq, sparsegpt, wanda

SHARE = 1e-5


@pytest.fixture(autouse=True)
def digits():
    with mpmath.workdps(DIGITS):
        yield


@pytest.fixture(params=KINDS)
def problem(request) -> tuple[torch.Tensor, torch.Tensor]:
    """The up projection of a layer and the second moment of its input."""
    case = hard_layer("mha", request.param)
    return case.layer.mlp.up.weight, case.moments.second("mlp_in")


def damped(moment: torch.Tensor) -> mpmath.matrix:
    """H as the published code has it: ones where an input is always zero, then 1 % of the mean."""
    h = exact(moment)
    for j in range(h.rows):
        if h[j, j] == 0:
            h[j, j] = 1
    level = mpmath.fsum(h[j, j] for j in range(h.rows)) / h.rows
    return h + DAMPING * level * mpmath.eye(h.rows)


def inverses(h: mpmath.matrix) -> list[mpmath.matrix]:
    """The inverse of H without the columns before each, in the places of the others."""
    own, found = mpmath.inverse(h), []
    for j in range(h.rows):
        found.append(own * 1)
        own = own - own[:, j] * own[j, :] / own[j, j]
    return found


def surgeon(weight: torch.Tensor, moment: torch.Tensor, value) -> tuple:
    """The weight [out, in] in the end, and H; value(j, w, inverses): what column j becomes."""
    h, w = damped(moment), exact(weight)
    for j in range(w.cols):
        if moment[j, j] == 0:
            w[:, j] = w[:, j] * 0
    left = inverses(h)
    for j in range(w.cols):
        chosen = value(j, w, left)
        for i in range(w.rows):
            step = (w[i, j] - chosen[i]) / left[j][j, j]
            for k in range(j + 1, w.cols):
                w[i, k] -= step * left[j][j, k]
            w[i, j] = chosen[i]
    return w, h


def not_worse(found: torch.Tensor, wanted, weight: torch.Tensor, h) -> None:
    assert torch.isfinite(found).all()
    before = exact(weight)
    least, whole = lost(wanted - before, h), lost(before, h)
    assert lost(exact(found) - before, h) <= (1 + SHARE) * least + 1e-12 * whole


@pytest.mark.parametrize("bits", [2, 4])
def test_gptq_loses_no_more_than_the_surgeon(problem, bits) -> None:
    weight, moment = problem
    low, step = (
        exact(t.double().repeat_interleave(8).view_as(weight))
        for t in extremes(groups_of(weight, 8), bits)
    )

    def nearest(j, w, _left):
        units = [step[i, j] or 1 for i in range(w.rows)]  # where all of a group are the same
        codes = [mpmath.nint((w[i, j] - low[i, j]) / unit) for i, unit in enumerate(units)]
        codes = [min(max(code, 0), 2**bits - 1) for code in codes]
        return [low[i, j] + step[i, j] * code for i, code in enumerate(codes)]

    wanted, h = surgeon(weight, moment, nearest)
    not_worse(dense(gptq(weight, moment, bits, 8)), wanted, weight, h)


def test_sparsegpt_loses_no_more_than_the_surgeon(problem) -> None:
    weight, moment = problem
    kept = {}

    def two_of_four(j, w, left):
        if j % 4 == 0:
            for i in range(w.rows):
                scores = {k: w[i, k] ** 2 / left[k][k, k] for k in range(j, j + 4)}
                kept[i] = sorted(scores, key=scores.__getitem__)[2:]
        return [w[i, j] if j in kept[i] else mpmath.mpf(0) for i in range(w.rows)]

    wanted, h = surgeon(weight, moment, two_of_four)
    not_worse(dense(sparsegpt(weight, moment)), wanted, weight, h)


def test_wanda_keeps_what_counts_most_in_every_four(problem) -> None:
    weight, moment = problem
    made, w = exact(dense(wanda(weight, moment))), exact(weight)
    square = exact(moment)
    for start in range(0, w.cols, 4):
        four = range(start, start + 4)
        for i in range(w.rows):
            scores = [abs(w[i, j]) * mpmath.sqrt(square[j, j]) for j in four]
            kept = mpmath.fsum(abs(made[i, j]) * mpmath.sqrt(square[j, j]) for j in four)
            assert kept >= (1 - SHARE) * mpmath.fsum(sorted(scores)[2:])
            assert all(made[i, j] in (0, w[i, j]) for j in four)


def hard_groups() -> torch.Tensor:
    """Groups of 16 weights [n, 16]: usual, one outlier, all the same, zero, two values, halves."""
    g = torch.randn(6, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    g[1, 3], g[2], g[3] = 1e4, 0.37, 0.0
    g[4] = torch.where(g[4] > 0, 1.0, 1.0 + 1e-7)
    g[5] = (g[5] + 50).half().double()
    return g


def exact_steps(numbers: list, bits: int):
    """The least mean |residual| on the way of HQQ's steps, which begin at the least number."""
    top = 2**bits - 1
    low, step = min(numbers), (max(numbers) - min(numbers)) / top
    if step == 0:
        return mpmath.mpf(0)
    best = mpmath.inf
    for number in range(STEPS + 1):
        grid = [step * min(max(mpmath.nint((w - low) / step), 0), top) for w in numbers]
        rest = [w - low - on for w, on in zip(numbers, grid, strict=True)]
        best = min(best, mpmath.fsum(abs(r) for r in rest) / len(rest))
        beta = BETA * mpmath.mpf(GROWTH) ** number
        shrunk = [
            mpmath.sign(r) * max(abs(r) - max(abs(r), 1e-12) ** (mpmath.mpf(P) - 1) / beta, 0)
            for r in rest
        ]
        moved = (w - e - on for w, e, on in zip(numbers, shrunk, grid, strict=True))
        low = mpmath.fsum(moved) / len(numbers)
    return best


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_hqq_reaches_what_its_steps_do_exactly(bits) -> None:
    groups = hard_groups()
    low, step = half_quadratic(groups, bits)
    assert torch.isfinite(low).all()
    for i, numbers in enumerate(groups.tolist()):
        numbers = [mpmath.mpf(one) for one in numbers]
        at, by = mpmath.mpf(float(low[i])), mpmath.mpf(float(step[i]))
        codes = [min(max(mpmath.nint((w - at) / by), 0), 2**bits - 1) if by else 0 for w in numbers]
        rest = [abs(w - at - by * code) for w, code in zip(numbers, codes, strict=True)]
        size = max(abs(w) for w in numbers)
        assert mpmath.fsum(rest) / 16 <= (1 + SHARE) * exact_steps(numbers, bits) + 1e-12 * size
