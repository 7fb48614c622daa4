"""Rank measures of spectra with known results, and the costs of a slot."""

import math

import pytest
import torch

from lrcore.layers.spectra import (
    Cost,
    Spectrum,
    condition_number,
    cumulative_energy,
    effective_rank,
    energy_rank,
    stable_rank,
)


def test_ranks_of_flat_and_one_hot_spectra() -> None:
    flat, one_hot = torch.full((8,), 3.0), torch.tensor([5.0, 0.0, 0.0])
    assert effective_rank(flat) == pytest.approx(8)
    assert stable_rank(flat) == pytest.approx(8)
    assert effective_rank(one_hot) == pytest.approx(1)
    assert stable_rank(one_hot) == pytest.approx(1)
    assert condition_number(one_hot) == math.inf
    assert condition_number(flat) == 1


def test_energy_rank_is_the_first_rank_that_reaches_the_threshold() -> None:
    values = torch.tensor([3.0, 4.0**0.5, 1.0, 1.0])  # squares 9, 4, 1, 1 of 15
    assert cumulative_energy(values).tolist() == pytest.approx([9 / 15, 13 / 15, 14 / 15, 1])
    assert [energy_rank(values, t) for t in (0.5, 0.6, 0.61, 0.9, 1.0)] == [1, 1, 2, 3, 4]


def test_zero_spectrum_has_finite_measures() -> None:
    zero = torch.zeros(4)
    assert effective_rank(zero) == stable_rank(zero) == 0
    assert energy_rank(zero, 0.9) == 1
    assert Spectrum((0, "mlp"), zero, Cost(4, 2, 8)).energy(1) == 1


def test_ranks_of_a_cost_exclude_factored_ranks_that_save_nothing() -> None:
    cost = Cost(full=10, per_rank=30, dense=205, fixed=5)
    assert cost.ranks() == [1, 2, 3, 4, 5, 6, 10]
    assert [cost.parameters(r) for r in (1, 6, 10)] == [35, 185, 205]
    pairs = Cost(full=8, per_rank=10, dense=80, step=2, kv_per_rank=3, kv_dense=24)
    assert pairs.ranks() == [2, 4, 6, 8]
    assert [pairs.kv(r) for r in (2, 6, 8)] == [6, 18, 24]


def test_tail_and_energy_count_columns_instead_of_steps() -> None:
    s = Spectrum(
        (0, "qk"), torch.tensor([2.0, 1.0, 1.0], dtype=torch.float64), Cost(6, 10, 60, step=2)
    )
    assert [s.tail(r) for r in (2, 4, 6)] == [2, 1, 0]
    assert s.energy(2) == pytest.approx(4 / 6)


def test_cost_can_follow_any_ascending_curve() -> None:
    curve = tuple(r * 14 - r * r for r in range(1, 6))  # a block identity: r (6 + 8) - r^2
    cost = Cost(full=6, per_rank=0, dense=48 + 3, fixed=3, curve=curve)
    assert cost.ranks() == [1, 2, 3, 4, 5, 6]  # every rank below full saves parameters
    assert [cost.parameters(r) for r in (1, 5, 6)] == [16, 48, 51]
