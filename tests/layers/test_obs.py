"""GPTQ and SparseGPT, compared with Optimal Brain Surgeon by brute force."""

import itertools

import pytest
import torch

from lrcore.layers import obs
from lrcore.layers.forms import (
    BlockDiagonal,
    IdentityColumns,
    IdentityRows,
    PassedRows,
    Quantized,
    dense,
    groups_of,
    quantize,
)
from lrcore.layers.grids import least_squares_grids
from lrcore.layers.obs import (
    DAMPING,
    gptq,
    inverse_factor,
    pruner_zero,
    second_factor,
    sparsegpt,
    wanda,
)


def randn(*shape, seed=0):
    return torch.randn(
        *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + sum(shape))
    )


def problem(rows=5, columns=12):
    mixed = randn(columns, columns)
    return randn(rows, columns), mixed @ mixed.T + 0.1 * torch.eye(columns, dtype=torch.float64)


def damped(moment):
    return moment + DAMPING * moment.diagonal().mean() * torch.eye(len(moment), dtype=moment.dtype)


def with_optimal_columns(row, target, h, j):
    """Return the row with columns up to j fixed and later columns optimal.

    The error is (row - target) H (row - target)^T, minimized by least squares.
    """
    after = torch.arange(len(row)) > j
    right = h[after][:, ~after] @ (target - row)[~after]
    made = row.clone()
    made[after] = target[after] + torch.linalg.solve(h[after][:, after], right)
    return made


def price(row, target, h, j, gone):
    """Return the increase of the error if column `gone` becomes zero and later columns are free."""
    fixed = row.clone()
    fixed[gone] = 0
    free = torch.arange(len(row)) > gone
    step = fixed - row
    step[free] = -torch.linalg.solve(h[free][:, free], h[free, gone] * step[gone])
    return float(step @ h @ step)


@pytest.mark.parametrize("block", [4, 128])
def test_masks_and_updates_of_sparsegpt_equal_brute_force(block, monkeypatch):
    monkeypatch.setattr(obs, "BLOCK", block)
    weight, moment = problem()
    form, h = sparsegpt(weight, moment), damped(moment)
    for target, made in zip(weight, dense(form), strict=True):
        row = target.clone()
        for start in range(0, len(row), 4):
            costs = [price(row, target, h, start, j) for j in range(start, start + 4)]
            retained = sorted(range(4), key=costs.__getitem__)[2:]
            for j in range(start, start + 4):
                row[j] = row[j] if j - start in retained else 0.0
                row = with_optimal_columns(row, target, h, j)
        assert torch.allclose(made, row, atol=1e-8)
        assert (made.view(-1, 4) != 0).sum(1).tolist() == [2, 2, 2]


def test_error_of_sparsegpt_is_below_wanda_and_wanda_has_the_best_mask():
    weight, moment = problem(rows=64, columns=32)

    def error(form):
        lost = dense(form) - weight
        return float((lost @ moment * lost).sum())

    assert error(sparsegpt(weight, moment)) < 0.8 * error(wanda(weight, moment))
    diagonal = moment.diagonal()
    for row, made in zip(weight[:8], dense(wanda(weight, moment)), strict=False):
        for start in range(0, 32, 4):
            row_scores = slice(start, start + 4)
            lost = [
                sum(
                    float(row[start + j] ** 2 * diagonal[start + j])
                    for j in range(4)
                    if j not in two
                )
                for two in itertools.combinations(range(4), 2)
            ]
            gone = made[row_scores] == 0
            assert float(
                (row[row_scores] ** 2 * diagonal[row_scores])[gone].sum()
            ) == pytest.approx(min(lost))
            assert torch.equal(made[row_scores][~gone], row[row_scores][~gone])


def test_pruner_zero_keeps_the_two_largest_scores():
    """Compute `abs(W W) mms(G)` number by number; equal gradients rank by magnitude."""
    weight, gradient = randn(6, 12), randn(6, 12, seed=1).abs()
    low, high = float(gradient.min()), float(gradient.max())
    for row, gradient_row, made in zip(
        weight, gradient, dense(pruner_zero(weight, gradient)), strict=True
    ):
        for start in range(0, 12, 4):
            columns_of_block = range(start, start + 4)
            scores = {
                j: abs(float(row[j]) ** 2) * (float(gradient_row[j]) - low) / (high - low)
                for j in columns_of_block
            }
            retained = sorted(scores, key=scores.__getitem__)[2:]
            assert [float(made[j]) for j in columns_of_block] == [
                float(row[j]) if j in retained else 0.0 for j in columns_of_block
            ]
    white = torch.eye(12, dtype=weight.dtype)
    same = pruner_zero(weight, torch.full_like(weight, 0.3))
    assert torch.equal(dense(same), dense(wanda(weight, white)))


def weighted_grids(weight, moment, bits, group):
    """Return low and step of the groups, each column weighted with its second moment."""
    squares = moment.diagonal().expand_as(weight)
    return least_squares_grids(groups_of(weight, group), bits, groups_of(squares, group))


def nearest(matrix, bits, group):
    """Return a matrix rounded to the nearest points of the grids with the least squared error."""
    return quantize(matrix, bits, group, least_squares_grids)


