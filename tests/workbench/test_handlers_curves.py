"""The handlers of the Spectra and Allocation tabs, called as a click or a slider would."""

import asyncio
import json
import time

import gradio as gr
import pandas as pd
import pytest
from page_values import BROWSER, click

import lrcore
from workbench import hand, markup, numbers, text
from workbench.figures import contrast
from workbench.figures.allocation import CHOSEN_LINE
from workbench.figures.cell import Cell, cell_figures
from workbench.form import FIELD_NAMES, Form, input_values
from workbench.keys import calibration_key
from workbench.shown import CONTEXT
from workbench.store import Store
from workbench.tabs import spectra
from workbench.tabs.allocation import (
    budget_curve,
    handlers,
    network,
    options,
    rank_editor,
    ranks,
)

RECIPE = lrcore.Recipe(samples=4, seq_len=32, ratio=0.3)
KEY = list(calibration_key(RECIPE))
MADE_OF = "demo-llama · calibrated on stories: 4 random windows × 32 tokens, seed 0"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("runs"))
    store.analysis(RECIPE)
    store.factors(RECIPE)
    return store


@pytest.fixture
def empty(tmp_path):
    return Store(tmp_path)


def test_the_heatmap_needs_an_analysis(store, empty):
    figure, scatter, help_line = spectra.draw_heatmap(store, ["effective_rank", 0.9, "aware"], KEY)
    assert "qk" in json.loads(figure)["data"][0]["y"]
    cells = json.loads(figure)["data"][0]
    assert cells["y"].index(" ") == cells["y"].index("mlp") + 1  # components apart from matrices
    assert (cells["zmin"], cells["zmax"]) == (0, 1)
    assert json.loads(figure)["caption"] == f"Effective rank, activation-aware · {MADE_OF}"
    assert scatter == ""
    assert "entropy" in help_line
    controls = ["effective_rank", 0.9, "aware"]
    figure, _, note = spectra.draw_heatmap(empty, controls, KEY, *input_values(RECIPE))
    assert figure == ""
    assert text.NOT_ANALYSED in note


def test_a_measure_shows_the_controls_that_it_uses():
    shown = {
        measure: [part["visible"] for part in spectra.controls_of(measure)]
        for measure in text.MEASURES
    }
    assert shown.pop("energy_rank") == [True, True]
    assert shown.pop(spectra.LOSS) == [False, False]
    assert all(value == [False, True] for value in shown.values())


def test_a_click_on_a_cell_selects_and_draws_it(store):
    event = click(x=1, y="ov", custom=[1, "ov"])
    slot, mark, drawn, _, values, energy, heading = spectra.click_cell(
        store, event, [0, "qk"], [-1, "log", []], KEY, *input_values(RECIPE)
    )
    assert slot == drawn == [1, "ov"]
    assert json.loads(mark) == [1, "ov", True]
    rank = store.plan(RECIPE).ranks[1, "ov"]
    for figure in (values, energy):
        assert json.loads(figure)["layout"]["shapes"][0]["x0"] == rank
        assert json.loads(figure)["caption"] == f"Layer 1 · ov · {MADE_OF}"
    assert f"rank {rank} loses at least" in heading
    again = spectra.draw_other_cell(store, drawn, slot, [-1, "log", []], KEY, *input_values(RECIPE))
    assert len(set(map(str, again))) == 1  # drawn already


@pytest.mark.parametrize(("typed", "drawn"), [(2.0, 0.95), (-1.0, 0.01), (None, 0.01)])
def test_of_a_ratio_beyond_the_slider_its_end_is_drawn_and_said(store, typed, drawn):
    values, nearest = input_values(RECIPE), input_values(RECIPE.with_(ratio=drawn))
    values[0][FIELD_NAMES.index("ratio")] = typed
    for draw in (handlers.draw_plan, handlers.draw_plan_by_temperature):
        bars, caption, summary, *_ = draw(store, BROWSER, *values)
        assert (bars, caption) == draw(store, BROWSER, *nearest)[:2]
        assert f"the slider goes from 0.01 to 0.95, so these are the ranks for {drawn}" in summary
    assert Form()["ratio"].preprocess(2.0) == 2.0  # Gradio's own refusal names no remedy
    with pytest.raises(lrcore.InputError, match="threshold"):
        store.analysis(RECIPE).table(2.0)


