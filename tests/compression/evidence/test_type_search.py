"""The search for shares of matrix types."""

import builtins

import pytest

import lrcore
from lrcore.compression.evidence import type_search
from lrcore.compression.evidence.search import plan_loss
from lrcore.compression.evidence.type_search import best_weights
from lrcore.ranks.budget import Budget
from lrcore.ranks.policies import find_policy
from lrcore.ranks.policies.bolaco import BolacoOptions, slot_types


def test_search_lowers_the_loss_from_equal_weights(monkeypatch) -> None:
    monkeypatch.setattr(type_search, "RUNS", 25)
    goal, tried = {"down": 0.9, "o": 0.25, "qk": 0.5}, []

    def loss(weights) -> float:
        tried.append(weights)
        return sum((weights[name] - goal[name]) ** 2 for name in goal)

    best = best_weights(list(goal), loss, lambda *_: None)
    assert len(tried) == 25
    assert tried[0] == dict.fromkeys(goal, 1.0)
    assert all(0.2 <= weight <= 1 for weights in tried for weight in weights.values())
    assert loss(best) == min(map(loss, tried[:25])) < 0.1 * loss(tried[0])
    # plans tried after the random plans are better
    later, random = tried[18:25], tried[1 : type_search.RANDOM_RUNS]
    assert sum(map(loss, later)) / len(later) < 0.5 * sum(map(loss, random)) / len(random)


def test_types_have_one_share_each_and_are_no_worse_than_equal_weights(
    tiny_llama, story_file, monkeypatch
) -> None:
    monkeypatch.setattr(type_search, "RUNS", 12)
    model = lrcore.load(str(tiny_llama))
    recipe = lrcore.Recipe(
        data=str(story_file), samples=6, seq_len=32, method="bolaco", policy="bolaco", ratio=0.3
    )
    plain = lrcore.prepare(model, recipe.with_(policy="uniform"))
    factors = lrcore.prepare(model, recipe)
    plan = lrcore.allocate(factors, recipe)
    assert plan.summary()["achieved"] >= 0.3
    weights = factors.evidence.get("type_weights")
    assert weights.keys() == {"qk", "o", "gate", "up", "down"}
    budget = Budget("params", limit=7, dense=10)
    targets = find_policy("bolaco").share(factors.evidence, budget, BolacoOptions())
    types = slot_types(targets, 1)
    assert len({(types[slot], round(share, 9)) for slot, share in targets.items()}) == 5
    loss = plan_loss(model, plain, recipe, "type_weights")
    assert loss(weights) <= loss(dict.fromkeys(weights, 1.0)) + 1e-9
    monkeypatch.setattr(
        type_search, "best_weights", lambda *_: pytest.fail("the cache was not used")
    )
    assert lrcore.allocate(lrcore.prepare(model, recipe), recipe).ranks == plan.ranks


def test_queries_and_keys_share_a_type_within_each_group() -> None:
    slots = [(layer, name) for layer in range(6) for name in ("q", "k", "o")]
    types = slot_types(slots, 1)
    assert [types[3, name] for name in ("q", "k", "o")] == ["qk", "qk", "o"]
    types = slot_types(slots, 4)
    assert [types[layer, "k"] for layer in range(6)] == [f"qk.{n}" for n in (0, 0, 1, 2, 2, 3)]


def test_every_group_of_layers_has_separate_shares(tiny_llama, story_file, monkeypatch) -> None:
    monkeypatch.setattr(type_search, "RUNS", 11)
    model, options = lrcore.load(str(tiny_llama)), {"groups": 3}
    recipe = lrcore.Recipe(
        data=str(story_file), samples=6, seq_len=32, method="bolaco", policy="bolaco", ratio=0.3
    ).with_(policy_options=options)
    factors = lrcore.prepare(model, recipe)
    weights = factors.evidence.get("type_weights")
    assert len(weights) == 15
    assert lrcore.allocate(factors, recipe).summary()["achieved"] >= 0.3


def test_missing_optuna_raises_with_the_file_to_install(monkeypatch) -> None:
    real = builtins.__import__

    def without(name, *more_arguments):
        if name == "optuna":
            raise ImportError(name)
        return real(name, *more_arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(lrcore.InputError, match=r"requirements-search\.txt"):
        best_weights(["qk", "o"], lambda _: 0.0, lambda *_: None)
