"""The curve of perplexity against the budget, and clicks on it."""

import json

import pytest
from page_values import click

import lrcore
from lrcore.compression.evidence import layer_probes
from lrcore.compression.pipeline.choose_plan import CurvePoint
from lrcore.ranks import prediction
from workbench.figures.budget_curve import MIN_RISE, BudgetCurves, budget_curves
from workbench.state.store import Store
from workbench.tabs.allocation import budget_curve, measured_cells
from workbench.widgets import polling
from workbench.widgets.form import input_values
from workbench.words.allocation import NOT_PREDICTED

POINTS = (CurvePoint(0.1, 8.5, 8.0, 9.0), CurvePoint(0.5, 20.0, None, None))


def test_the_figure_has_the_curve_its_interval_and_the_dense_model() -> None:
    beyond = CurvePoint(0.9, 1e9, None, None)
    uniform, other_policies = {"fused, uniform": POINTS}, {"a3, probed": POINTS[:1]}
    curves = BudgetCurves(
        (*POINTS, beyond), "fused, probed", 8.0, uniform, other_policies, current=(0.3, 7.9)
    )
    figure = json.loads(budget_curves(curves))
    even, of_other, other_trace, band, chosen_trace, dense, current_trace = figure["data"]
    assert [even["name"], other_trace["name"], chosen_trace["name"]] == [
        *uniform,
        *other_policies,
        "fused, probed",
    ]
    assert (dense["name"], dense["mode"], dense["y"]) == ("dense: 8.0000", "lines", [MIN_RISE] * 2)
    assert figure["layout"]["yaxis"]["ticktext"][0] == "dense"
    assert of_other["fill"] == band["fill"] == "toself"  # each method has an interval
    assert of_other["y"] == [MIN_RISE, 0.125]
    assert (chosen_trace["x"], chosen_trace["y"]) == (
        [0.1, 0.5],
        [0.0625, 1.5],
    )  # without points out of range
    assert chosen_trace["customdata"] == [[0.1, 8.5, "10% removed"], [0.5, 20.0, "50% removed"]]
    assert band["y"] == [MIN_RISE, 0.125]  # only points with an interval
    assert (current_trace["x"], current_trace["y"]) == ([0.3], [MIN_RISE])  # no rise
    assert figure["layout"]["yaxis"]["type"] == "log"


def test_a_click_sets_the_budget_and_updates_the_tabs() -> None:
    ratio, choice = budget_curve.set_budget(click(custom=[0.35]), ["fused", "probed", 1.0])
    assert (ratio, choice[:2]) == (0.35, ["fused", "probed"])
    assert choice[2] != 1.0
    nothing = budget_curve.set_budget(click(), ["fused", "probed", 1.0])
    assert all(isinstance(update, dict) for update in nothing)  # gr.skip()


@pytest.fixture(scope="module")
def store(tmp_path_factory, tiny_llama, story_file):
    store = Store(tmp_path_factory.mktemp("runs"))
    recipe = lrcore.Recipe(
        str(tiny_llama), data=str(story_file), samples=4, seq_len=32, method="svd", policy="probed"
    )
    store.factors(recipe)
    return store, recipe


def test_the_curve_equals_the_prediction_of_the_core(store) -> None:
    store, recipe = store
    figure, words = budget_curve.draw(store, *input_values(recipe))
    traces = {trace["name"]: trace for trace in json.loads(figure)["data"]}
    points = lrcore.predicted_curve(store.peek_factors(recipe), recipe)
    curve_points = traces["svd, probed"]["customdata"]
    assert [row[:2] for row in curve_points] == [
        [point.ratio, point.perplexity] for point in points
    ][: len(curve_points)]
    plan = store.plan(recipe)
    assert traces["this plan"]["customdata"][0][1] == plan.predicted.perplexity
    assert "svd, uniform" in traces
    assert f"dense: {plan.dense_perplexity:.4f}" in traces
    assert "Click a point" in words


def test_a_plan_out_of_the_range_of_predictions_has_no_point(store, monkeypatch) -> None:
    store, recipe = store
    budget_curve.curve(store, recipe)  # with trustworthy points
    monkeypatch.setattr(prediction, "WIDEST", -1.0)  # no interval is narrow enough
    beyond = recipe.with_(ratio=0.37)
    figure, _ = budget_curve.draw(store, *input_values(beyond))
    assert "svd, probed" in figure
    assert "this plan" not in figure
    size = store.plan(beyond).summary()
    assert size["predicted_perplexity"] is None
    assert NOT_PREDICTED in measured_cells.predicted_cell(store.plan(beyond))
    assert lrcore.predicted_curve(store.peek_factors(recipe), recipe) == ()


def test_measured_runs_of_the_model_and_method_are_points(store) -> None:
    store, recipe = store
    dense = store.dense(recipe)
    run = store.runs.write("one", recipe, lrcore.compress(dense, recipe, store.factors(recipe)))
    other_method_run = store.runs.write("two", recipe.with_(method="svd_llm"), store.dense(recipe))
    protocol = {"data": "stories", "samples": 2, "seq_len": 32}
    for measured_run in (run, other_method_run):
        figures = {"perplexity": 9.0, "dense_perplexity": 8.0, "protocol": protocol}
        store.runs.add_evaluation(measured_run.id, figures)
    figure, words = budget_curve.draw(store, *input_values(recipe))
    points = next(trace for trace in json.loads(figure)["data"] if trace["name"] == "measured runs")
    assert (points["x"], points["y"]) == ([run.account.achieved], [0.125])
    assert points["customdata"][0][3] == "probed: one"
    assert points["marker"]["symbol"] == ["circle"]
    assert "measured on stories" in words
    even = recipe.with_(policy="uniform")
    (matches,) = budget_curve.measured_runs(store.runs.all(), even, run.account.budget)
    assert not budget_curve.measured_point(
        *matches, even
    ).is_displayed_policy  # the run has a different policy


@pytest.mark.parametrize("policy", ["uniform", "probed"])
def test_without_probes_the_page_offers_to_measure(store, policy) -> None:
    store, recipe = store
    uniform = recipe.with_(method="svd_llm", policy="uniform", seed=71)  # no probes on disk
    store.factors(uniform)
    figure, words = budget_curve.draw(store, *input_values(uniform.with_(policy=policy)))
    assert figure == ""
    assert "data-action='measure'" in words


def test_probes_on_disk_predict_the_curve_of_a_policy_without_probes(
    store, tmp_path, monkeypatch
) -> None:
    """As after a restart of the server, or with the included probes."""
    _, recipe = store
    monkeypatch.setattr(layer_probes.Probing, "_divergences", None)  # fails if probing starts
    fresh, even = Store(tmp_path), recipe.with_(policy="marginal")
    fresh.factors(even)
    figure, _ = budget_curve.draw(fresh, *input_values(even))
    assert "svd, marginal" in {trace["name"] for trace in json.loads(figure)["data"]}
    assert fresh.plan(even).predicted is not None


def test_plans_are_predicted_as_soon_as_their_method_is_probed(store) -> None:
    store, recipe = store
    even = recipe.with_(method="a3", policy="uniform", seed=72)  # no probes on disk
    store.factors(even)
    assert store.plan(even).predicted is None
    before = polling.factors_state(store, even)
    store.factors(even.with_(policy="probed"))
    assert store.plan(even).predicted is not None
    assert polling.factors_state(store, even) != before  # the page redraws the curve