@pytest.mark.parametrize("typed", [0, -3, None])
def test_in_the_place_of_a_temperature_that_is_not_positive_comes_the_rule_of_thumb(store, typed):
    values = input_values(RECIPE.with_(policy="softmax", temperature=0.2))
    values[0][FIELD_NAMES.index("temperature")] = typed
    drawn = handlers.draw_plan_by_temperature(store, BROWSER, *values)
    by_rule = input_values(RECIPE.with_(policy="softmax"))
    assert drawn[0] == handlers.draw_plan(store, BROWSER, *by_rule)[0]
    assert "must be positive: these are the ranks by the rule of thumb" in drawn[2]
    assert drawn[-2]["value"] > 0  # the slider follows the rule
    assert drawn[-1] is True


def test_the_slider_reaches_as_far_as_the_temperature_that_was_typed(store):
    values = input_values(RECIPE.with_(policy="softmax", temperature=1000.0))
    slider = handlers.draw_plan_by_temperature(store, BROWSER, *values)[-2]
    assert slider["value"] == 1000
    assert slider["maximum"] > 1000


def test_a_number_that_is_no_number_of_windows_is_said_in_the_place_of_the_plan(store):
    values = input_values(RECIPE)
    values[0][FIELD_NAMES.index("samples")] = -4
    bars, _, note, *_ = handlers.draw_plan(store, BROWSER, *values)
    assert bars == ""
    assert "samples" in note


def test_of_an_option_out_of_range_the_box_shows_that_of_the_plan_again():
    rows = (row for method in lrcore.methods() for row in method["options"])
    row = next(row for row in rows if "low" in row and not isinstance(row["default"], bool))
    owner, wrong, kept = options.OWNERS[0], row["low"] - 1, {row["name"]: row["low"]}
    assert not options.out_of_range(row, row["default"])
    choice = ["this", "uniform", 0.0]
    assert options.keep(owner, "this", row, wrong, choice, kept) == gr.skip()  # half typed
    with pytest.warns(UserWarning, match=f"Option {row['name']}"):
        assert options.put_back(row, wrong, kept) == row["low"]
    assert options.put_back(row, None, {}) == row["default"]
    assert options.put_back(row, row["low"], {}) == gr.skip()


def test_a_narrow_page_draws_the_energy_from_rank_one(store):
    _, energy, _ = cell_figures(store.analysis(RECIPE), Cell(1, "ov", rank=20), log=False)
    assert json.loads(energy)["layout"]["xaxis"]["range"][0] == 1


def test_numbers_in_the_heatmap_can_be_read(store):
    figure, *_ = spectra.draw_heatmap(store, ["effective_rank", 0.9, "aware"], KEY)
    *_, written = json.loads(figure)["data"]
    assert {*written["textfont"]["color"]} == {contrast.BLACK, contrast.WHITE}
    for i in range(101):
        light = contrast.luminance(contrast.viridis(i / 100))
        on_black, on_white = (light + 0.05) / 0.05, 1.05 / (light + 0.05)
        ratio = {contrast.BLACK: on_black, contrast.WHITE: on_white}[contrast.ink(i / 100)]
        assert ratio >= 4.5


def test_the_energy_lost_is_what_the_ranks_leave_out(store):
    _, energy, heading = cell_figures(store.analysis(RECIPE), Cell(1, "ov", rank=20), log=True)
    drawn = json.loads(energy)
    squares = store.analysis(RECIPE).values(1, "ov") ** 2
    assert drawn["layout"]["yaxis"]["type"] == "log"
    ranks, lost = drawn["data"][0]["x"], drawn["data"][0]["y"]
    assert min(lost) > 0
    for rank, one in zip(ranks, lost, strict=True):
        assert one == pytest.approx(squares[rank:].sum() / squares.sum(), rel=1e-6)
    assert f"{squares[20:].sum() / squares.sum():.2%}" in heading


