"""Bolaco: projections onto principal components of the outputs, and the costs of ranks."""

import math

import pytest
import torch
from toy_layer import apply, toy

from lrcore.layers.statistics import TAPS
from lrcore.methods import METHODS, bolaco, truncate

KINDS = [(4, 4, "rotary", False, True), (4, 2, "rotary", True, True), (3, 3, "none", False, False)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rank", [1, 4])
def test_outputs_are_projected_onto_their_principal_components(kind: tuple, rank: int) -> None:
    case = toy(*kind)
    inputs = {"attn_in": case.x, "attn_out": case.a, "mlp_in": case.x, "mlp_hidden": case.z}
    factors = bolaco.factor(case.layer, case.moments)
    small = truncate(case.layer, factors, dict.fromkeys(factors, rank)).matrices()
    for name, dense in case.layer.matrices().items():
        if name == "v":
            assert "v" not in factors
            assert small[name] is dense
            continue
        y, approximation = (
            apply(projection, inputs[TAPS[name]]) for projection in (dense, small[name])
        )
        mean = y.mean(0)
        u, s, _ = torch.linalg.svd((y - mean).T, full_matrices=False)
        principal = u[:, :rank]
        assert torch.allclose(
            approximation, mean + (y - mean) @ principal @ principal.T, atol=1e-5
        ), name
        up = small[name].up
        assert torch.allclose(up @ up.T, principal @ principal.T, atol=1e-5), name
        assert torch.allclose(up.T @ up, torch.eye(rank, dtype=up.dtype), atol=1e-6), name
        eigenvalues = factors[name].values.square()[: len(s)] * len(y)
        assert torch.allclose(eigenvalues, s[: len(eigenvalues)] ** 2, atol=1e-4), name


def test_cost_of_a_rank_equals_the_published_count() -> None:
    """The paper uses `rank = ratio m n / (m + n)`: a rank costs m + n numbers."""
    case = toy(4, 2, "rotary", True, True)
    for name, factor in METHODS["bolaco"].factor(case.layer, case.moments, None).items():
        m, n = case.layer.matrices()[name].weight.shape
        rank = math.ceil(0.5 * m * n / (m + n))
        assert factor.cost.parameters(rank) == rank * (m + n) + m  # including the bias
