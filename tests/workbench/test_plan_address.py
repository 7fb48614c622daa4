"""The plan in the address bar, tested without a browser."""

import json
from types import SimpleNamespace

import pytest

import lrcore
from workbench.widgets import plan_address
from workbench.widgets.form import NAMES, input_values
from workbench.widgets.plan_address import changed, linked, open_plan, parameters

PLANS = [
    lrcore.Recipe(),
    lrcore.Recipe(
        method="svd_llm", ratio=0.35, budget="all_params", rounding="nearest", rank_multiple=8
    ),
    lrcore.Recipe(method="fused", target="llama.cpp"),
    lrcore.Recipe(policy="softmax", temperature=0.25, component_ratios={"qk": 0.3, "mlp": 0.1}),
    lrcore.Recipe(
        method="latentllm",
        options={"vo": "attention"},
        policy="owl",
        policy_options={"threshold": 7.0},
        rank_overrides={"0.q": 12, "3.o": 20},
    ),
]


@pytest.mark.parametrize("recipe", PLANS)
def test_a_plan_survives_the_round_trip_through_an_address(recipe) -> None:
    query = {name: text for name, text in parameters(recipe).items() if text}
    plan = linked(query)
    assert (plan.recipe if plan else lrcore.Recipe()) == recipe
    assert not plan or not plan.messages
    written = json.loads(plan_address.address_of(*input_values(recipe)))
    assert {name for name, text in written.items() if text} == query.keys()


@pytest.mark.parametrize(
    ("query", "excerpt"),
    [
        ({"method": "svdllm"}, "svd_llm"),
        ({"policy": "nosuch"}, "policy"),
        ({"ratio": "much"}, "ratio"),
        ({"ratio": "7"}, "ratio"),
        ({"options": "vo"}, "name=value"),
        ({"method": "a3", "options": "nosuch=1"}, "nosuch"),
        ({"rank_overrides": "0.qk=<script>"}, "rank"),
        ({"rank_multiple": 5000 * "9"}, "5\u202f000 characters"),
    ],
)
def test_an_invalid_parameter_is_reported_and_the_others_are_used(query, excerpt) -> None:
    plan = linked(query | {"rounding": "nearest"})
    assert plan.recipe.rounding == "nearest"
    (sentence,) = plan.messages
    assert excerpt in sentence
    assert len(sentence) < 600


def test_a_parameter_nested_too_deeply_is_refused() -> None:
    with pytest.raises(lrcore.InputError):
        changed(lrcore.Recipe(), "ratio", 3000 * "[")


def test_an_address_without_a_plan_leaves_the_form_unchanged() -> None:
    query = {"tab": "Allocation", "layer": "3", "runs": "abc"}
    unchanged = open_plan(query)
    assert unchanged["__type__"] == "update"
    filled = open_plan(query | {"ratio": "0.4", "method": "svd"})
    assert filled[NAMES.index("ratio")] == 0.4
    assert filled[NAMES.index("method")] == "svd"


def test_opening_a_link_sends_no_request_to_the_hub(monkeypatch) -> None:
    started = []
    monkeypatch.setattr(
        plan_address, "start_analysis", lambda *arguments, **_: started.append(arguments)
    )
    for query, count in (({"model": "someone/model"}, 0), ({"ratio": "0.4"}, 1), ({}, 2)):
        browser = SimpleNamespace(session_hash="here")
        recipe = linked(query).recipe if query else lrcore.Recipe()
        plan_address.prepare_linked(None, browser, query, *input_values(recipe))
        assert len(started) == count
