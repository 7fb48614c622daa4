"""Projections with quantized matrices."""

import pytest
import torch

from lrcore.layers.forms import IdentityColumns, dense, quantize
from lrcore.layers.hqq import half_quadratic
from lrcore.layers.layer import LowRank
from lrcore.layers.obs import gptq
from lrcore.layers.rewriting import once_each, rewrite_projection


def randn(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def identity_pair():
    order = randn(1, 48).argsort(1).int()
    return LowRank(IdentityColumns(randn(1, 20, 28), order), randn(64, 20))


@pytest.mark.parametrize("is_measured", [False, True])
def test_second_factor_makes_up_for_the_rounded_first_factor(is_measured):
    mixed, pair = randn(48, 48), identity_pair()
    moment = mixed @ mixed.T if is_measured else torch.eye(48, dtype=torch.float64)

    def rewrite(matrix, moment):
        if moment is None:
            return quantize(matrix, 3, 16, half_quadratic)
        return gptq(matrix, moment, 3, 16)

    made = rewrite_projection(pair, rewrite, moment if is_measured else None)
    separate = LowRank(rewrite(pair.down, None), rewrite(pair.up, None))
    errors = [each.weight - pair.weight for each in (made, separate)]
    made_error, separate_error = ((each @ moment * each).sum() for each in errors)
    assert made_error < 0.8 * separate_error


def test_a_shared_factor_is_rewritten_once_and_equal_forms_without_numbers_are_not_shared():
    pair = identity_pair()
    rewrite = once_each(lambda matrix, _moment: quantize(matrix, 4, 16))
    first, second = (rewrite_projection(pair, rewrite, None) for _ in range(2))
    assert first.down is second.down
    orders = [torch.arange(12).int()[None], torch.arange(12).flip(0).int()[None]]
    empty = [IdentityColumns(torch.empty(1, 12, 0), order) for order in orders]
    for form in empty:
        assert torch.equal(dense(rewrite(form, None)), dense(form))
