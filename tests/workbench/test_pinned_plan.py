"""A pinned plan, compared with the current plan in bars and cells."""

import json
from math import log

import pytest
from page_values import BROWSER

import lrcore
from workbench import words
from workbench.base import numbers
from workbench.state.browsers import MAX_BROWSERS, BrowserState
from workbench.state.live import LiveFigure
from workbench.state.store import Store
from workbench.tabs.allocation import handlers, measured_cells
from workbench.views import markup
from workbench.views.term_markup import marked
from workbench.widgets.form import input_values


@pytest.fixture(scope="module")
def recipe(tiny_llama, story_file):
    return lrcore.Recipe(
        str(tiny_llama), data=str(story_file), samples=4, seq_len=32, method="svd", policy="probed"
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory, recipe):
    store = Store(tmp_path_factory.mktemp("runs"))
    store.factors(recipe)
    return store


def draw_traces(store, recipe):
    bars, caption, summary, *_ = handlers.draw_plan(store, BROWSER, *input_values(recipe))
    return json.loads(bars)["data"], caption, summary


def test_gray_bars_are_the_pinned_plan_until_it_is_unpinned(store, recipe):
    other_recipe, values = recipe.with_(ratio=0.5), input_values(recipe)
    assert draw_traces(store, other_recipe)[0][0]["name"] == "uniform"
    assert measured_cells.toggle_pin(store, BROWSER, *values).value == words.allocation.UNPIN
    data, caption, summary = draw_traces(store, other_recipe)
    (gray, current_bars), plan, pinned = data[:2], store.plan(other_recipe), store.plan(recipe)
    layer, component, rank, full, *_ = current_bars["customdata"][0]
    before = pinned.ranks[layer, component]
    assert gray["name"] == "pinned"
    assert str(rank) in [text for trace in data[2:4] for text in trace["text"]]
    assert gray["y"][0] == before / pinned.spectra[layer, component].cost.full
    delta = next(trace for trace in data if trace["name"] == f"Δ {component}")
    assert delta["y"][0] == (rank - before) / full
    assert delta["hovertext"][0] == numbers.signed(rank - before)
    changes = [change for trace in data for change in trace.get("hovertext", ())]
    assert sorted(data[-1]["text"]) == sorted(
        change_text for change_text in changes if change_text != "+0"
    )
    assert {trace["name"][2:] for trace in data if "Δ" in trace["name"]} == {
        n for _, n in plan.ranks
    }
    assert min(y for trace in data if "Δ" in trace["name"] for y in trace["y"]) < 0  # lower ranks
    assert "svd, probed, 20.0%" in caption
    change = plan.predicted.perplexity / pinned.predicted.perplexity - 1
    assert numbers.relative_change(change, 2) in summary
    assert words.allocation.PINNED_MEASURED in summary
    assert "with uniform ranks" not in summary
    assert words.allocation.SAME_RANKS in draw_traces(store, recipe)[1]
    assert measured_cells.toggle_pin(store, BROWSER, *values).value == words.allocation.PIN
    assert draw_traces(store, other_recipe)[0][0]["name"] == "uniform"


def test_a_pinned_plan_of_different_components_or_text_is_not_compared(store, recipe):
    a3 = recipe.with_(method="a3", policy="uniform")
    store.factors(a3)
    measured_cells.toggle_pin(store, BROWSER, *input_values(recipe))
    data, caption, _ = draw_traces(store, a3)
    assert data[0]["name"] == "uniform"
    assert "different components" in caption
    assert store.browsers.comparable_pin(BROWSER.session_hash, recipe.with_(seed=1)) is None
    measured_cells.toggle_pin(store, BROWSER, *input_values(recipe))


def test_a_measured_change_beyond_two_standard_errors_is_a_verdict():
    figures = [LiveFigure(value, 1.5, {}, losses=(log(value), 0.7)) for value in (2.1, 2.0)]
    cell = markup.pinned_cell("p", *figures)
    assert "2.0000" in cell
    assert "+5.00% ± 2.56%" in cell  # standard error of ln 1.05 and 0
    assert "hurts" not in cell
    surer = [LiveFigure(value, 1.5, {}, losses=(log(value),) * 2) for value in (2.1, 2.0)]
    assert "hurts" in markup.pinned_cell("p", *surer)
    assert "data-known='False'" in markup.pinned_cell("p", None, figures[0])
    assert "not finite" in markup.pinned_cell("p", LiveFigure(None, 1.5, {}), figures[0])


def test_the_number_of_stored_pinned_plans_is_limited(recipe):
    browser_state = BrowserState()
    for browser in range(MAX_BROWSERS + 1):
        browser_state.pin(browser, recipe)
    assert (browser_state.pinned_recipe(0), browser_state.pinned_recipe(MAX_BROWSERS)) == (
        None,
        recipe,
    )


def test_predicted_and_measured_changes_are_for_the_same_number_of_tokens(store, recipe):
    plan, summary = store.plan(recipe), draw_traces(store, recipe)[2]
    dense = plan.dense_perplexity
    few = plan.predicted_for(LiveFigure().tokens)
    assert few.perplexity == plan.predicted.perplexity
    assert plan.predicted_for(16).high > few.high
    assert marked(words.allocation.CHANGE_PREDICTED) in summary
    low, high = (numbers.relative_change(end / dense - 1) for end in (few.low, few.high))
    assert f"90 % interval {low} to {high} on" in summary
    figure = LiveFigure(2.0, 1.6, {}, losses=(log(2.0),) * 64)
    many = plan.predicted_for(figure.tokens)
    low = numbers.relative_change(many.low / dense - 1)
    assert f"90 % interval {low} to" in measured_cells.predicted_cell(plan, figure)
    cell = markup.actual_cell("p", figure)
    assert "<b>+25.0%</b>" in cell
    assert "perplexity 2.0000, dense 1.6000" in cell
    reference = markup.uniform_cell("p", LiveFigure(1.7, 1.6, {}, losses=(log(1.7),)), figure)
    assert "<b>+25.0%</b>" in reference
