"""The Allocation tab says what a target costs: the perplexity that the same method and policy are
predicted to have at the same budget where any form runs.
"""

import pytest

import lrcore
from workbench import numbers, target_text
from workbench.store import Store
from workbench.tabs.allocation import handlers


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
    said = handlers.standing(store, there, store.plan(there))
    assert target_text.of_target("llama.cpp") in said
    change = numbers.share(here / other - 1)
    costs = target_text.COSTS.format(*map(numbers.perplexity, (here, other)), change)
    assert costs in said


def test_where_nothing_is_predicted_it_says_how_to_learn_the_cost(store, recipe) -> None:
    even = recipe.with_(policy="uniform", ratio=0.15, seed=73)  # no probes on disk
    there = even.with_(target="llama.cpp")
    store.factors(there)
    said = handlers.cost_of_target(store, there, store.plan(there))
    assert said == f"{target_text.of_target('llama.cpp')} {target_text.COSTS_UNKNOWN}"
    assert not handlers.cost_of_target(store, even, store.plan(even))
