"""Means estimated from a few windows with known costs."""

import pytest
import torch

from lrcore.compression.evidence.probe_windows import mean_and_error, window_costs


def changes(count: int, noise: float) -> list[torch.Tensor]:
    """Return divergences on 32 windows with costs that differ tenfold, cheapest first."""
    g = torch.Generator().manual_seed(3)
    costs = torch.linspace(0.2, 2, 32, dtype=torch.float64)
    sizes = torch.logspace(-6, 0, count, dtype=torch.float64)
    spread = torch.rand(count, 32, generator=g, dtype=torch.float64) * 2 - 1
    return [*(sizes[:, None] * costs * (1 + noise * spread))]


def test_without_noise_eight_windows_give_the_mean_of_all() -> None:
    costs = window_costs(changes(4, 0.0))
    for change in changes(9, 0.0):
        mean, error = mean_and_error(change[:8], costs)
        assert mean == pytest.approx(float(change.mean()), rel=1e-12)
        assert float(change[:8].mean()) < 0.4 * mean
        assert 0 < error < mean


def test_with_noise_the_estimates_lie_within_their_errors() -> None:
    all_changes = changes(60, 0.5)
    costs = window_costs(all_changes[::6])
    off = []
    for change in all_changes:
        mean, error = mean_and_error(change[:8], costs)
        off.append(abs(mean - float(change.mean())) / error)
    assert sum(deviation < 2 for deviation in off) >= 57


def test_all_windows_give_the_plain_mean_and_error() -> None:
    costs = window_costs(changes(4, 0.5))
    change = changes(9, 0.5)[5]
    assert mean_and_error(change, costs) == (float(change.mean()), float(change.std()) / 32**0.5)
    assert mean_and_error(change[:8], window_costs([]))[0] == float(change[:8].mean())
    assert mean_and_error(change[:1], costs)[1] == mean_and_error(change[:1], costs)[0]


def test_zero_changes_give_equal_window_costs() -> None:
    assert torch.equal(window_costs([torch.zeros(32)]), torch.ones(32))