def test_a_budget_that_cannot_be_met_draws_no_rank(store):
    slot = [0, "qk"]
    assert spectra.planned_rank(store, RECIPE, slot) == store.plan(RECIPE).ranks[0, "qk"]
    assert spectra.planned_rank(store, RECIPE.with_(overrides={"0.qk": 10**6}), slot) is None
    assert spectra.planned_rank(store, None, slot) is None


def test_heads_and_table_are_of_the_analysis(store, empty):
    assert len(spectra.list_heads(store, [0, "qk"], KEY, [-1])["choices"]) > 1
    assert len(spectra.list_heads(store, [0, "mlp"], KEY, [-2])["choices"]) == 1
    assert {"layer", "name", "effective_rank"} <= {*spectra.fill_table(store, 0.9, KEY).columns}
    file = json.loads(spectra.download_table(store, 0.9, KEY))
    assert file["name"] == "spectra.csv"
    with pytest.raises(lrcore.InputError, match="Analyse"):
        spectra.download_table(empty, 0.9, KEY)


def test_a_move_of_the_slider_draws_bars_summary_and_key(store):
    bars, caption, summary, _, about, key, _, rule = handlers.draw_plan(
        store, BROWSER, *input_values(RECIPE)
    )
    assert text.UNIFORM_BARS in caption
    assert "requested 30.0%" in summary
    assert "a3" in about
    assert key == store.live_key(RECIPE)
    assert json.loads(bars)["layout"]["meta"]["mark"] == "bar"
    plan = "a3, uniform, 30.0% of decoder parameters removed"
    assert json.loads(bars)["caption"] == f"{plan} · {MADE_OF}"
    assert rule["__type__"] == "update"
    assert "value" not in rule  # the rule of thumb stays as it is
    softmax = RECIPE.with_(policy="softmax", temperature=0.2)
    *_, rule = handlers.draw_plan_by_temperature(store, BROWSER, *input_values(softmax))
    assert rule is False


def test_a_budget_that_cannot_be_met_is_said_in_place(store):
    values = input_values(RECIPE.with_(overrides={"0.qk": 10**6}))
    _, _, summary, *_ = handlers.draw_plan(store, BROWSER, *values)
    assert "<div class='stale'><div class='note error'" in summary  # the bars of before are dimmed


def test_without_factors_the_page_says_how_to_get_them_and_the_plots_of_before_stay_dimmed(empty):
    values = input_values(RECIPE)
    bars, caption, summary, *_ = handlers.draw_plan(empty, BROWSER, *values)
    assert markup.stale(markup.note(text.NO_FACTORS, "hint")) == summary
    drawn = [bars, caption, handlers.draw_survey(empty, *values)[0]]
    drawn += [budget_curve.draw(empty, *values)[0], network.draw_network(empty, BROWSER, *values)]
    assert drawn == [gr.skip()] * 5


def test_live_figures_arrive_for_the_plan_on_show(store):
    recipe = RECIPE.with_(policy="softmax")
    handlers.ask(store, BROWSER, True, "One day", *input_values(recipe))
    key = handlers.draw_plan(store, BROWSER, *input_values(recipe))[5]
    end = time.monotonic() + 120

    async def last() -> dict[str, str]:
        cells = {}
        async for sent in handlers.stream_figures(store, BROWSER):
            cells = json.loads(sent)
            assert time.monotonic() < end
        return cells

    cells = asyncio.run(last())
    assert len(cells) == 3
    assert "data-known='True'" in cells[key]
    assert f"data-of='{key}'" in cells["continuation"]
    handlers.ask(store, BROWSER, False, "One day", *input_values(recipe))  # folded away
    assert len(asyncio.run(last())) == 2


def test_the_survey_names_what_is_missing(store):
    figure, note = handlers.draw_survey(store, *input_values(RECIPE))
    lines = {trace["name"]: trace["line"] for trace in json.loads(figure)["data"]}
    assert {name for name, line in lines.items() if line == CHOSEN_LINE} == {RECIPE.policy}
    assert len(lines) > 5
    assert "Not factorised yet" in note


