"""Prices of ranks in multiply-adds and in measured time."""

import itertools

import pytest
import torch

import lrcore
from lrcore.layers.spectra import Cost, Form, Spectrum, by_part
from lrcore.ranks.budget import Prices, make_budget
from lrcore.ranks.repricing import (
    Latency,
    SlotTimes,
    multiply_adds,
    priced_in_multiply_adds,
    rising,
)


def spectrum(name: str, cost: Cost, form: Form | None = None) -> Spectrum:
    values = torch.linspace(2, 0.1, cost.full // cost.step).double()
    return Spectrum((0, name), values, cost, form=form)


def proportional_times(cost: Cost, ranks, share: float = 0.5) -> SlotTimes:
    """Return times of a one-second layer with a slot that takes time in proportion to its
    parameters.
    """
    seconds = [1 - share * (1 - cost.parameters(rank) / cost.dense) for rank in ranks]
    return SlotTimes(tuple(ranks), tuple(seconds), 1.0)


NARROWED = Cost(full=32, per_rank=10, dense=320, step=2)
PAIR = Cost(full=32, per_rank=64, dense=1024)


def test_prices_follow_measured_times() -> None:
    times = proportional_times(NARROWED, (2, 16, 30))
    latency = Latency(128, "a device", (1.0,), {(0, "qk"): times})
    s = spectrum("qk", NARROWED)
    cost = latency.priced({s.slot: s})[s.slot].cost
    assert cost.dense == pytest.approx(0.5e9, rel=1e-6)
    for rank in (2, 8, 16, 24, 30):
        assert cost.parameters(rank) == pytest.approx(0.5e9 * rank / 32, rel=1e-6)
    assert latency.of({s.slot: 16}, {s.slot: s}) == pytest.approx(0.75)
    assert latency.of({s.slot: 32}, {s.slot: s}) == latency.dense == 1.0
    assert latency.nanoseconds == 1_000_000_000


def test_ranks_slower_than_the_dense_layer_are_not_offered() -> None:
    times = SlotTimes((1, 8, 15), (0.7, 0.9, 1.1), 1.0)
    latency = Latency(128, "a device", (1.0,), {(0, "q"): times})
    s = spectrum("q", PAIR)
    cost = latency.priced({s.slot: s})[s.slot].cost
    offered = Prices("latency").offer(cost)
    assert 8 in offered.ranks
    assert 15 not in offered.ranks  # slower, despite fewer parameters
    assert 16 not in offered.ranks  # as many parameters as the dense matrix
    assert all(low < high for low, high in itertools.pairwise(offered.prices.tolist()))


def test_slot_that_saves_no_time_has_full_rank() -> None:
    latency = Latency(128, "a device", (1.0,), {(0, "q"): SlotTimes((1, 15), (1.2, 1.3), 1.0)})
    s = spectrum("q", PAIR)
    cost = latency.priced({s.slot: s})[s.slot].cost
    assert Prices("latency").offer(cost).ranks == [32]


def test_forms_of_a_part_have_equal_full_prices() -> None:
    narrowed, pairs = Form("mlp", "narrowed"), Form("mlp", "pairs")
    spectra = [
        spectrum("mlp", NARROWED, narrowed),
        spectrum("up", PAIR, pairs),
        spectrum("down", PAIR, pairs),
    ]
    times = {
        (0, "mlp"): proportional_times(NARROWED, (2, 30), 0.6),
        (0, "up"): proportional_times(PAIR, (1, 15), 0.1),
        (0, "down"): SlotTimes((1, 15), (1.2, 1.3), 1.0),  # no time to save
    }
    latency = Latency(128, "a device", (1.0,), times)
    priced = latency.priced({s.slot: s for s in spectra})
    ((_, forms),) = by_part(priced).items()
    dense_prices = {
        sum(s.cost.dense for s in form_spectra.values()) for form_spectra in forms.values()
    }
    assert len(dense_prices) == 1
    budget = make_budget("latency", 0.5, priced, latency.nanoseconds)
    assert budget.dense == dense_prices.pop()
    assert budget.limit == budget.dense - 500_000_000


def test_multiples_keep_the_prices_between_them() -> None:
    s = spectrum("qk", NARROWED)
    latency = Latency(128, "a device", (1.0,), {s.slot: proportional_times(NARROWED, (2, 16, 30))})
    plain, eights = (
        latency.priced({s.slot: variant})[s.slot].cost for variant in (s, s.in_multiples(8))
    )
    assert [eights.parameters(rank) for rank in (8, 10, 24)] == [
        plain.parameters(rank) for rank in (8, 10, 24)
    ]
    assert Prices("latency").offer(eights).ranks == [8, 16, 24, 32]


def test_rising_returns_the_nearest_ascending_sequence() -> None:
    assert rising([1, 2, 3]) == [1, 2, 3]
    assert rising([3, 1, 2]) == [2, 2, 2]
    assert rising([1, 4, 2, 5]) == [1, 3, 3, 5]
    assert rising([]) == []


def flops_recipe(model, text, **chosen) -> lrcore.Recipe:
    few = {"samples": 4, "seq_len": 32, "budget": "flops"}
    return lrcore.Recipe(str(model), data=str(text), **few, **chosen)


def test_cost_of_a_rank_counts_multiply_adds_per_token_and_cached_token() -> None:
    cost = Cost(full=32, per_rank=10, dense=320, step=2, per_cached=3, cached_dense=96)
    s = spectrum("qk", cost)
    repriced_cost = priced_in_multiply_adds({s.slot: s}, 100)[s.slot].cost
    assert repriced_cost.dense == multiply_adds(cost, 32, 100) == 320 + 100 * 96
    assert [repriced_cost.parameters(rank) for rank in (2, 16, 30)] == [
        rank * (10 + 100 * 3) for rank in (2, 16, 30)
    ]


def test_ranks_with_more_multiply_adds_than_the_dense_slot_are_not_offered() -> None:
    """A latent of keys is expanded for each token in the cache."""
    cost = Cost(full=32, per_rank=64, dense=1024, per_cached=32, cached_dense=32)
    s = spectrum("qk", cost)
    repriced_cost = priced_in_multiply_adds({s.slot: s}, 8)[s.slot].cost
    ranks = Prices("flops").offer(repriced_cost).ranks
    below = [rank for rank in ranks if rank < cost.full]
    assert below
    assert all(multiply_adds(cost, variant, 8) < multiply_adds(cost, 32, 8) for variant in below)
    assert max(below) < cost.cap


@pytest.mark.parametrize("method", ["a3", "svd_llm", "modegpt"])
def test_plan_removes_the_requested_share_of_flops(method, tiny_llama, story_file) -> None:
    model = lrcore.load(str(tiny_llama))
    recipe = flops_recipe(tiny_llama, story_file, method=method, refit="off", ratio=0.2)
    factors = lrcore.prepare(model, recipe)
    plans = [lrcore.allocate(factors, recipe.with_(ratio=share)) for share in (0.1, 0.2, 0.3)]
    for share, plan in zip((0.1, 0.2, 0.3), plans, strict=True):
        account = plan.account
        assert account.achieved == account.removed_flops
        assert share <= account.achieved < share + 0.02
        assert account.to_dict()["removed_flops"] == account.achieved
    flops = [plan.account.model.flops_per_token for plan in plans]
    assert all(larger > less for larger, less in itertools.pairwise(flops))
    small = lrcore.compress(model, recipe, factors, plans[1])
    assert small.account.model.flops_per_token == plans[1].account.model.flops_per_token


def test_methods_with_more_flops_for_the_cache_raise(tiny_llama, story_file) -> None:
    model = lrcore.load(str(tiny_llama))
    recipe = flops_recipe(tiny_llama, story_file, method="care", ratio=0.5)
    factors = lrcore.prepare(model, recipe)
    with pytest.raises(lrcore.InputError, match="changes keys and values only"):
        lrcore.allocate(factors, recipe)
