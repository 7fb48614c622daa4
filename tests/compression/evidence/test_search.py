"""The search for shares of layers."""

import pytest

import lrcore
from lrcore.compression.evidence.losses import mean_loss
from lrcore.compression.evidence.plan_loss import measure_plan
from lrcore.compression.evidence.search import best_shares, moved
from lrcore.compression.solve.allocate import allocate


def test_search_lowers_the_loss_and_is_never_worse_than_equal_shares() -> None:
    best = (0.9, 0.5, 0.7, 0.7)
    calls = []

    def loss(shares) -> float:
        calls.append(shares)
        even = sum(shares) / len(shares)  # as in a budget, shares count relative to their mean
        return sum(
            (share - even + 0.7 - goal) ** 2 for share, goal in zip(shares, best, strict=True)
        )

    result = best_shares(4, 0.7, loss, lambda *_: None)
    assert loss(result) < 0.3 * loss((0.7,) * 4)
    assert result[0] > result[2] > result[1]
    assert len(set(calls)) <= 4 * (4 + 4) + 1
    assert (
        best_shares(
            3,
            0.5,
            lambda shares: abs(shares[0] - 0.5) + abs(shares[1] - 0.5) + abs(shares[2] - 0.5),
            print,
        )
        == (0.5,) * 3
    )


def test_moves_stay_within_the_valid_range() -> None:
    assert moved((0.9, 0.1, 0.5), [0], [1], 0.2) == (1.0, 0.05, 0.5)


@pytest.mark.parametrize("method", ["a3", "svd_llm"])
def test_mix_is_no_worse_than_uniform_and_uses_the_cache(
    tiny_llama, story_file, method: str, monkeypatch
) -> None:
    model = lrcore.load(str(tiny_llama))
    recipe = lrcore.Recipe(
        data=str(story_file), samples=6, seq_len=32, method=method, policy="mix", ratio=0.4
    )
    plain = lrcore.prepare(model, recipe.with_(policy="uniform"))
    with pytest.raises(lrcore.InputError, match="search"):
        lrcore.allocate(plain, recipe)
    factors = lrcore.prepare(model, recipe)
    plan = lrcore.allocate(factors, recipe)
    assert plan.summary()["achieved"] >= 0.4
    tokens = factors.calibration.tokens
    stream = lrcore.models.stream.LayerStream(model.network, tokens)

    def measure_loss(network):
        return mean_loss(network, 0, stream.hidden, tokens.split(8))

    uniform = allocate(plain, recipe.with_(policy="uniform"))
    losses = [
        measure_plan(model, factors, candidate, measure_loss) for candidate in (plan, uniform)
    ]
    assert losses[0] <= losses[1] + 1e-9
    with pytest.raises(lrcore.InputError, match="another budget"):
        lrcore.allocate(factors, recipe.with_(ratio=0.3))
    monkeypatch.setattr(
        "lrcore.compression.evidence.search.best_shares",
        lambda *_: pytest.fail("the cache was not used"),
    )
    assert lrcore.allocate(lrcore.prepare(model, recipe), recipe).ranks == plan.ranks
    small = lrcore.compress(model, recipe, plain)
    assert small.account.to_dict()["achieved"] == plan.summary()["achieved"]
