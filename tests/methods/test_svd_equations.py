"""SVD and SVD-LLM against their formulas."""

import pytest
import torch
from toy_layer import relative, toy

from lrcore.layers.statistics import TAPS
from lrcore.methods import svd, svd_llm

NAMES = ["q", "k", "v", "o", "gate", "up", "down"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rank", [1, 4, 9])
def test_svd_is_the_eckart_young_optimum(name: str, rank: int) -> None:
    case = toy(4, 2, "rotary", True, True)
    factor = svd.factor(case.layer, case.moments)[name]
    weight = case.layer.matrices()[name].weight
    u, s, vt = torch.linalg.svd(weight, full_matrices=False)
    small = factor.truncate(case.layer, rank).matrices()[name]
    assert torch.allclose(small.weight, u[:, :rank] @ s[:rank].diag() @ vt[:rank], atol=1e-10)
    assert small.down.shape[0] == rank
    assert torch.allclose(factor.values, s, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rank", [1, 4, 9, 14])
def test_svd_llm_equals_cholesky_whitening(name: str, rank: int) -> None:
    """The paper computes `svd(W L)` with `S = L L^T`, unwhitened by `L^{-1}`."""
    case = toy(4, 2, "rotary", True, True)
    factor = svd_llm.factor(case.layer, case.moments)[name]
    weight, second = case.layer.matrices()[name].weight, case.moments.second(TAPS[name])
    lower = torch.linalg.cholesky(second)
    u, s, vt = torch.linalg.svd(weight @ lower, full_matrices=False)
    literal = u[:, :rank] @ s[:rank].diag() @ vt[:rank] @ torch.linalg.inv(lower)
    small = factor.truncate(case.layer, rank).matrices()[name]

    def error(approximation: torch.Tensor) -> torch.Tensor:
        gap = weight - approximation
        return (gap @ second @ gap.T).trace()

    total = (weight @ second @ weight.T).trace()
    assert relative(error(small.weight), error(literal), total) < 1e-9
    assert relative((factor.values[rank:] ** 2).sum(), error(literal), total) < 1e-9


def test_svd_llm_is_optimal_for_singular_moments() -> None:
    case = toy(4, 2, "rotary", False, True, tokens=10)  # ten tokens for 24 inputs
    for name, factor in svd_llm.factor(case.layer, case.moments).items():
        weight = case.layer.matrices()[name].weight
        rank = min(10, factor.cost.cap)
        gap = weight - factor.up[:, :rank] @ factor.down[:rank]
        second = case.moments.second(TAPS[name])
        total = float((weight @ second @ weight.T).trace())
        expected = float(
            (
                torch.linalg.svdvals(
                    weight @ torch.linalg.cholesky(second + 1e-12 * torch.eye(len(second)))
                )[rank:]
                ** 2
            ).sum()
        )
        assert torch.isfinite(factor.up).all()
        assert abs(float((gap @ second @ gap.T).trace()) - expected) < 1e-6 * total


@pytest.mark.parametrize("name", ["q", "down"])
@pytest.mark.parametrize("rank", [1, 4, 9])
def test_pivots_store_the_same_product_in_fewer_numbers(name: str, rank: int) -> None:
    """PIFA stores r unchanged rows and coefficients of the others, `r (d + d') - r^2` numbers."""
    case = toy(4, 2, "rotary", True, True)
    pairs, pivots = (
        svd_llm.factor(case.layer, case.moments, svd_llm.SvdLlmOptions(stored))[name]
        for stored in ("pairs", "pivots")
    )
    product, small = (
        factor.truncate(case.layer, rank).matrices()[name] for factor in (pairs, pivots)
    )
    assert torch.allclose(small.weight, product.weight, atol=1e-9)
    rows = small.up.place[0].argsort()[:rank]
    assert torch.equal(small.weight[rows], small.down)
    d_out, d_in = product.weight.shape
    bias = 0 if product.bias is None else d_out
    assert small.parameters == rank * (d_out + d_in) - rank**2 + bias
    assert small.parameters == product.parameters - rank**2
