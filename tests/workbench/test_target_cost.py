"""The Allocation tab says what a target costs: the perplexity that the same method and policy are
predicted to have at the same budget where any form runs.
"""

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


def test_a_target_costs_what_the_other_forms_would_have_kept(store, recipe) -> None:
    there, anywhere = recipe.with_(target="llama.cpp", ratio=0.15), recipe.with_(ratio=0.15)
    store.factors(there)
    here, other = (store.plan(one).predicted.perplexity for one in (there, anywhere))
    assert here != other
    said = status_message(store, there, store.plan(there))
    assert words.allocation.describe_target("llama.cpp") in said
    change = numbers.relative_change(here / other - 1)
    costs = words.allocation.TARGET_COST.format(*map(numbers.perplexity, (here, other)), change)
    assert costs in said


def test_where_nothing_is_predicted_it_says_how_to_learn_the_cost(store, recipe) -> None:
    even = recipe.with_(policy="uniform", ratio=0.15, seed=73)  # no probes on disk
    there = even.with_(target="llama.cpp")
    store.factors(there)
    said = target_message(store, there, store.plan(there))
    assert (
        said
        == f"{words.allocation.describe_target('llama.cpp')} {words.allocation.TARGET_COST_UNKNOWN}"
    )
    assert not target_message(store, even, store.plan(even))
