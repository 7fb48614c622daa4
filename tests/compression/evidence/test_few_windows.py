"""Means from a few windows are those of all windows where what windows cost is known."""

import pytest
import torch

from lrcore.compression.evidence.few_windows import mean_and_error, window_costs


def changes(count: int, noise: float) -> list[torch.Tensor]:
    """Divergences on 32 windows whose costs differ tenfold, the first ones being the cheapest."""
    g = torch.Generator().manual_seed(3)
    costs = torch.linspace(0.2, 2, 32, dtype=torch.float64)
    sizes = torch.logspace(-6, 0, count, dtype=torch.float64)
    spread = torch.rand(count, 32, generator=g, dtype=torch.float64) * 2 - 1
    return [*(sizes[:, None] * costs * (1 + noise * spread))]


def test_without_noise_eight_windows_say_what_all_do() -> None:
    costs = window_costs(changes(4, 0.0))
    for own in changes(9, 0.0):
        mean, error = mean_and_error(own[:8], costs)
        assert mean == pytest.approx(float(own.mean()), rel=1e-12)
        assert float(own[:8].mean()) < 0.4 * mean
        assert 0 < error < mean


def test_with_noise_the_estimate_lies_within_its_errors() -> None:
    every = changes(60, 0.5)
    costs = window_costs(every[::6])
    off = []
    for own in every:
        mean, error = mean_and_error(own[:8], costs)
        off.append(abs(mean - float(own.mean())) / error)
    assert sum(one < 2 for one in off) >= 57


def test_all_windows_give_the_plain_mean_and_error() -> None:
    costs = window_costs(changes(4, 0.5))
    own = changes(9, 0.5)[5]
    assert mean_and_error(own, costs) == (float(own.mean()), float(own.std()) / 32**0.5)
    assert mean_and_error(own[:8], window_costs([]))[0] == float(own[:8].mean())
    assert mean_and_error(own[:1], costs)[1] == mean_and_error(own[:1], costs)[0]


def test_changes_that_cost_nothing_say_nothing_of_the_windows() -> None:
    assert torch.equal(window_costs([torch.zeros(32)]), torch.ones(32))