def test_a_rank_typed_into_the_table_is_set_by_hand(store):
    rows, shown = ranks.fill_table(store, *input_values(RECIPE))
    assert shown == {hand.slot_name(slot): rank for slot, rank in store.plan(RECIPE).ranks.items()}
    rows.loc[0, "rank"] = shown["0.qk"] + 2
    typed, history, _ = ranks.edit_table(store, rows, shown, hand.EMPTY, *input_values(RECIPE))
    assert typed == {"0.qk": shown["0.qk"] + 2}
    assert history["past"] == [{}]


@pytest.mark.parametrize(
    ("typed", "why"),
    [("many", "whole number"), ("3.7", "whole number"), ("inf", "whole number"), ("9999", "0.qk")],
)
def test_what_is_no_rank_is_refused_and_the_table_shows_the_plan_again(store, typed, why):
    before, shown = ranks.fill_table(store, *input_values(RECIPE))
    rows = before.astype({"rank": object})
    rows.loc[0, "rank"] = typed
    with pytest.warns(UserWarning, match=why):
        by_hand, history, table = ranks.edit_table(
            store, rows, shown, hand.EMPTY, *input_values(RECIPE)
        )
    assert by_hand == history == gr.skip()
    pd.testing.assert_frame_equal(table, before)


def test_a_bar_is_dragged_released_and_cleared():
    event = click(layer=1, component="ov", rank=6, gesture="g")
    now, history = rank_editor.drag(event, hand.EMPTY, {"0.qk": 4})
    assert now == {"0.qk": 4, "1.ov": 6}
    assert rank_editor.release([1, "ov"], history, now)[0] == {"0.qk": 4}
    assert rank_editor.clear(history, now)[0] == {}
    event = click(layer=1, component="ov", rank=None, gesture=None)
    assert rank_editor.drag(event, history, now)[0] == {"0.qk": 4}


def test_the_box_refuses_a_rank_with_which_the_budget_cannot_be_met(store):
    values = input_values(RECIPE)
    then, *_ = rank_editor.type_rank(store, 8, 10, [0, "qk"], hand.EMPTY, *values)
    assert then == {"0.qk": 8}
    with pytest.warns(UserWarning, match="ranks go from"):
        refused = rank_editor.type_rank(store, 10**6, 10, [0, "qk"], hand.EMPTY, *values)
    assert refused == (gr.skip(), gr.skip(), 10)  # the box shows the rank of the plan again
    assert rank_editor.type_rank(store, None, 10, [0, "qk"], hand.EMPTY, *values)[2] == 10


def test_the_size_of_the_cache_is_told_for_the_context_that_was_chosen(store):
    values, account = input_values(RECIPE), store.plan(RECIPE).account
    try:
        for tokens in (CONTEXT, 32768):
            handlers.choose_context(store, BROWSER, tokens)
            summary = handlers.draw_plan(store, BROWSER, *values)[2]
            assert text.CACHE.format(numbers.count(tokens)) in summary
            for one in (account.model, account.dense):
                assert numbers.megabytes(tokens * one.kv_bytes_per_token / 1e6) in summary
    finally:
        handlers.choose_context(store, BROWSER, CONTEXT)


def test_the_editor_shows_rank_and_changes(store):
    recipe = RECIPE.with_(overrides={"0.qk": 4})
    box, undo, _, release, clear, changes, in_box = rank_editor.show(
        store, [0, "qk"], hand.EMPTY, *input_values(recipe)
    )
    assert box.value == in_box == 4
    assert [part["interactive"] for part in (undo, release, clear)] == [False, True, True]
    assert "1 set by hand" in changes


def test_options_that_are_left_at_their_default_are_not_kept():
    row = next(row for row in lrcore.methods() if row["options"])
    option = row["options"][0]
    name, default = option["name"], option["default"]
    owner, choice = options.OWNERS[0], [row["name"], "uniform", 0.0]
    kept = options.keep(owner, row["name"], option, default, choice, {name: 1, "x": 2})
    assert kept == {"x": 2}
    skipped = options.keep(owner, "another", option, default, choice, {})
    assert skipped["__type__"] == "update"
    assert options.other_method("care", ["a3", "uniform", 0.0])[-1] == ["care", "uniform", 0.0]
