"""A budget of FLOPs: what a plan removes of them is what was asked for, and what the counter
counts.
"""

import itertools

import pytest
import torch

import lrcore
from lrcore.budget import Prices
from lrcore.compute import multiply_adds, priced
from lrcore.spectra import Cost, Spectrum


def one(cost: Cost) -> Spectrum:
    values = torch.linspace(2, 0.1, cost.full // cost.step).double()
    return Spectrum((0, "qk"), values, cost)


def of_flops(model, text, **chosen) -> lrcore.Recipe:
    few = {"samples": 4, "seq_len": 32, "budget": "flops"}
    return lrcore.Recipe(str(model), data=str(text), **few, **chosen)


def test_a_rank_costs_what_it_multiplies_for_the_token_and_for_each_one_in_the_cache() -> None:
    cost = Cost(full=32, per_rank=10, dense=320, step=2, per_cached=3, cached_dense=96)
    spectrum = one(cost)
    found = priced({spectrum.slot: spectrum}, 100)[spectrum.slot].cost
    assert found.dense == multiply_adds(cost, 32, 100) == 320 + 100 * 96
    assert [found.parameters(rank) for rank in (2, 16, 30)] == [
        rank * (10 + 100 * 3) for rank in (2, 16, 30)
    ]


def test_a_rank_that_multiplies_more_than_the_dense_slot_is_not_on_offer() -> None:
    """A latent of keys is raised for every token in the cache."""
    cost = Cost(full=32, per_rank=64, dense=1024, per_cached=32, cached_dense=32)
    spectrum = one(cost)
    found = priced({spectrum.slot: spectrum}, 8)[spectrum.slot].cost
    ranks = Prices("flops").offer(found).ranks
    below = [rank for rank in ranks if rank < cost.full]
    assert below
    assert all(multiply_adds(cost, one, 8) < multiply_adds(cost, 32, 8) for one in below)
    assert max(below) < cost.cap


@pytest.mark.parametrize("method", ["a3", "svd_llm", "modegpt"])
def test_a_plan_removes_the_share_that_was_asked_for(method, tiny_llama, story_file) -> None:
    model = lrcore.load(str(tiny_llama))
    recipe = of_flops(tiny_llama, story_file, method=method, refit="off", ratio=0.2)
    factors = lrcore.prepare(model, recipe)
    plans = [lrcore.allocate(factors, recipe.with_(ratio=share)) for share in (0.1, 0.2, 0.3)]
    for share, plan in zip((0.1, 0.2, 0.3), plans, strict=True):
        account = plan.account
        assert account.achieved == account.removed_flops
        assert share <= account.achieved < share + 0.02
        assert account.to_dict()["removed_flops"] == account.achieved
    flops = [plan.account.model.flops_per_token for plan in plans]
    assert all(more > less for more, less in itertools.pairwise(flops))
    small = lrcore.compress(model, recipe, factors, plans[1])
    assert small.account.model.flops_per_token == plans[1].account.model.flops_per_token


def test_a_method_that_spends_more_for_the_cache_is_refused_in_a_sentence(
    tiny_llama, story_file
) -> None:
    model = lrcore.load(str(tiny_llama))
    recipe = of_flops(tiny_llama, story_file, method="care", ratio=0.5)
    factors = lrcore.prepare(model, recipe)
    with pytest.raises(lrcore.InputError, match="changes keys and values only"):
        lrcore.allocate(factors, recipe)