@pytest.mark.parametrize("bits", [8, 4, 3, 2])
@pytest.mark.parametrize("group", [4, 6, 8])
def test_codes_of_gptq_equal_brute_force(bits, group):
    """Columns are fixed in the order of their inputs' second moments, the largest first."""
    weight, moment = problem()
    form = gptq(weight, moment, bits, group)
    order = moment.diagonal().argsort(descending=True)
    assert not torch.equal(order, torch.arange(12))
    low, step = (
        t.repeat_interleave(group)[: weight.numel()].view_as(weight)[:, order]
        for t in weighted_grids(weight, moment, bits, group)
    )
    h = damped(moment)[order][:, order]
    for i, (target, made) in enumerate(zip(weight[:, order], dense(form)[:, order], strict=True)):
        row = target.clone()
        for j in range(len(row)):
            code = ((row[j] - low[i, j]) / step[i, j]).round().clamp(0, 2**bits - 1)
            row[j] = low[i, j] + step[i, j] * code
            row = with_optimal_columns(row, target, h, j)
        assert torch.allclose(made, row, atol=1e-8)


def test_error_of_gptq_is_below_rounding_and_white_inputs_give_rounding():
    weight, moment = problem(rows=64, columns=32)
    plain, better = quantize(weight, 3, 16), gptq(weight, moment, 3, 16)
    lost, retained = (dense(form) - weight for form in (plain, better))
    assert (retained @ moment * retained).sum() < 0.7 * (lost @ moment * lost).sum()
    white, rounded = gptq(weight, torch.eye(32).double(), 3, 16), nearest(weight, 3, 16)
    assert torch.equal(white.codes, rounded.codes)
    assert torch.equal(white.low, rounded.low)


def test_zero_input_removes_its_column():
    weight, moment = problem()
    moment[3], moment[:, 3] = 0, 0
    assert not dense(sparsegpt(weight, moment))[:, 3].any()
    factor = inverse_factor(moment)
    assert torch.isfinite(factor).all()
    assert torch.equal(factor, factor.triu())


@pytest.mark.parametrize("share", [0.25, 0.5, 0.8])
def test_unstructured_masks_and_updates_equal_brute_force(share, monkeypatch):
    """In each block, the share applies to all rows together, by the current cost of each number."""
    monkeypatch.setattr(obs, "BLOCK", 6)
    weight, moment = problem()
    form, h = sparsegpt(weight, moment, share), damped(moment)
    rows = weight.clone()
    for start in (0, 6):
        costs = torch.tensor(
            [
                [price(row, target, h, start, j) for j in range(start, start + 6)]
                for row, target in zip(rows, weight, strict=True)
            ]
        )
        count = round(share * costs.numel())
        retained = (costs >= costs.flatten().topk(count).values[-1]).double()
        for j in range(start, start + 6):
            rows[:, j] *= retained[:, j - start]
            pairs = zip(rows, weight, strict=True)
            rows = torch.stack([with_optimal_columns(row, target, h, j) for row, target in pairs])
    assert torch.allclose(dense(form), rows, atol=1e-8)
    assert form.parameters == 2 * round(share * 30)


def test_wanda_keeps_a_share_of_each_row():
    weight, moment = problem(rows=6, columns=10)
    form = wanda(weight, moment, 0.3)
    scores = weight.abs() * moment.diagonal().sqrt()
    for row, made, row_scores in zip(weight, dense(form), scores, strict=True):
        retained = sorted(row_scores.topk(3).indices.tolist())
        assert made.nonzero().flatten().tolist() == retained
        assert torch.equal(made[retained], row[retained])
    assert form.parameters == 18
    assert form.mask.shape == (6, 2)
    assert form.shape == (6, 10)


def forms_with_blocks():
    """Forms of 48 inputs whose stored numbers multiply only some of them."""
    order, place = (randn(2, size).argsort(1).int() for size in (48, 40))
    return [
        IdentityColumns(randn(1, 20, 28), order[:1]),
        IdentityColumns(randn(2, 20, 28), order),
        IdentityRows(randn(2, 16, 24), place),
        BlockDiagonal(randn(2, 20, 24)),
        PassedRows(randn(40, 45), place[0], 3),
    ]


@pytest.mark.parametrize("number", range(5))
def test_gptq_of_a_form_rounds_its_numbers_on_the_inputs_that_they_multiply(number):
    form, moment = forms_with_blocks()[number], problem(columns=48)[1]
    made = gptq(form, moment, 3, 8)
    assert isinstance(made, Quantized)
    assert type(made.matrix) is type(form)
    plain = quantize(form, 3, 8)
    error, plain_error = (dense(each) - dense(form) for each in (made, plain))
    assert (error @ moment * error).sum() < 0.9 * (plain_error @ moment * plain_error).sum()
    white = gptq(form, torch.eye(48, dtype=torch.float64), 3, 8)
    assert torch.equal(white.codes, nearest(form, 3, 8).codes)


def test_forms_without_numbers_and_coded_forms_stay_as_they_are():
    _, moment = problem()
    empty = IdentityColumns(torch.empty(1, 12, 0), torch.arange(12).int()[None])
    assert gptq(empty, moment, 4, 8) is empty
    coded = quantize(torch.eye(12), 4, 8)
    assert gptq(coded, moment, 4, 8) is coded


def test_second_factor_has_the_least_error_on_the_outputs_of_the_changed_first_factor():
    weight, moment = problem(rows=12, columns=12)
    up, before = weight[:, :4], weight[:4]
    after = dense(gptq(before, moment, 2, 8))
    made = second_factor(up, before, after, moment)
    outputs = after @ moment @ after.mT
    damping = DAMPING * outputs.diagonal().mean()
    gradient = (made @ after - up @ before) @ moment @ after.mT + damping * (made - up)
    assert gradient.abs().max() < 1e-9 * outputs.abs().max()
    errors = (factor @ after - up @ before for factor in (made, up))
    refit_error, error = ((each @ moment * each).sum() for each in errors)
    assert refit_error < 0.8 * error
    assert torch.allclose(second_factor(up, before, before, None), up)
