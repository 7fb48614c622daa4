"""A pinned plan stands behind the bars, and in the cells, until it is let go."""

import json
from math import log

import pytest
from page_values import BROWSER

import lrcore
from workbench import markup, numbers, pin_text
from workbench.form import input_values
from workbench.live import Figure
from workbench.shown import KEPT, Shown
from workbench.store import Store
from workbench.tabs.allocation import handlers, pin


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


def drawn(store, recipe):
    bars, caption, summary, *_ = handlers.draw_plan(store, BROWSER, *input_values(recipe))
    return json.loads(bars)["data"], caption, summary


def test_the_ghost_is_the_pinned_plan_until_it_is_let_go(store, recipe):
    other, values = recipe.with_(ratio=0.5), input_values(recipe)
    assert drawn(store, other)[0][0]["name"] == "uniform"
    assert pin.press(store, BROWSER, *values).value == pin_text.UNPIN
    data, caption, summary = drawn(store, other)
    (grey, own), plan, pinned = data[:2], store.plan(other), store.plan(recipe)
    layer, component, rank, full = own["customdata"][0]
    before = pinned.ranks[layer, component]
    assert grey["name"] == "pinned"
    assert str(rank) in [one for trace in data[2:4] for one in trace["text"]]
    assert grey["y"][0] == before / pinned.spectra[layer, component].cost.full
    delta = next(one for one in data if one["name"] == f"Δ {component}")
    assert delta["y"][0] == (rank - before) / full
    assert delta["hovertext"][0] == numbers.signed(rank - before)
    changes = [change for one in data for change in one.get("hovertext", ())]
    assert sorted(data[-1]["text"]) == sorted(one for one in changes if one != "+0")
    assert {one["name"][2:] for one in data if "Δ" in one["name"]} == {n for _, n in plan.ranks}
    assert min(y for one in data if "Δ" in one["name"] for y in one["y"]) < 0  # less is kept
    assert "svd, probed, 20.0%" in caption
    change = plan.predicted.perplexity / pinned.predicted.perplexity - 1
    assert numbers.share(change, 2) in summary
    assert pin_text.MEASURED in summary
    assert "with uniform ranks" not in summary
    assert pin_text.SAME in drawn(store, recipe)[1]
    assert pin.press(store, BROWSER, *values).value == pin_text.PIN
    assert drawn(store, other)[0][0]["name"] == "uniform"


def test_a_pinned_plan_of_other_components_or_another_text_is_no_ghost(store, recipe):
    a3 = recipe.with_(method="a3", policy="uniform")
    store.factors(a3)
    pin.press(store, BROWSER, *input_values(recipe))
    data, caption, _ = drawn(store, a3)
    assert data[0]["name"] == "uniform"
    assert "other components" in caption
    assert store.shown.pinned_beside(BROWSER.session_hash, recipe.with_(seed=1)) is None
    pin.press(store, BROWSER, *input_values(recipe))


def test_the_measured_change_is_said_and_beyond_two_standard_errors_is_a_verdict():
    figures = [Figure(value, 1.5, {}, losses=(log(value), 0.7)) for value in (2.1, 2.0)]
    cell = markup.against_pinned("p", *figures)
    assert "2.0000" in cell
    assert "+5.00% ± 2.56%" in cell  # of ln 1.05 and 0
    assert "hurts" not in cell
    surer = [Figure(value, 1.5, {}, losses=(log(value),) * 2) for value in (2.1, 2.0)]
    assert "hurts" in markup.against_pinned("p", *surer)
    assert "data-known='False'" in markup.against_pinned("p", None, figures[0])
    assert "not finite" in markup.against_pinned("p", Figure(None, 1.5, {}), figures[0])


def test_pinned_plans_of_many_browsers_are_forgotten(recipe):
    shown = Shown()
    for browser in range(KEPT + 1):
        shown.pin(browser, recipe)
    assert (shown.pinned(0), shown.pinned(KEPT)) == (None, recipe)
