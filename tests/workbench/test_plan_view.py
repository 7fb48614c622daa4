"""The values of the Allocation tab for a recipe, without Gradio."""

import os
from dataclasses import replace

import fresh
import pytest
from page_server import ROOT

import lrcore
from workbench import words
from workbench.jobs import AnalyzeJob
from workbench.state.keys import analysis_recipe, model_key
from workbench.state.plan_view import (
    PlanView,
    distillation_message,
    plan_view,
    uniform_message,
)
from workbench.state.store import Store

BROWSER = "browser"


@pytest.fixture(scope="module")
def recipe(tiny_llama, story_file):
    return lrcore.Recipe(
        model=str(tiny_llama),
        data=str(story_file),
        samples=4,
        seq_len=32,
        method="svd",
        policy="softmax",
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Use an empty cache folder, without probes of other tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LRCORE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory, recipe, cache):
    store = Store(tmp_path_factory.mktemp("runs"))
    store.factors(recipe)
    store.objects.put("pace", model_key(recipe), 1e-3)
    return store


def test_plan_view_needs_no_gradio():
    code = "import sys, workbench.state.plan_view; assert 'gradio' not in sys.modules"
    done = fresh.project().run(["-c", code], os.environ, ROOT)
    assert done.returncode == 0, done.stderr


def test_without_factors_there_is_neither_a_plan_nor_an_error(store, recipe):
    unfactorized = recipe.with_(seed=1)
    assert plan_view(store, unfactorized) == PlanView(unfactorized, unfactorized)


def test_a_plan_comes_with_its_size_and_messages(store, recipe):
    view = plan_view(store, recipe, BROWSER)
    assert (view.plan, view.uniform) == (store.plan(recipe), store.uniform_plan(recipe))
    assert view.reference is view.uniform
    assert view.displayed_recipe == recipe
    assert view.size == view.plan.summary()
    assert view.live_key == store.live_key(recipe) != ""
    assert "svd, softmax" in view.caption
    comparison, _ = view.messages
    assert "layer" in comparison
    assert (view.error, view.missing_evidence) == ("", None)


def test_an_almost_removed_component_is_named_unless_it_was_probed(store, recipe):
    plan, uniform = store.plan(recipe), store.uniform_plan(recipe)
    few = replace(plan, ranks={**plan.ranks, (1, "q"): 1})
    assert words.allocation.CUT in uniform_message(few, uniform)
    assert words.allocation.CUT not in uniform_message(replace(few, by_probes=True), uniform)
    assert words.allocation.CUT not in uniform_message(plan, uniform)


def test_ranks_by_softmax_are_explained_by_the_block_influence(store, recipe):
    influences = store.factors(recipe).evidence.influence["block"]
    view = plan_view(store, recipe, BROWSER)
    shares = {
        slot: rank / view.plan.spectra[slot].cost.full for slot, rank in view.plan.ranks.items()
    }
    highest, lowest = max(shares, key=shares.get)[0], min(shares, key=shares.get)[0]
    assert influences[highest] > influences[lowest]
    for layer in (highest, lowest):
        assert f"layer {layer}: {influences[layer]:.3f}" in view.messages[0]
    for other in ({"policy": "energy"}, {"rank_overrides": {"1.q": 3}}):
        assert "Block Influence" not in plan_view(store, recipe.with_(**other)).messages[0]


def test_uniform_ranks_have_a_message(store, recipe):
    view = plan_view(store, recipe.with_(policy="uniform"))
    assert view.messages[0] == words.allocation.UNIFORM_BARS
    timed = replace(view.plan, budget="latency")
    assert uniform_message(timed, timed) == words.allocation.UNIFORM_TIMES


def test_an_impossible_rank_is_an_error_without_a_plan(store, recipe):
    view = plan_view(store, recipe.with_(rank_overrides={"7.mlp": 3}))
    assert view.plan is None
    assert "layers 0 to 2" in view.error
    assert view.messages == ()


def test_the_pinned_plan_replaces_uniform_ranks(store, recipe):
    pinned = recipe.with_(ratio=0.5)
    store.browsers.pin(BROWSER, pinned)
    view = plan_view(store, recipe, BROWSER)
    assert (view.pinned_recipe, view.reference) == (pinned, store.plan(pinned))
    assert "svd, softmax, 50.0%" in view.messages[0]
    assert plan_view(store, pinned, BROWSER).messages[0] == words.allocation.SAME_RANKS
    assert plan_view(store, recipe, "another browser").pinned is None
    a3 = recipe.with_(method="a3")
    store.factors(a3)
    other_slots = plan_view(store, a3, BROWSER)
    assert other_slots.pinned is not None
    assert other_slots.reference is other_slots.uniform
    store.browsers.pin(BROWSER, None)


def test_the_previous_policy_is_displayed_while_evidence_is_missing(store, recipe, monkeypatch):
    store.browsers.set_displayed(BROWSER, recipe)
    probed = recipe.with_(policy="probed")
    view = plan_view(store, probed, BROWSER)
    assert view.displayed_recipe == recipe
    assert view.plan is store.plan(recipe)
    assert (view.live_key, view.messages) == ("", ())
    assert view.missing_evidence.seconds > 0
    assert not view.missing_evidence.is_running
    assert plan_view(store, probed, "another browser").displayed_recipe.policy == "uniform"

    class Waiting:
        job = AnalyzeJob(analysis_recipe(probed))

    monkeypatch.setattr(store.jobs, "waiting", lambda: [Waiting])
    assert plan_view(store, probed, BROWSER).missing_evidence.is_running


def test_the_message_names_the_target(store, recipe):
    limited = recipe.with_(method="a3", policy="uniform", target="llama.cpp")
    store.factors(limited)
    message = plan_view(store, limited).messages[1]
    assert message.startswith(words.allocation.describe_target("llama.cpp"))
    assert message.endswith(words.allocation.TARGET_COST_UNKNOWN)


def test_a_distillation_by_default_is_announced(store, recipe):
    """Its perplexities on the page are of the model before it."""
    store.dense(recipe)
    distilled = recipe.with_(method="fused", policy="probed", samples=4096)
    assert distillation_message(store, distilled)
    for other in (distilled.with_(refit="on"), distilled.with_(refit="distilled"), recipe):
        assert distillation_message(store, other) == ""
