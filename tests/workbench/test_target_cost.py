"""The cost of a target: the increase in perplexity over the same plan without the target."""

import pytest

import lrcore
from workbench import words
from workbench.base import numbers
from workbench.state.plan_view import status_message, target_message
from workbench.state.store import Store


@pytest.fixture(scope="module")
def recipe(tiny_llama, story_file) -> lrcore.Recipe:
    return lrcore.Recipe(
        str(tiny_llama), data=str(story_file), samples=4, seq_len=32, method="a3", policy="probed"
    )


@pytest.fixture(scope="module")
def store(recipe, tmp_path_factory) -> Store:
    store = Store(tmp_path_factory.mktemp("runs"))
    store.factors(recipe)
    return store


def test_the_cost_of_a_target_compares_predicted_perplexities(store, recipe) -> None:
    target_recipe, anywhere = recipe.with_(target="llama.cpp", ratio=0.15), recipe.with_(ratio=0.15)
    store.factors(target_recipe)
    target_perplexity, free_perplexity = (
        store.plan(variant).predicted.perplexity for variant in (target_recipe, anywhere)
    )
    assert target_perplexity != free_perplexity
    message = status_message(store, target_recipe, store.plan(target_recipe))
    assert words.allocation.describe_target("llama.cpp") in message
    change = numbers.relative_change(target_perplexity / free_perplexity - 1)
    costs = words.allocation.TARGET_COST.format(
        *map(numbers.perplexity, (target_perplexity, free_perplexity)), change
    )
    assert costs in message


def test_without_a_prediction_the_message_says_how_to_get_the_cost(store, recipe) -> None:
    even = recipe.with_(policy="uniform", ratio=0.15, seed=73)  # no probes on disk
    target_recipe = even.with_(target="llama.cpp")
    store.factors(target_recipe)
    message = target_message(store, target_recipe, store.plan(target_recipe))
    assert (
        message
        == f"{words.allocation.describe_target('llama.cpp')} {words.allocation.TARGET_COST_UNKNOWN}"
    )
    assert not target_message(store, even, store.plan(even))
