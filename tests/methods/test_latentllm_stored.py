"""LatentLLM: sparse terms in addition to B A, and factors as codes (appendix I)."""

from itertools import pairwise

import pytest
import torch
from latentllm_reference import GQA, PLAIN
from toy_layer import D, apply, toy

from lrcore.layers.linalg import roots
from lrcore.layers.statistics import TAPS
from lrcore.methods import latentllm
from lrcore.methods.latentllm import sparse


@pytest.mark.parametrize("name", ["v", "up", "down"])
@pytest.mark.parametrize("metric", [True, False])
def test_low_rank_plus_sparse_improves_in_every_round(name, metric):
    """Compare the loss (eq. 231-237) with the previous round, and with the low-rank part only."""
    case = toy(*GQA)
    weight, second = (
        case.layer.matrices()[name].weight,
        case.moments.second(TAPS[name]) if metric else None,
    )
    root = torch.eye(weight.shape[1], dtype=weight.dtype) if second is None else roots(second)[0]
    losses = []
    for rounds in range(7):
        up, _, down, sparse_term = sparse.alternate(weight, second, 5, 40, rounds)
        assert int((sparse_term != 0).sum()) <= 40
        losses.append(float((((weight - up @ down - sparse_term) @ root) ** 2).sum()))
    low_rank_loss = float((torch.linalg.svdvals(weight @ root)[5:] ** 2).sum())
    assert losses[0] == pytest.approx(low_rank_loss)
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in pairwise(losses))
    assert losses[-1] < 0.95 * low_rank_loss


def test_planted_sparse_term_is_recovered():
    g = torch.Generator().manual_seed(5)
    low = torch.randn(60, 3, generator=g, dtype=torch.float64) @ torch.randn(
        3, 50, generator=g, dtype=torch.float64
    )
    positions = torch.randperm(3000, generator=g)[:20]
    planted = torch.zeros(3000, dtype=torch.float64).index_fill(0, positions, 3.0).view(60, 50)
    up, _, down, sparse_term = sparse.alternate(low + planted, None, 3, 20, rounds=60)
    assert torch.equal(sparse_term != 0, planted != 0)
    assert torch.allclose(up @ down + sparse_term, low + planted, atol=1e-3)


def test_sparse_term_is_stored_as_values_and_indices_and_both_are_counted():
    case = toy(*PLAIN[0])
    small = (
        latentllm.factor(case.layer, case.moments, latentllm.LatentLLMOptions(sparse=0.1))["up"]
        .truncate(case.layer, 5)
        .mlp.up
    )
    entries = round(0.1 * 40 * D)
    assert small.sparse.values.numel() == small.sparse.index.numel() == entries
    assert small.parameters == 5 * (40 + D) - 25 + 2 * entries + 40
    assert (
        abs(float((apply(case.layer.mlp.up, case.x) - apply(small, case.x)).mean())) < 1e-9
    )  # eq. 45 with D


def test_codes_keep_spectra_ranks_and_parameter_counts():
    case = toy(*GQA)
    plain, coded = (
        latentllm.factor(case.layer, case.moments, latentllm.LatentLLMOptions(bits=bits, chunk=16))
        for bits in (0, 8)
    )
    for name, factor in plain.items():
        assert torch.equal(factor.values, coded[name].values)
        assert factor.cost.ranks() == coded[name].cost.ranks()
        a, b = factor.truncate(case.layer, 6), coded[name].truncate(case.layer, 6)
        assert a.parameters == b.parameters
        for matrix in a.matrices():
            x, y = a.matrices()[matrix].weight, b.matrices()[matrix].weight
            assert float((x - y).norm() / x.norm()) < 0.02
