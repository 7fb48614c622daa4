"""Errors of refits from few tokens, measured on other tokens."""

import itertools

import pytest
import torch
from toy_layer import apply, toy

from lrcore.layers.layer import Layer
from lrcore.layers.statistics import Moments
from lrcore.methods import fused, llm_surgeon, modegpt

GQA = (4, 2, "rotary", False, True)
NEURONS, REMAINING = 40, 24
TOKENS = (12, 20, 24, 28, 40, 80, 400)


def hidden_states(count: int, seed: int) -> torch.Tensor:
    """Return correlated hidden states [count, NEURONS] with a nonzero mean."""
    mixing = torch.Generator().manual_seed(3)
    basis = torch.randn(NEURONS, NEURONS, generator=mixing).double()
    root = basis * (0.95 ** torch.arange(NEURONS)).sqrt()
    noise = torch.randn(count, NEURONS, generator=torch.Generator().manual_seed(seed)).double()
    return noise @ root.mT + 0.3


def error(method: str, layer: Layer, tokens: int, seed: int) -> float:
    """Return the mean squared error of the MLP's output on tokens outside the refit."""
    z = hidden_states(tokens, seed)
    values = {
        ("mlp_hidden", "second"): z.mT @ z / tokens,
        ("mlp_hidden", "mean"): z.mean(0),
        ("down", "curvature"): torch.eye(len(layer.mlp.down.weight), dtype=torch.float64),
    }
    solve = {
        "fused": lambda m: fused.mlp_elimination(layer, m),
        "modegpt": lambda m: modegpt.mlp_nystrom(layer, m),
        "llm_surgeon": lambda m: llm_surgeon.surgeon_neurons(layer, m),
    }
    factor = solve[method](Moments(values, tokens))
    test = hidden_states(2000, 1000)
    small = apply(factor.truncate(layer, REMAINING).mlp.down, test[:, factor.order[:REMAINING]])
    return float((small - apply(layer.mlp.down, test)).square().sum(1).mean())


@pytest.mark.parametrize("method", ["fused", "modegpt", "llm_surgeon"])
def test_refit_does_not_get_worse_with_more_tokens(method: str) -> None:
    layer = toy(*GQA).layer
    errors = [sum(error(method, layer, tokens, seed) for seed in range(8)) / 8 for tokens in TOKENS]
    for error_of_fewer, error_of_more in itertools.pairwise(errors):
        assert error_of_more < 1.05 * error_of_fewer, errors
