"""Measurements in the lists of methods and policies."""

import html
import json
from types import SimpleNamespace

import pytest
from test_comparing import make_run

import lrcore
from workbench import words
from workbench.state.live import LiveMeasurements, LiveRequest, figure_key
from workbench.state.objects import ObjectCache
from workbench.state.quality import Quality, measured_qualities
from workbench.views.picker_markup import measured

SMALL = lrcore.Recipe(samples=4, seq_len=32)


@pytest.fixture(scope="module")
def live():
    """Measurements with one figure, of the initial plan."""
    dense = lrcore.load(SMALL.model)
    factors = lrcore.prepare(dense, SMALL)
    live = LiveMeasurements(ObjectCache())
    live.measure(request_of(factors, SMALL), dense, lambda *_: None)
    live.request(request_of(factors, SMALL.with_(policy="energy")))  # not measured
    return live


def request_of(factors, recipe):
    plan = lrcore.allocate(factors, recipe)
    return LiveRequest(figure_key(factors, recipe, plan), recipe.policy, factors, recipe, plan)


def evaluated_run(perplexity, **protocol):
    run = make_run("run", SMALL.with_(policy="waterfill", seed=7))
    values = {"perplexity": perplexity, "dense_perplexity": 2.0, "protocol": protocol}
    run.evaluations.append(values)
    return run


def store_of(runs, live):
    return SimpleNamespace(runs=SimpleNamespace(all=lambda: runs), live=live)


def test_runs_and_live_figures_of_the_model_are_measurements(live):
    live.drop_request("energy")
    runs = [evaluated_run(3.0), evaluated_run(9.0, on_calibration_text=True)]
    qualities = measured_qualities(store_of(runs, live), SMALL)
    assert [quality.policy for quality in qualities] == ["waterfill", "uniform"]
    assert qualities[0].change == 0.5
    assert qualities[1].removed == pytest.approx(SMALL.ratio, abs=0.01)
    assert 0 < qualities[1].change < 0.2
    assert measured_qualities(store_of(runs, live), SMALL.with_(budget="kv")) == []
    assert measured_qualities(store_of(runs, live), SMALL.with_(model="demo-opt")) == []


def test_each_entry_has_the_measurement_of_the_nearest_size():
    qualities = [
        Quality("a3", "energy", "params", 0.2, 0.03),
        Quality("a3", "uniform", "params", 0.2, 0.05),
        Quality("a3", "uniform", "params", 0.6, 0.01),
        Quality("care", "uniform", "kv", 0.3, 0.0),
    ]
    hidden = measured(qualities, SMALL.with_(method="a3", ratio=0.25))
    lists = json.loads(html.unescape(hidden.split("data-lists='")[1].split("'")[0]))
    by_method, by_policy = lists["field-method"], lists["field-policy"]
    assert by_method["a3"] == (
        "Measured with energy: perplexity +3.0%, 20.0% of decoder parameters removed"
    )
    assert "30.0% of KV cache" in by_method["care"]
    assert "+5.0%, 20.0%" in by_policy["uniform"]
    assert {*by_policy} == {"energy", "uniform"}


@pytest.mark.parametrize("field", ["method", "policy"])
def test_the_recommended_entries_are_first(field):
    names = [*words.pickers.summaries(field)]
    assert tuple(names[:5]) == words.pickers.RECOMMENDED[field]
    rows = lrcore.list_methods() if field == "method" else lrcore.list_policies()
    assert sorted(names) == sorted(row["name"] for row in rows)
    assert all(words.pickers.summaries(field).values())
